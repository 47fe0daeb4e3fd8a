"""The catalog: what may be served, and how. One entry is what `llmgw model add FILE` takes."""

from __future__ import annotations

import hashlib
import json
import re
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from llmgw.model.base import Name, Record

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_ALIAS = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,199}")


def parse_duration(value: Any) -> Any:
    """`10m`, `1h30m`, `500ms` or a bare number of seconds → seconds."""
    if isinstance(value, str):
        text = value.strip()
        parts = _DURATION.findall(text)
        if not parts or "".join(number + unit for number, unit in parts) != text:
            raise ValueError(f"{value!r} is not a duration: write 30s, 10m, 1h30m or a number of seconds")
        return sum(float(number) * _UNITS[unit] for number, unit in parts)
    return value


Seconds = Annotated[float, BeforeValidator(parse_duration), Field(ge=0)]


class Task(StrEnum):
    CHAT = "chat"
    COMPLETION = "completion"
    EMBED = "embed"
    RERANK = "rerank"
    AUDIO = "audio"


class Scaling(Record):
    min: int = Field(default=1, ge=0, le=1000)
    max: int | None = Field(default=None, ge=0, le=1000)
    target_inflight: int = Field(default=4, ge=1)
    idle_ttl: Seconds = 900.0
    hold: Seconds = 60.0

    @model_validator(mode="after")
    def _ordered(self) -> Scaling:
        if self.max is not None and self.max < self.min:
            raise ValueError(f"max ({self.max}) is below min ({self.min})")
        return self


class Profile(Record):
    """One way to run a model. Profiles are tried from the highest priority down."""

    name: Name
    engine: Name
    gpu_class: str | None = None
    gpus: int = Field(default=0, ge=0, le=64)
    nodes: int = Field(default=1, ge=1, le=64)
    priority: int = 100
    min_memory_gb: float = Field(default=0.0, ge=0)
    node_selector: dict[str, str] = {}
    args: tuple[str, ...] = ()

    @field_validator("args", mode="before")
    @classmethod
    def _as_text(cls, value: Any) -> Any:
        return tuple(str(item) for item in value) if isinstance(value, list) else value

    @field_validator("args")
    @classmethod
    def _encodable(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for arg in value:
            if "\0" in arg or any("\ud800" <= char <= "\udfff" for char in arg):
                raise ValueError(f"{arg!r} cannot be an argument of a program")
        return value


class Model(Record):
    """A catalog entry."""

    name: Name
    aliases: tuple[str, ...] = ()
    task: Task = Task.CHAT
    source: str
    context_length: int | None = Field(default=None, ge=1)
    max_output: int | None = Field(default=None, ge=1)
    routing: Literal["prefix", "least-loaded", "round-robin"] = "least-loaded"
    scaling: Scaling = Scaling()
    lost_after: Seconds = 300.0
    profiles: tuple[Profile, ...] = Field(min_length=1)

    @field_validator("aliases")
    @classmethod
    def _aliases(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for alias in value:
            if not _ALIAS.fullmatch(alias):
                raise ValueError(f"{alias!r} is not an alias: letters, digits and . _ : / @ + - only, at most 200")
        return value

    @model_validator(mode="after")
    def _distinct(self) -> Model:
        names = [profile.name for profile in self.profiles]
        if len(set(names)) != len(names):
            raise ValueError("two profiles have the same name")
        return self

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name, *self.aliases)

    def revision(self, engine_version: str) -> str:
        """Hash of the entry and the engine version, never of argv: an upgrade of llmgw restarts no engine.

        What is left out changes how many run, what they are called and who is asked, not what runs.
        """
        entry = self.model_dump(mode="json", exclude={"scaling", "aliases", "lost_after", "routing"})
        text = json.dumps([entry, engine_version], sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:12]
