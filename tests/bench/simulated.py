"""A thousand nodes in one process: an SSH server that answers the remote scripts with what a real machine said.

`python -m tests.bench.simulated '{"key": PUBLIC KEY, "nodes": 1000}'` prints its port and host key. A node is an
address of 127.0.0.0/8; it has the hostname, boot id and machine id of that address. Nothing is run.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import signal
import sys
import time
from pathlib import Path
from typing import Any

import asyncssh
import uvloop

from llmgw.ssh import lean
from llmgw.ssh.identity import public_text

MACHINE = Path(__file__).resolve().parents[1] / "machines" / "h100-8" / "expected.json"


def address(number: int) -> str:
    return f"127.{1 + number // 250 // 250}.{number // 250 % 250}.{1 + number % 250}"


def identity(host: str) -> dict[str, Any]:
    name = "sim-" + host.replace(".", "-")
    return {"hostname": name, "boot_id": f"boot-{name}", "machine_id": hashlib.md5(name.encode()).hexdigest()}


class Session(asyncssh.SSHServerSession[bytes]):
    """Takes a request of four length-prefixed blocks and answers it with one frame."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._buffer = bytearray()

    def connection_made(self, chan: asyncssh.SSHServerChannel[bytes]) -> None:
        self._channel = chan

    def exec_requested(self, command: str) -> bool:
        return True

    def data_received(self, data: bytes, datatype: int | None) -> None:
        self._buffer += data
        blocks, at = [], 0
        while len(blocks) < 4:
            if len(self._buffer) < at + 8:
                return
            size = int(self._buffer[at : at + 8])
            if len(self._buffer) < at + 8 + size:
                return
            blocks.append(bytes(self._buffer[at + 8 : at + 8 + size]))
            at += 8 + size
        args = json.loads(blocks[3])
        text = json.dumps(self._answer(blocks[1].decode(), args)).encode()
        head = f"#{args['_token']} {len(text)} {hashlib.sha256(text).hexdigest()[:32]}\n"
        self._channel.write(head.encode() + text + b"\n")
        self._channel.exit(0)

    def _answer(self, script: str, args: dict[str, Any]) -> dict[str, Any]:
        if script == "probe.py":
            return {"result": {**PROBE, **identity(self._host), "at": time.time()}}
        if script == "engine.py" and args["action"] == "list":
            return {
                "result": {"boot_id": identity(self._host)["boot_id"], "now": time.time(), "replicas": [], "strays": []}
            }
        return {"error": {"code": "simulated", "message": f"{script} is not simulated", "fix": ""}}


PROBE: dict[str, Any] = {
    "schema": 2,
    "python": {"executable": "/usr/bin/python3.11", "version": "3.11.2"},
    "user": {"name": "root", "uid": 0, "home": "/root", "shell": "/bin/bash"},
    "libc": {"kind": "glibc", "version": "2.36"},
    **json.loads(MACHINE.read_text()),
    "kernel_modules": {"nvidia": True},
    "processes": [],
    "owner": None,
    "root": {"path": "/root/.local/share/llmgw", "exists": True, "writable": True, "free": 1 << 40, "noexec": False,
             "owner_ok": True, "read_only": False},
}  # fmt: skip


class Server(asyncssh.SSHServer):
    def __init__(self, authorized: str) -> None:
        self._authorized = authorized

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        self._host = conn.get_extra_info("sockname")[0]
        lean.no_empty_packets(conn)

    def begin_auth(self, username: str) -> bool:
        return True

    def public_key_auth_supported(self) -> bool:
        return True

    def validate_public_key(self, username: str, key: asyncssh.SSHKey) -> bool:
        return public_text(key) == self._authorized

    def session_requested(self) -> Session:
        return Session(self._host)


async def main() -> None:
    job = json.loads(sys.argv[1])
    key = asyncssh.generate_private_key("ssh-ed25519")
    authorized = " ".join(job["key"].split()[:2])
    listener = await asyncssh.listen(
        "0.0.0.0",  # every address of 127.0.0.0/8 is a node
        0,
        server_factory=lambda: Server(authorized),
        server_host_keys=[key],
        encoding=None,
        backlog=4096,
        config=None,
    )
    print(json.dumps({"port": listener.get_port(), "host_key": public_text(key)}), flush=True)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await stop.wait()


if __name__ == "__main__":
    uvloop.run(main())
