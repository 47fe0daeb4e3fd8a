"""Named places where a test may end the process as kill -9 would, to show that a restart there is a no-op.

Nothing happens unless LLMGW_CRASH_AT names the place.
"""

from __future__ import annotations

import os


def crash_point(name: str) -> None:
    if os.environ.get("LLMGW_CRASH_AT") == name:
        os._exit(137)
