"""YAML as text → its values, and the tree they came from, which knows the line of each.

The loader of PyYAML lets out whatever its parts raise (`9999-99-99` is a ValueError of datetime's), follows an alias
into itself for ever, and multiplies what is merged. All of it is a complaint about a line here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import yaml

from llmgw.errors import ConfigError

LONGEST_NUMBER = 100
"""Characters. One of a few thousand digits is refused by Python, or takes minutes to be read (`1:1:1:…`)."""
_NUMBERS = frozenset(f"tag:yaml.org,2002:{kind}" for kind in ("int", "float", "timestamp"))


class _Loader(yaml.SafeLoader):
    """What fails in a value is told with its line."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            if node.tag in _NUMBERS and isinstance(node, yaml.ScalarNode) and len(node.value) > LONGEST_NUMBER:
                raise ValueError(f"a number of {len(node.value)} characters")
            return super().construct_object(node, deep)
        except yaml.YAMLError:
            raise
        except (ArithmeticError, ValueError, TypeError, LookupError) as exc:
            raise yaml.constructor.ConstructorError(None, None, str(exc), node.start_mark) from None

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Merges (`<<: [*a, *a]`) give each pair once: ten levels of ten would be a list of ten thousand millions."""
        super().flatten_mapping(node)
        pairs: dict[int, Any] = {}
        for pair in node.value:
            pairs.pop(id(pair[0]), None)  # the last one counts
            pairs[id(pair[0])] = pair
        node.value = list(pairs.values())


def read(text: str, name: str) -> tuple[Any, yaml.Node | None]:
    """The values of the one document of `text`, and its tree; `name` is what messages call it. Raises ConfigError."""
    try:
        loader = _Loader(text)
        tree = loader.get_single_node()
        if tree is None:
            return None, None
        if (line := _within_itself(tree)) is not None:
            raise ConfigError(f"{name}:{line}: an alias stands for what it is a part of.", fix="Write it out.")
        if (twice := _twice(tree)) is not None:
            raise ConfigError(f"{name}:{twice[1]}: {twice[0]}: stands here for the second time.", fix="Keep one.")
        return loader.construct_document(tree), tree
    except ConfigError:
        raise
    except yaml.YAMLError as exc:
        mark = getattr(exc, "problem_mark", None)
        where = f"{name}:{mark.line + 1}" if mark else name
        said = " ".join(str(getattr(exc, "problem", None) or exc).split())
        raise ConfigError(f"{where}: not YAML: {said}.") from None
    except RecursionError:
        raise ConfigError(f"{name}: nested too deeply; that is no configuration.") from None
    except Exception as exc:
        # Whatever else a file makes the loader do, it is the file that has to be changed.
        raise ConfigError(f"{name}: not YAML that can be read: {type(exc).__name__}: {exc}.") from None


def line_of(tree: Any, path: tuple[Any, ...]) -> int | None:
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


def _children(node: yaml.Node) -> Iterator[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        for pair in node.value:
            yield from pair
    elif isinstance(node, yaml.SequenceNode):
        yield from node.value


def _within_itself(tree: yaml.Node) -> int | None:
    """The line of a node that is reached from itself. Each is looked at once, however many aliases lead to it."""
    above, done = {id(tree)}, set()
    way = [(tree, _children(tree))]
    while way:
        node, children = way[-1]
        below = next(children, None)
        if below is None:
            way.pop()
            above.discard(id(node))
            done.add(id(node))
        elif id(below) in above:
            return int(below.start_mark.line) + 1
        elif id(below) not in done:
            above.add(id(below))
            way.append((below, _children(below)))
    return None


def _twice(tree: yaml.Node) -> tuple[str, int] | None:
    """A key that stands twice in one mapping, with its line: YAML keeps the last in silence."""
    waiting, done = [tree], set()
    while waiting:
        node = waiting.pop()
        if id(node) in done:
            continue
        done.add(id(node))
        if isinstance(node, yaml.MappingNode):
            seen = set()
            for key, _ in node.value:
                if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                    if key.value in seen:
                        return f"{key.value:.100}", key.start_mark.line + 1
                    seen.add(key.value)
        waiting += reversed(list(_children(node)))
    return None
