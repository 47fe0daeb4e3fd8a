"""One SSH connection a node: the only importer of asyncssh."""

from __future__ import annotations

import ctypes.util


def _import_asyncssh() -> None:
    """asyncssh looks for two optional libraries, and ctypes looks by way of a compiler and a temporary file.

    On a disk that is full to the last byte that raises, and nothing of llmgw would start: not the server, which needs
    no space to serve, nor the doctor, who would say so. A library that cannot be looked for is one that is not there.
    """
    find = ctypes.util.find_library

    def find_or_not(name: str) -> str | None:
        try:
            return find(name)
        except OSError:
            return None

    ctypes.util.find_library = find_or_not
    try:
        import asyncssh  # noqa: F401
    finally:
        ctypes.util.find_library = find


_import_asyncssh()
