"""API keys. The key itself is shown once and never stored: 256 random bits need no slow hash, SHA-256 is enough."""

from __future__ import annotations

import hashlib

from llmgw.model.base import Name, Record
from llmgw.model.secret import Secret

PREFIX = "sk-llmgw-"


def digest(key: str) -> str:
    """SHA-256 of a key, hexadecimal: what is stored and compared."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()


def new_key() -> Secret:
    return Secret.random(PREFIX)


class ApiKey(Record):
    name: Name
    hash: str
    hint: str
    """The first characters, so that a person can tell keys apart."""
    models: tuple[str, ...] = ()
    """Canonical names this key may use; empty means all."""
    created_at: float = 0.0
    revoked_at: float | None = None

    def allows(self, model: str) -> bool:
        return not self.models or model in self.models
