"""What the node's SSH server grants. Numbers and words as in sshd_config(5)."""

from __future__ import annotations

from llmgw.core.findings.rules import Facts, Said, listed, many, on_preflight, quoted, rule
from llmgw.model.preflight import Preflight, Sshd

LOOPBACK = ("127.0.0.1", "localhost", "*")


def _set(line: str, facts: Facts | None = None) -> str:
    """How a line of sshd_config is set; the service is called ssh or sshd."""
    root = (facts or Facts()).root
    return f"Set {line} in sshd_config, then `{root('systemctl reload ssh')} || {root('systemctl reload sshd')}`."


def _sshd(facts: Facts) -> Sshd | None:
    return facts.preflight.sshd if facts.preflight is not None else None


@rule("pubkey_off", "error", _set("`PubkeyAuthentication yes`")[:-1] + "; or use --no-key.")
def pubkey_off(facts: Facts) -> Said:
    """The control plane comes by a key of its own: where keys are not taken it cannot come by itself."""
    sshd = _sshd(facts)
    if sshd is None or sshd.pubkey is not False or not facts.outside.own_key:
        return None
    fix = _set("`PubkeyAuthentication yes`", facts)[:-1] + "; or use --no-key."
    return "its SSH server takes no keys (PubkeyAuthentication no)", fix


@rule(
    "keys_elsewhere",
    "error",
    "Put the control plane's key where the server reads it, then add the node with --despite keys_elsewhere; or use "
    "--no-key.",
)
def keys_elsewhere(facts: Facts) -> Said:
    """The server does not read ~/.ssh/authorized_keys, so a key put there opens nothing."""
    sshd = _sshd(facts)
    if sshd is None or not sshd.authorized_keys_file or not facts.outside.own_key:
        return None
    home = (facts.probe.user.home if facts.probe else None) or "~"
    ours = {".ssh/authorized_keys", "%h/.ssh/authorized_keys", f"{home}/.ssh/authorized_keys"}
    places = {
        name.replace("%u", facts.user).replace("/./", "/").removeprefix("./") for name in sshd.authorized_keys_file
    }
    if ours & places:
        return None
    message = f"its SSH server reads keys from {listed(sshd.authorized_keys_file)}, not from ~/.ssh/authorized_keys"
    line = facts.outside.key_line
    key = f"the line `{' '.join(line.split())}`" if line else "the control plane's key, id_ed25519.pub of its home,"
    where = "to where the server reads it" if "none" in places else f"into {listed(sorted(places))}"
    return message, f"Put {key} {where}, then add the node with --despite keys_elsewhere; or use --no-key."


@rule("forwarding_forbidden", "warning", _set("`AllowTcpForwarding local`"))
def forwarding_forbidden(facts: Facts) -> Said:
    """Requests travel through SSH's own TCP forwarding. Where it is forbidden a relay on the node takes its place, at a
    cost in CPU and latency."""
    sshd = _sshd(facts)
    said = sshd.allow_tcp_forwarding if sshd else None
    if facts.outside.forwarding is False and sshd is not None and sshd.permit_open and said not in ("no", "remote"):
        return None  # that is what PermitOpen forbids, and said below
    if facts.outside.forwarding is False:
        by = f" (AllowTcpForwarding {said})" if said in ("no", "remote") else ""
        message = f"its SSH server refused to forward a TCP connection{by}: a relay on the node carries the traffic"
    elif facts.outside.forwarding is None and said in ("no", "remote"):
        message = f"its SSH server forwards no TCP (AllowTcpForwarding {said}): a relay on the node will carry it"
    else:
        return None
    return message, _set("`AllowTcpForwarding local`", facts)


@rule("forwarding_limited", "warning", _set("`PermitOpen 127.0.0.1:*`"))
def forwarding_limited(facts: Facts) -> Said:
    """PermitOpen allows forwarding to some addresses only; engines listen on 127.0.0.1 on ports of engine_ports."""
    sshd = _sshd(facts)
    if sshd is None or not sshd.permit_open or sshd.allow_tcp_forwarding in ("no", "remote"):
        return None
    if any(one.rpartition(":")[0] in LOOPBACK and one.endswith(":*") for one in sshd.permit_open):
        return None
    message = f"its SSH server forwards only to {listed(sshd.permit_open)} (PermitOpen): a relay carries the traffic"
    return message, _set("`PermitOpen 127.0.0.1:*`", facts)


@rule("max_sessions_small", "note", _set("`MaxSessions 10`"))
def max_sessions_small(facts: Facts) -> Said:
    """Few sessions a connection: looks and actions wait for one another. Requests of clients are not counted by it."""
    sshd = _sshd(facts)
    most = facts.outside.sessions if facts.outside.sessions is not None else sshd.max_sessions if sshd else None
    if most is None or most > 2:
        return None
    message = f"its SSH server grants {many(most, 'session')} a connection (MaxSessions, usually 10)"
    return message, _set("`MaxSessions 10`", facts)


@rule("max_startups_small", "note", _set("`MaxStartups 10:30:100`"))
def max_startups_small(facts: Facts) -> Said:
    """The server drops logins when a few are under way at once, whosever they are: a reconnect may need some tries."""
    sshd = _sshd(facts)
    first = (sshd.max_startups or "").split(":")[0] if sshd else ""
    if not first.isdecimal() or int(first) > 4:
        return None
    message = f"its SSH server drops logins from {first} at once on (MaxStartups {sshd.max_startups if sshd else ''})"
    return message, _set("`MaxStartups 10:30:100`", facts)


@rule("forced_command", "warning", _set("no ForceCommand for this user"))
def forced_command(facts: Facts) -> Said:
    """ForceCommand runs something in place of every command: it has to run ours to the letter."""
    sshd = _sshd(facts)
    if sshd is None or not sshd.force_command:
        return None
    message = f"its SSH server forces the command {quoted(sshd.force_command, 80)!r} on {facts.user}"
    return message, _set("no ForceCommand for this user", facts)


@on_preflight("dropbear", "note")
def on_dropbear(preflight: Preflight, facts: Facts) -> Said:
    """The SSH server is dropbear: no MaxSessions, no Match and no SFTP of its own; llmgw needs none of them."""
    sshd = preflight.sshd
    return ("its SSH server is dropbear", "") if sshd is not None and sshd.server == "dropbear" else None
