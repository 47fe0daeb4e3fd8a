"""Secrets are a type: their repr, JSON and log form is `•••`."""

from __future__ import annotations

import secrets
from typing import Any

from pydantic import GetCoreSchemaHandler
from pydantic_core import core_schema

MASK = "•••"


class Secret:
    """A string that only `reveal()` gives away. Compares by value, hashes by value, prints as `•••`."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    @classmethod
    def random(cls, prefix: str = "") -> Secret:
        """256 bits from the operating system, as URL-safe text."""
        return cls(prefix + secrets.token_urlsafe(32))

    def reveal(self) -> str:
        return self._value

    def __repr__(self) -> str:
        return MASK

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return MASK

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and secrets.compare_digest(self._value.encode(), other._value.encode())

    def __hash__(self) -> int:
        return hash(self._value)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(
            lambda value: value if isinstance(value, cls) else cls(str(value)),
            serialization=core_schema.plain_serializer_function_ser_schema(lambda _: MASK),
            metadata={"pydantic_js_functions": [lambda _s, _h: {"type": "string", "const": MASK}]},
        )
