"""The engines llmgw knows, by name."""

from __future__ import annotations

import hashlib
from functools import cache

from llmgw import assets
from llmgw.engines.base import Engine
from llmgw.engines.llamacpp import LlamaCpp
from llmgw.engines.sim import Sim


@cache
def engines() -> dict[str, Engine]:
    script = hashlib.sha256(assets.remote_script("sim_engine")).hexdigest()[:12]
    known: tuple[Engine, ...] = (LlamaCpp(), Sim(script))
    return {engine.name: engine for engine in known}
