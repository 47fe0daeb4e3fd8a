"""Whatever the parts of the YAML loader do with a file, it is one complaint about the file, soon."""

from __future__ import annotations

import itertools

import pytest

from llmgw.config import tree
from llmgw.config.load import parse
from llmgw.config.settings import Settings
from llmgw.errors import ConfigError
from llmgw.model.catalog import Model


def complaint(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse(text, Settings, "x.yaml")
    assert caught.value.exit_status == 2
    assert len(caught.value.message) < 5000
    return caught.value.message


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("\nprobe_interval: 9999-99-99", "x.yaml:2: not YAML: month must be in 1..12."),
        ("listen: 2020-12-31", "x.yaml:1: listen: Input should be a valid string (found datetime.date(2020, 12, 31))"),
        ("listen: 2001-12-14t21:59:43.10-99:99", "x.yaml:1: not YAML: offset must be a timedelta"),
        ("\n\nprobe_interval: " + "9" * 6000, "x.yaml:3: not YAML: a number of 6000 characters."),
        ("probe_interval: 0x" + "f" * 6000, "x.yaml:1: not YAML: a number of 6002 characters."),
        ("probe_interval: 1" + ":1" * 300_000, "x.yaml:1: not YAML: a number of 600001 characters."),
        ("a: !!int ''", "x.yaml:1: not YAML: string index out of range."),
        ("a: !!bool x", "x.yaml:1: not YAML: 'x'."),
        ("a: !!binary x", "x.yaml:1: not YAML: failed to decode base64 data"),
        ("engines: &a {sim: *a}", "x.yaml:1: an alias stands for what it is a part of."),
        ("a: 1\nb: &b\n  - c\n  - d: [*b]", "x.yaml:2: an alias stands for what it is a part of."),
        ("ssh: &a {<<: *a}", "x.yaml:1: an alias stands for what it is a part of."),
        ("? [a]\n: b", "x.yaml:1: not YAML: found unhashable key."),
        ("? {a: b}\n: c", "x.yaml:1: not YAML: found unhashable key."),
        ("[" * 100_000, "x.yaml: nested too deeply"),
        ("{a: " * 3000, "x.yaml: nested too deeply"),
        ("a\0b", "x.yaml: not YAML: unacceptable character #x0000: special characters are not allowed in"),
        ("a: 1\n---\nb: 2", "x.yaml:2: not YAML: but found another document."),
        ("!!set {a}", "x.yaml: expected keys and values, found set."),
    ],
)
def test_what_the_loader_lets_out(text: str, said: str) -> None:
    assert complaint(text).startswith(said), complaint(text)[:300]


def levels(first: str, body: str, count: int = 12) -> str:
    names = [f"n{number}" for number in range(count)]
    text = f"{names[0]}: &{names[0]} {first}\n"
    for before, name in itertools.pairwise(names):
        text += f"{name}: &{name} {body.replace('@', ', '.join([f'*{before}'] * 9))}\n"
    return text


@pytest.mark.parametrize("key", ["other", "probe_interval", "ssh", "listen"])
@pytest.mark.parametrize(("first", "body"), [("[x]", "[@]"), ("{a: 1, b: 2}", "{<<: [@]}")])
def test_what_multiplies_is_neither_written_out_nor_shown(key: str, first: str, body: str) -> None:
    """F51."""
    assert "x.yaml:1: n0: unknown key.\n" in complaint(levels(first, body) + f"{key}: *n11\n")


def test_merging_works_as_ever() -> None:
    text = "ssh: &a {user: one, handshakes: 3}\n"
    value, _ = tree.read(f"{text}b: {{<<: [*a, {{x: 1}}], handshakes: 4}}\n", "x.yaml")
    assert value["b"] == {"user": "one", "x": 1, "handshakes": 4}


def test_an_alias_may_be_used_twice() -> None:
    text = (
        'name: m\nsource: "sim:"\nprofiles:\n'
        "  - {name: a, engine: sim, args: &args [--x]}\n  - {name: b, engine: sim, args: *args}\n"
    )
    assert [profile.args for profile in parse(text, Model, "x").profiles] == [("--x",), ("--x",)]


def test_many_complaints_are_counted_and_long_words_are_cut() -> None:
    said = complaint("".join(f"k{number}: 1\n" for number in range(1000))).splitlines()
    assert len(said) == 21
    assert said[-1] == "x.yaml: and 980 complaints more."
    assert len(complaint(f"? {'x' * 500_000}\n: 1\n")) < 300
    assert len(complaint(f"listen: {'x' * 500_000}\n")) < 500
    assert len(complaint(f"? {'x' * 500_000}\n: 1\n? {'x' * 500_000}\n: 1\n")) < 300


def test_a_failure_that_nobody_thought_of_is_a_complaint_about_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: object, node: object, deep: bool = False) -> None:
        raise MemoryError

    monkeypatch.setattr(tree._Loader, "construct_object", broken)
    assert complaint("a: 1") == "x.yaml: not YAML that can be read: MemoryError: ."
