"""What the node's SSH server grants. Numbers and words as in sshd_config(5)."""

from __future__ import annotations

from llmgw.core.findings.rules import Facts, Said, listed, on_preflight, quoted, rule
from llmgw.model.preflight import Preflight, Sshd

RELOAD = "then: systemctl reload ssh || systemctl reload sshd"
LOOPBACK = ("127.0.0.1", "localhost", "*")


def _sshd(facts: Facts) -> Sshd | None:
    return facts.preflight.sshd if facts.preflight is not None else None


@rule("pubkey_off", "error", f"`PubkeyAuthentication yes` in sshd_config, {RELOAD}")
def pubkey_off(facts: Facts) -> Said:
    """The control plane comes by a key of its own: where keys are not taken it cannot come by itself."""
    sshd = _sshd(facts)
    return "its SSH server takes no keys (PubkeyAuthentication no)" if sshd and sshd.pubkey is False else None


@rule(
    "keys_elsewhere", "error", "Put the line that `llmgw node add` prints where the server reads it, or use --no-key."
)
def keys_elsewhere(facts: Facts) -> Said:
    """The server does not read ~/.ssh/authorized_keys, so a key put there opens nothing."""
    sshd = _sshd(facts)
    if sshd is None or not sshd.authorized_keys_file:
        return None
    home = (facts.probe.user.home if facts.probe else None) or "~"
    ours = {".ssh/authorized_keys", "%h/.ssh/authorized_keys", f"{home}/.ssh/authorized_keys"}
    places = {
        name.replace("%u", facts.user).replace("/./", "/").removeprefix("./") for name in sshd.authorized_keys_file
    }
    if ours & places:
        return None
    return f"its SSH server reads keys from {listed(sshd.authorized_keys_file)}, not from ~/.ssh/authorized_keys"


@rule("forwarding_forbidden", "warning", f"`AllowTcpForwarding local` in sshd_config, {RELOAD}")
def forwarding_forbidden(facts: Facts) -> Said:
    """Requests travel through SSH's own TCP forwarding. Where it is forbidden a relay on the node takes its place, at a
    cost in CPU and latency."""
    sshd = _sshd(facts)
    said = sshd.allow_tcp_forwarding if sshd else None
    if facts.outside.forwarding is False and sshd is not None and sshd.permit_open and said not in ("no", "remote"):
        return None  # that is what PermitOpen forbids, and said below
    if facts.outside.forwarding is False:
        by = f" (AllowTcpForwarding {said})" if said in ("no", "remote") else ""
        return f"its SSH server refused to forward a TCP connection{by}: a relay on the node carries the traffic"
    if facts.outside.forwarding is None and said in ("no", "remote"):
        return f"its SSH server forwards no TCP (AllowTcpForwarding {said}): a relay on the node will carry the traffic"
    return None


@rule("forwarding_limited", "warning", f"`PermitOpen 127.0.0.1:*` in sshd_config, {RELOAD}")
def forwarding_limited(facts: Facts) -> Said:
    """PermitOpen allows forwarding to some addresses only; engines listen on 127.0.0.1 on ports of engine_ports."""
    sshd = _sshd(facts)
    if sshd is None or not sshd.permit_open or sshd.allow_tcp_forwarding in ("no", "remote"):
        return None
    if any(one.rpartition(":")[0] in LOOPBACK and one.endswith(":*") for one in sshd.permit_open):
        return None
    return f"its SSH server forwards only to {listed(sshd.permit_open)} (PermitOpen): a relay carries the traffic"


@rule("max_sessions_small", "note", f"`MaxSessions 10` in sshd_config, {RELOAD}")
def max_sessions_small(facts: Facts) -> Said:
    """Few sessions a connection: looks and actions wait for one another. Requests of clients are not counted by it."""
    sshd = _sshd(facts)
    most = facts.outside.sessions if facts.outside.sessions is not None else sshd.max_sessions if sshd else None
    if most is None or most > 2:
        return None
    return f"its SSH server grants {most} session{'s' if most != 1 else ''} a connection (MaxSessions, usually 10)"


@rule("max_startups_small", "note", f"`MaxStartups 10:30:100` in sshd_config, {RELOAD}")
def max_startups_small(facts: Facts) -> Said:
    """The server drops logins when a few are under way at once, whosever they are: a reconnect may need some tries."""
    sshd = _sshd(facts)
    first = (sshd.max_startups or "").split(":")[0] if sshd else ""
    if not first.isdecimal() or int(first) > 4:
        return None
    return f"its SSH server drops logins from {first} at once on (MaxStartups {sshd.max_startups if sshd else ''})"


@rule("forced_command", "warning", f"Take ForceCommand off this user in sshd_config, {RELOAD}")
def forced_command(facts: Facts) -> Said:
    """ForceCommand runs something in place of every command: it has to run ours to the letter."""
    sshd = _sshd(facts)
    if sshd is None or not sshd.force_command:
        return None
    return f"its SSH server forces the command {quoted(sshd.force_command, 80)!r} on {facts.user}"


@on_preflight("dropbear", "note")
def on_dropbear(preflight: Preflight, facts: Facts) -> Said:
    """The SSH server is dropbear: no MaxSessions, no Match and no SFTP of its own; llmgw needs none of them."""
    sshd = preflight.sshd
    return ("its SSH server is dropbear", "") if sshd is not None and sshd.server == "dropbear" else None
