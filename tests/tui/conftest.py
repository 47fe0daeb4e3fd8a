"""The dashboard in front of a control plane that the test plays."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.tui.plane import Plane


@pytest.fixture(autouse=True)
def _same_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the time zone nor the terminal of whoever runs the tests may show in a picture."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    for name in ("NO_COLOR", "COLORTERM", "TEXTUAL_ANIMATIONS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def plane() -> Plane:
    return Plane()


async def _until(pilot, condition: Callable[[], object]) -> None:
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end, "it did not happen within 10 s"
        await pilot.pause(0.02)
    await pilot.pause()


@pytest.fixture
def until():
    return _until
