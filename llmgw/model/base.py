"""The two bases of every record, and the rule for canonical names."""

from __future__ import annotations

import re
from typing import Annotated, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, model_validator

HIGHEST_TERM = 1 << 53
"""A term counts how often a lease was taken: no node makes us jump to where there is no counting on from."""
NAME_RULE = "[a-z0-9][a-z0-9._-]{0,62}"
_NAME = re.compile(NAME_RULE)


def check_name(value: str) -> str:
    if not _NAME.fullmatch(value):
        raise ValueError(
            f"{value!r} is not a name: lower-case letters, digits, '.', '_' and '-', at most 63, "
            "beginning with a letter or digit"
        )
    return value


def is_name(value: str) -> bool:
    """Whether `value` follows the rule for canonical names of nodes, models and keys."""
    return _NAME.fullmatch(value) is not None


Name = Annotated[str, AfterValidator(check_name)]


class Record(BaseModel):
    """Something llmgw itself made: strict about unknown fields, so that a typo is found at once."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_bytes="utf8")


class Report(BaseModel):
    """Something a node said: fields it does not know are dropped, so that a newer script may say more."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    @model_validator(mode="after")
    def _forget_which_were_said(self) -> Self:
        # Pydantic keeps a set of their names with every record: half of what the probes of a thousand nodes weigh.
        object.__setattr__(self, "__pydantic_fields_set__", _NONE)
        return self


_NONE: set[str] = set()
"""Shared: records are frozen, and a copy gets a copy of it."""
