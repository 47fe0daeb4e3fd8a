"""Records ↔ rows: scalar fields are columns, everything nested is JSON text."""

from __future__ import annotations

import json
import types
from collections.abc import Mapping
from enum import Enum
from functools import cache, lru_cache
from typing import Any, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel
from sqlite_utils import Database

from llmgw.store.db import Tx

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


def records(cls: type[R], db: Database, sql: str, *values: Any) -> list[R]:
    """The records of a query whose rows hold all their fields.

    Every turn of every loop reads every row and hardly any has changed: records are frozen, so a row that is as it was
    the last time gives the same one.
    """
    found = db.conn.execute(sql, values)
    columns = tuple(column[0] for column in found.description)
    before, now = _last.get((sql, values), {}), {}
    for row in found:
        record = before.get(row)
        now[row] = record if record is not None else _record(cls, columns, row)
    if len(now) > 1:
        _last[sql, values] = now
    return list(now.values())


@lru_cache(maxsize=256)
def _record(cls: type[R], columns: tuple[str, ...], row: tuple[Any, ...]) -> R:
    """One transaction reads the same row several times."""
    return from_row(cls, dict(zip(columns, row, strict=True)))


_last: dict[tuple[str, tuple[Any, ...]], dict[tuple[Any, ...], Any]] = {}
"""What a query gave: (SQL, values) → row → record. Of queries for more than one row, so there are few."""


def from_row(cls: type[R], row: dict[str, Any], **extra: Any) -> R:
    nested = _nested(cls)
    values = {name: json.loads(value) if name in nested else value for name, value in row.items()}
    return cls.model_validate({**values, **extra})


def upsert(tx: Tx, table: str, row: Mapping[str, Any], *key: str) -> None:
    """Writes a row, over the one with the same `key` columns. Plain SQL: the library looks the table up each time."""
    tx.db.conn.execute(_upsert(table, tuple(row), key), list(row.values()))


@cache
def _upsert(table: str, columns: tuple[str, ...], key: tuple[str, ...]) -> str:
    rest = ", ".join(f"{name} = excluded.{name}" for name in columns if name not in key)
    return (
        f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))}) "
        f"ON CONFLICT ({', '.join(key)}) DO UPDATE SET {rest}"
    )
