"""Which platform tags of a wheel run on a node, from what the probe said of its processor and libc."""

from __future__ import annotations

import re

# PEP 599 and PEP 600: the older names of some glibc versions.
_LEGACY = {(2, 17): "manylinux2014", (2, 12): "manylinux2010", (2, 5): "manylinux1"}


def wheel_platforms(arch: str, libc: str | None, version: str | None) -> tuple[str, ...]:
    """Platform tags, best first. Empty when the libc is not known: an unknown is no yes."""
    numbers = re.match(r"(\d+)\.(\d+)", version or "")
    if libc not in ("glibc", "musl") or numbers is None:
        return ()
    major, minor = int(numbers[1]), int(numbers[2])
    tags = []
    for lower in range(minor, -1, -1):
        if libc == "musl":
            tags.append(f"musllinux_{major}_{lower}_{arch}")
            continue
        if lower < 5:
            break
        tags.append(f"manylinux_{major}_{lower}_{arch}")
        if (major, lower) in _LEGACY:
            tags.append(f"{_LEGACY[major, lower]}_{arch}")
    return tuple(tags)
