"""Records ↔ rows: scalar fields are columns, everything nested is JSON text."""

from __future__ import annotations

import json
import types
from enum import Enum
from functools import cache
from typing import Any, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel

R = TypeVar("R", bound=BaseModel)


@cache
def _nested(cls: type[BaseModel]) -> frozenset[str]:
    return frozenset(name for name, field in cls.model_fields.items() if not _scalar(field.annotation))


def _scalar(annotation: Any) -> bool:
    if get_origin(annotation) in (Union, types.UnionType):
        return all(part is type(None) or _scalar(part) for part in get_args(annotation))
    return isinstance(annotation, type) and issubclass(annotation, (str, int, float, bool, Enum))


def to_row(record: BaseModel, *, exclude: frozenset[str] = frozenset()) -> dict[str, Any]:
    nested = _nested(type(record))
    body = record.model_dump(mode="json", exclude=set(exclude))
    return {
        name: json.dumps(value, separators=(",", ":"), ensure_ascii=False) if name in nested else value
        for name, value in body.items()
    }


def from_row(cls: type[R], row: dict[str, Any], **extra: Any) -> R:
    nested = _nested(cls)
    values = {name: json.loads(value) if name in nested else value for name, value in row.items()}
    return cls.model_validate({**values, **extra})
