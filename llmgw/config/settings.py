"""Every option of llmgw.yaml with its default. `example.yaml` explains them; a test holds the two together."""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator

from llmgw.config.files import expanded
from llmgw.errors import UsageError
from llmgw.model.base import Record
from llmgw.model.catalog import Seconds
from llmgw.model.node import ENGINE_PORTS

_SIZE = re.compile(r"([0-9]{1,20})\s*(B|KiB|MiB|GiB)?")
_PORT = re.compile(r"[0-9]{1,5}")
_UNITS = {None: 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}

LLAMACPP_WHEEL = "pypi:xllamacpp==2026.10.11549"


def parse_size(value: Any) -> Any:
    """`32MiB` or a bare number of bytes → bytes."""
    if isinstance(value, str):
        match = _SIZE.fullmatch(value.strip())
        if match is None:
            raise ValueError(f"{value!r} is not a size: write 512KiB, 32MiB, 1GiB or a number of bytes")
        return int(match[1]) * _UNITS[match[2]]
    return value


Size = Annotated[int, BeforeValidator(parse_size), Field(ge=0)]


def parse_listen(value: str) -> tuple[str, int]:
    """`HOST:PORT`, `[v6]:PORT` or `:PORT` (every address) → host and port. Port 0 means a free one."""
    host, colon, port = value.rpartition(":")
    if not colon or not _PORT.fullmatch(port) or int(port) > 65535:
        raise ValueError(f"{value!r} is not an address to listen on: write HOST:PORT, for example 127.0.0.1:8080")
    host = host.strip("[]") or "0.0.0.0"
    return host, int(port)


def _listen(value: Any) -> Any:
    """A port alone is a number in YAML, and gets the same answer as any other word that is no address."""
    if isinstance(value, (str, int)):
        parse_listen(str(value))
        return str(value)
    return value


Listen = Annotated[str, BeforeValidator(_listen)]


def _path(value: str) -> str:
    try:
        expanded(value)
    except UsageError as exc:
        raise ValueError(exc.message.rstrip(".")) from None
    return value


LocalPath = Annotated[str, AfterValidator(_path)]
"""A path of this machine as it was written: `~` is kept, but has to be somebody's home."""


def is_loopback(listen: str) -> bool:
    host, _ = parse_listen(listen)
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class EngineVersions(Record):
    """For each engine the versions to install on every node: the first that runs there. Empty installs none."""

    llamacpp: tuple[str, ...] = (LLAMACPP_WHEEL,)
    sim: tuple[str, ...] = ()

    def wanted(self) -> dict[str, tuple[str, ...]]:
        return {name: versions for name, versions in self if versions}


class SshSettings(Record):
    user: str | None = None
    identities: tuple[LocalPath, ...] = ()
    config: LocalPath | None = "~/.ssh/config"
    connect_timeout: Seconds = 10.0
    keepalive: Seconds = 10.0
    handshakes: int = Field(default=30, ge=1, le=1000)
    new_hosts: Literal["pin", "refuse"] = "pin"


class GatewaySettings(Record):
    max_body: Size = 32 << 20
    queue: int = Field(default=64, ge=0)
    """Requests of one model that may wait for a replica at the same time; the next gets 429."""
    queue_wait: Seconds = 30.0
    body_wait: Seconds = 30.0
    """How long a client may take to send its whole body."""
    first_byte: Seconds = 300.0
    idle: Seconds = 120.0
    """How long a stream may stand still, and how long a client may read nothing, before it is cut."""
    drain: Seconds = 30.0
    """How long open requests may go on after SIGTERM."""


class TlsSettings(Record):
    cert: LocalPath
    key: LocalPath
    client_ca: LocalPath | None = None


class MirrorSettings(Record):
    dir: LocalPath | None = None


class Settings(Record):
    listen: Listen = "127.0.0.1:8080"
    admin_listen: Listen | None = "127.0.0.1:9091"
    tls: TlsSettings | None = None
    probe_interval: Seconds = 600.0
    engines: EngineVersions = EngineVersions()
    engine_ports: tuple[int, int] = ENGINE_PORTS
    ssh: SshSettings = SshSettings()
    gateway: GatewaySettings = GatewaySettings()
    mirror: MirrorSettings = MirrorSettings()

    @field_validator("engine_ports", mode="before")
    @classmethod
    def _ports(cls, value: Any) -> Any:
        if isinstance(value, str):
            low, dash, high = value.partition("-")
            if not (dash and _PORT.fullmatch(low.strip()) and _PORT.fullmatch(high.strip())):
                raise ValueError(f"{value!r} is not a range of ports: write 41000-41999")
            return int(low), int(high)
        return value

    @model_validator(mode="after")
    def _possible(self) -> Settings:
        low, high = self.engine_ports
        if not 1024 <= low <= high <= 65535:
            raise ValueError(f"engine_ports: {low}-{high} is not a range within 1024-65535")
        return self
