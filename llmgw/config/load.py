"""Reads YAML into typed records. Every complaint names the file, the line and the key."""

from __future__ import annotations

import difflib
import os
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from llmgw.config.home import Home
from llmgw.config.settings import Settings
from llmgw.errors import ConfigError

R = TypeVar("R", bound=BaseModel)
MAX_FILE = 1 << 20


def load_settings(home: Home, path: str | None = None) -> Settings:
    """`LLMGW_CONFIG` or llmgw.yaml of the home; the defaults when neither is there. Raises ConfigError."""
    named = path or os.environ.get("LLMGW_CONFIG")
    file = Path(named).expanduser() if named else home.config
    if not named and not file.exists():
        return Settings()
    return load(file, Settings)


def load(path: Path, cls: type[R]) -> R:
    """The one document of `path` as a `cls`. Raises ConfigError."""
    try:
        if path.exists() and not path.is_file():
            raise ConfigError(f"{path} cannot be read: it is no plain file.", fix="Name a YAML file.")
        data = path.read_bytes()
    except FileNotFoundError:
        raise ConfigError(f"{path} does not exist.", fix="Check the name.") from None
    except OSError as exc:
        raise ConfigError(f"{path} cannot be read: {exc.strerror}.", fix="Check its owner and mode.") from None
    if len(data) > MAX_FILE:
        raise ConfigError(f"{path} is larger than 1 MiB; that is no configuration.")
    try:
        return parse(data.decode("utf-8"), cls, str(path))
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8 text.") from None


def parse(text: str, cls: type[R], name: str) -> R:
    """`text` as a `cls`; `name` is what messages call it. Raises ConfigError with one line a complaint."""
    try:
        tree = yaml.compose(text, Loader=yaml.SafeLoader)
        value = yaml.safe_load(text)
    except yaml.YAMLError as exc:
        mark = getattr(exc, "problem_mark", None)
        where = f"{name}:{mark.line + 1}" if mark else name
        raise ConfigError(f"{where}: not YAML: {getattr(exc, 'problem', exc)}.") from None
    except RecursionError:
        raise ConfigError(f"{name}: nested too deeply; that is no configuration.") from None
    if tree is not None and (twice := _twice(tree)) is not None:
        raise ConfigError(f"{name}:{twice[1]}: {twice[0]}: stands here for the second time.", fix="Keep one of them.")
    if value is None:
        value = {}
    if not isinstance(value, dict):
        raise ConfigError(f"{name}: expected keys and values, found {type(value).__name__}.")
    try:
        return cls.model_validate(value)
    except ValidationError as exc:
        complaints = [_complaint(error, tree, cls, name) for error in exc.errors(include_url=False)]
        raise ConfigError("\n".join(complaints)) from None


def _twice(tree: Any) -> tuple[str, int] | None:
    """A key that stands twice in one mapping, with its line: YAML keeps the last in silence."""
    if isinstance(tree, yaml.MappingNode):
        seen = set()
        for key, value in tree.value:
            if key.value in seen:
                return str(key.value), key.start_mark.line + 1
            seen.add(key.value)
            if (found := _twice(value)) is not None:
                return found
    elif isinstance(tree, yaml.SequenceNode):
        for value in tree.value:
            if (found := _twice(value)) is not None:
                return found
    return None


def _complaint(error: Any, tree: Any, cls: type[BaseModel], name: str) -> str:
    path = tuple(part for part in error["loc"] if part != "[key]")
    key = ".".join(str(part) for part in path)
    line = _line(tree, path)
    where = f"{name}:{line}" if line else name
    if error["type"] == "extra_forbidden":
        near = difflib.get_close_matches(str(path[-1]), _fields(cls, path[:-1]), n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        return f"{where}: {key}: unknown key.{hint}"
    if error["type"] == "missing":
        return f"{where}: {key}: is missing."
    message = str(error["msg"]).removeprefix("Value error, ")
    given = "" if error["type"] == "value_error" else f" (found {error['input']!r:.80})"
    return f"{where}: {key + ': ' if key else ''}{message}{given}."


def _line(tree: Any, path: tuple[Any, ...]) -> int | None:
    """The line, from 1, of the deepest part of `path` that is there."""
    line = None
    node = tree
    for part in path:
        found = None
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                if key.value == str(part):
                    line, found = key.start_mark.line + 1, value
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            found = node.value[part]
            line = found.start_mark.line + 1
        if found is None:
            break
        node = found
    return line


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
