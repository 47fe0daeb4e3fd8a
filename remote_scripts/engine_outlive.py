"""Proves that what is started here lives on when its session ends: a sleeper, looked for from the next session.

Where logind kills a user's processes at logout (KillUserProcesses=yes) every engine would end with the connection.
"""
import os

import engine_detach
import prelude

SECONDS = 120  # after which a sleeper that nobody looks for is gone by itself


def begin(args):
    """Writes nothing. `{pid, start_ticks, boot_id, scope}`: `scope` whether systemd keeps it."""
    null = os.open("/dev/null", os.O_WRONLY)
    try:
        pid = engine_detach.detach(["/bin/sleep", str(SECONDS)], {"LLMGW_PROOF": "1"}, "/", null)
    finally:
        os.close(null)
    found = prelude.process(pid)
    if not found:
        prelude.fail("cannot_detach", "a process that was to outlive the session did not start",
                     "Look at the limits of this account: ulimit -u.")
    return {"pid": pid, "start_ticks": found["start_ticks"], "boot_id": prelude.boot_id(),
            "scope": bool(engine_detach.scope())}


def look(args):
    """`{alive}`. Ends the sleeper that `begin` told of."""
    found = prelude.process(args["pid"])
    alive = bool(found and found["start_ticks"] == args["start_ticks"] and prelude.boot_id() == args["boot_id"])
    if alive:
        os.kill(args["pid"], 15)
    return {"alive": alive}
