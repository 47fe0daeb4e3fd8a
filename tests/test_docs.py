"""The documentation is what the code says, and names what exists."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import click
import pytest
import yaml

from llmgw.cli.main import cli
from llmgw.config.load import parse
from llmgw.config.settings import Settings
from llmgw.loops.catalog import check_entry
from llmgw.model.catalog import Model, Profile

TOP = Path(__file__).resolve().parent.parent
PAGES = [*TOP.glob("*.md"), *(TOP / "docs").glob("*.md"), TOP / "remote_scripts/README.md", TOP / "state/README.md"]


def generator():  # type: ignore[no-untyped-def]
    spec = importlib.util.spec_from_file_location("generate", TOP / "docs/generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_generated_pages_are_up_to_date():
    assert generator().stale() == []


def test_the_example_configuration_is_every_option_with_its_default():
    text = (TOP / "llmgw/config/example.yaml").read_text()
    assert parse(text, Settings, "example.yaml") == Settings()

    def keys(value: object, path: str = "") -> set[str]:
        if not isinstance(value, dict):
            return set()
        return {path + name for name in value} | {
            deeper for name, inner in value.items() for deeper in keys(inner, f"{path}{name}.")
        }

    known = keys(Settings().model_dump(mode="json"))
    assert keys(yaml.safe_load(text)) == known


def test_the_example_entry_is_every_key_with_its_default():
    text = (TOP / "llmgw/config/example-model.yaml").read_text()
    entry = parse(text, Model, "example-model.yaml")
    check_entry(entry)
    given = yaml.safe_load(text)
    # What an entry may hold and this version refuses is not advertised: scaling by load, profiles over several nodes.
    assert set(given) == set(Model.model_fields)
    assert set(given["profiles"][0]) == set(Profile.model_fields) - {"nodes"}
    defaults = Model(name="x", source="sim:", profiles=(Profile(name="p", engine="sim"),))
    for key in set(given) - {"name", "aliases", "source", "profiles", "context_length", "scaling"}:
        assert getattr(entry, key) == getattr(defaults, key), key


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path):
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_paths_that_are_named_exist(page: Path):
    for name in re.findall(
        r"`((?:core|loops|nodes|gateway|engines|mirror|admin|model|config|store)/\w+\.py)`", page.read_text()
    ):
        assert (TOP / "llmgw" / name).exists(), f"{page.name} names {name}"
    for name in re.findall(r"`((?:llmgw|remote_scripts|tests|docs|state)/[\w/]+\.\w+)`", page.read_text()):
        assert (TOP / name).exists(), f"{page.name} names {name}"


def test_commands_that_are_named_exist():
    text = "\n".join(page.read_text() for page in PAGES if page.name != "CHANGELOG.md")
    for first, second in re.findall(r"llmgw (node|model|key|ctl|server) ([a-z]+)", text):
        group = cli.get_command(click.Context(cli), first)
        assert isinstance(group, click.Group)
        assert second in group.commands, f"llmgw {first} {second}"


def test_every_command_explains_itself():
    def walk(command: click.Command, path: str) -> None:
        assert command.help or command.short_help, path
        if isinstance(command, click.Group):
            context = click.Context(command)
            for name in command.list_commands(context):
                child = command.get_command(context, name)
                assert child is not None
                walk(child, f"{path} {name}")

    walk(cli, "llmgw")
