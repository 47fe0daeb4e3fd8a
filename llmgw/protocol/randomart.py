"""The picture of a host key that OpenSSH draws, to be compared at a glance.

The walk of the "drunken bishop" (Loss, Limmer, von Gernler, 2009), as `fingerprint_randomart` in OpenSSH's sshkey.c
draws it: a field of 17 by 9, two bits of the digest a step.
"""

from __future__ import annotations

import hashlib

WIDTH, HEIGHT = 17, 9
_VALUES = " .o+=*BOX@%&#/^SE"
_START, _END = len(_VALUES) - 2, len(_VALUES) - 1


def randomart(key: bytes, title: str) -> list[str]:
    """Eleven lines for a public key's blob; `title` is what stands in the upper border, as `ED25519 256`."""
    digest = hashlib.sha256(key).digest()
    field = [[0] * HEIGHT for _ in range(WIDTH)]
    x, y = WIDTH // 2, HEIGHT // 2
    for byte in digest:
        for step in range(4):
            move = byte >> (2 * step)
            x = min(max(x + (1 if move & 1 else -1), 0), WIDTH - 1)
            y = min(max(y + (1 if move & 2 else -1), 0), HEIGHT - 1)
            if field[x][y] < _START - 1:
                field[x][y] += 1
    field[WIDTH // 2][HEIGHT // 2] = _START
    field[x][y] = _END
    rows = ["|" + "".join(_VALUES[field[col][row]] for col in range(WIDTH)) + "|" for row in range(HEIGHT)]
    return [_border(f"[{title}]"), *rows, _border("[SHA256]")]


def _border(text: str) -> str:
    left = (WIDTH - len(text)) // 2
    return "+" + "-" * left + text + "-" * (WIDTH - left - len(text)) + "+"
