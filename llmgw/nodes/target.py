"""What an operator writes for a machine."""

from __future__ import annotations

import re

from llmgw.errors import UsageError

_HOST = re.compile(r"[^\s@\"'`$&|;<>()\\{}*?!#-][^\s@\"'`$&|;<>()\\{}*?!#]*")
"""A name, an address or an alias: nothing that a shell or ssh's own command line would take for something else."""
_USER = re.compile(r"[^\s:@/\"'`$&|;<>(){}*?!#-][^\s:\"'`&|;<>(){}*?!#]*")


def parse_target(target: str) -> tuple[str | None, str, int | None]:
    """`[user@]host[:port]`, `[user@][v6][:port]` → user, host, port."""
    user, at, rest = target.rpartition("@")
    port: int | None = None
    if rest.startswith("[") and "]" not in rest:
        raise UsageError(f"{target!r}: the bracket is not closed.", fix="Write [user@][v6-address][:port].")
    if not target.isprintable() or len(target) > 300:
        raise UsageError(f"{target[:40]!r} is no host.", fix="Write [user@]host[:port].")
    if rest.startswith("["):
        host, _, tail = rest[1:].partition("]")
        text = tail.removeprefix(":")
    elif rest.count(":") == 1:
        host, _, text = rest.partition(":")
    else:
        host, text = rest, ""
    if text:
        if not text.isdigit() or not 0 < int(text) < 65536:
            raise UsageError(f"{target!r}: {text!r} is no port.", fix="Write [user@]host[:port].")
        port = int(text)
    if not host or (at and not user):
        raise UsageError(f"{target!r} names no host.", fix="Write [user@]host[:port].")
    if not _HOST.fullmatch(host) or not _is_name(host):
        raise UsageError(f"{host!r} is no name of a host.", fix="Write [user@]host[:port].")
    if at and not _USER.fullmatch(user):
        raise UsageError(f"{user!r} is no name of a user.", fix="Write [user@]host[:port].")
    return (user if at else None), host, port


def _is_name(host: str) -> bool:
    """Whether the name service could be asked for it: no empty part and none of more than 63 letters."""
    try:
        host.encode("idna")
    except UnicodeError:
        return False
    return True
