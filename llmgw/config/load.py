"""Reads YAML into typed records. Every complaint names the file, the line and the key."""

from __future__ import annotations

import difflib
import errno
import os
import reprlib
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from llmgw.config import tree
from llmgw.config.files import expanded, read_plain
from llmgw.config.home import Home
from llmgw.config.settings import Settings
from llmgw.errors import ConfigError, Refused, UsageError

R = TypeVar("R", bound=BaseModel)
MAX_FILE = 1 << 20
MOST = 20
"""Complaints about one file."""
LONGEST_KEY = 100
LONGEST_MESSAGE = 300
_SHORT = reprlib.Repr()
_SHORT.maxstring = 80


def load_settings(home: Home, path: str | None = None) -> Settings:
    """`LLMGW_CONFIG` or llmgw.yaml of the home; the defaults when neither is there. Raises ConfigError."""
    named = path or os.environ.get("LLMGW_CONFIG")
    file = config_file(home, named)
    if not named and not _there(file):
        return Settings()
    return load(file, Settings)


def config_file(home: Home, named: str | None) -> Path:
    """The file `named`, else llmgw.yaml of the home. Raises ConfigError for a name that cannot be resolved."""
    try:
        return expanded(named) if named else home.config
    except UsageError as exc:
        raise ConfigError(exc.message, fix=exc.fix) from None


def load(path: Path, cls: type[R]) -> R:
    """The one document of `path` as a `cls`. Raises ConfigError."""
    try:
        data = read_plain(path, MAX_FILE)
    except FileNotFoundError:
        raise ConfigError(f"{path} does not exist.", fix="Check the name.") from None
    except Refused as exc:
        raise ConfigError(exc.message, fix="Name a YAML file.") from None
    except OSError as exc:
        raise ConfigError(f"{path} cannot be read: {exc.strerror}.", fix="Check its owner and mode.") from None
    try:
        return parse(data.decode("utf-8"), cls, str(path))
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8 text.") from None


def parse(text: str, cls: type[R], name: str) -> R:
    """`text` as a `cls`; `name` is what messages call it. Raises ConfigError with one line a complaint."""
    value, node = tree.read(text, name)
    if value is None:
        value = {}
    if not isinstance(value, dict):
        raise ConfigError(f"{name}: expected keys and values, found {type(value).__name__}.")
    try:
        return cls.model_validate(value)
    except ValidationError as exc:
        errors = exc.errors(include_url=False)
        complaints = [_complaint(error, node, cls, name) for error in errors[:MOST]]
        if len(errors) > MOST:
            complaints.append(f"{name}: and {len(errors) - MOST} complaints more.")
        raise ConfigError("\n".join(complaints)) from None
    except (RecursionError, ArithmeticError) as exc:
        raise ConfigError(f"{name}: it cannot be read: {type(exc).__name__}: {exc}.") from None


def _there(path: Path) -> bool:
    """Whether there is something of that name: a link that leads nowhere is, and no reason to take the defaults."""
    try:
        path.lstat()
    except OSError as exc:
        if exc.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            return False  # about a home that is none the home itself complains
        raise ConfigError(f"{path} cannot be read: {exc.strerror}.", fix="Check its owner and mode.") from None
    return True


def _complaint(error: Any, node: Any, cls: type[BaseModel], name: str) -> str:
    path = tuple(part for part in error["loc"] if part != "[key]")
    key = ".".join(f"{part!s:.{LONGEST_KEY}}" for part in path)
    line = tree.line_of(node, path)
    where = f"{name}:{line}" if line else name
    if error["type"] == "extra_forbidden":
        near = difflib.get_close_matches(f"{path[-1]!s:.{LONGEST_KEY}}", _fields(cls, path[:-1]), n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        return f"{where}: {key}: unknown key.{hint}"
    if error["type"] == "missing":
        return f"{where}: {key}: is missing."
    message = str(error["msg"]).removeprefix("Value error, ")[:LONGEST_MESSAGE]
    given = "" if error["type"] == "value_error" else f" (found {_shown(error['input'])})"
    return f"{where}: {key + ': ' if key else ''}{message}{given}."


def _shown(value: Any) -> str:
    """What was written, in few characters: aliases may make it very large, and Python prints no long numbers."""
    try:
        return f"{_SHORT.repr(value):.80}"
    except ValueError:
        return type(value).__name__


def _fields(cls: type[BaseModel], path: tuple[Any, ...]) -> list[str]:
    """Names of the keys that are known at `path`."""
    current: Any = cls
    for part in path:
        if isinstance(part, int):
            continue
        field = current.model_fields.get(part) if hasattr(current, "model_fields") else None
        annotation = getattr(field, "annotation", None)
        current = _record_in(annotation)
        if current is None:
            return []
    return list(current.model_fields)


def _record_in(annotation: Any) -> Any:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for part in getattr(annotation, "__args__", ()):
        if (found := _record_in(part)) is not None:
            return found
    return None
