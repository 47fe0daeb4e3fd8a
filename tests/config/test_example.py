"""The files that explain every option are held to the types they explain."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from llmgw import config
from llmgw.config.load import load
from llmgw.config.settings import Settings
from llmgw.model.catalog import Model

FOLDER = Path(config.__file__).parent


def keys(cls: type[BaseModel], before: str = "") -> set[str]:
    found = set()
    for name, field in cls.model_fields.items():
        found.add(before + name)
        kinds = (field.annotation, *getattr(field.annotation, "__args__", ()))
        for kind in kinds:
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                found |= keys(kind, f"{before}{name}.")
    return found


def written(tree: Any, before: str = "") -> set[str]:
    found = set()
    for name, value in tree.items():
        found.add(before + name)
        if isinstance(value, dict):
            found |= written(value, f"{before}{name}.")
    return found


def test_the_example_is_the_defaults() -> None:
    assert load(FOLDER / "example.yaml", Settings) == Settings()


def test_the_example_names_every_option() -> None:
    tree = yaml.safe_load((FOLDER / "example.yaml").read_text())
    optional = {name for name in keys(Settings) if name.startswith("tls.")}  # shown in a comment: there is no default
    assert written(tree) == keys(Settings) - optional


def test_every_option_is_explained() -> None:
    text = (FOLDER / "example.yaml").read_text()
    assert all(key.rpartition(".")[2] in text for key in keys(Settings))
    assert text.count("#") >= len(Settings.model_fields)


def test_the_example_of_a_model_works() -> None:
    assert load(FOLDER / "example-model.yaml", Model).name
