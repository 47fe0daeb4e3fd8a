"""What an operator writes for a machine."""

from __future__ import annotations

from llmgw.errors import UsageError


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
    return (user if at else None), host, port
