"""What is typed after `llmgw node add`, checked before the first machine is touched."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from pydantic import ValidationError

from llmgw.engines.registry import engines
from llmgw.model.base import NAME_RULE, is_name
from llmgw.model.node import SaidOptions
from llmgw.nodes.target import parse_target

FINGERPRINT = re.compile(r"SHA256:[A-Za-z0-9+/]{43}=?")
BY_SSH = ("fingerprint", "trust_key", "identities", "no_key", "accept_new")


def checked(hosts: tuple[str, ...], options: dict[str, Any]) -> tuple[str, ...]:
    """The hosts, each once. Raises UsageError for what cannot be meant."""
    if options["name"] and len(hosts) > 1:
        raise click.UsageError("--name goes with one host.")
    if options["name"] and not is_name(options["name"]):
        raise click.UsageError(f"--name {options['name']!r}: names are {NAME_RULE}.")
    if options["name"] == "local":
        raise click.UsageError("--name local: that is how this machine itself is called; take another.")
    if options["trust_key"] and options["fingerprint"]:
        raise click.UsageError("--trust-key and --fingerprint say the same; give one of them.")
    for option in ("trust_key", "fingerprint"):
        if options[option] is not None and not FINGERPRINT.fullmatch(options[option]):
            raise click.UsageError(
                f"--{option.replace('_', '-')} {options[option]!r}: a fingerprint is SHA256: and 43 letters, as "
                "`ssh-keygen -lf` prints it."
            )
    known_codes(options["despite"])
    for engine in pairs(options["engines"], "--engine"):
        if engine not in engines():
            raise click.UsageError(f"--engine {engine}: there is no such engine; known: {', '.join(engines())}.")
    hosts = tuple(dict.fromkeys(hosts))
    for host in hosts:
        parse_target(host)  # what is mistyped is said before the first machine is touched
    by_ssh = [option for option in BY_SSH if options[option]]
    if "local" in hosts and by_ssh:
        raise click.UsageError(
            f"--{by_ssh[0].replace('_', '-')} goes with a machine that is reached by SSH, not local."
        )
    if options["check_only"] and "local" in hosts:
        raise click.UsageError("local is this machine; it is looked over once it is a node: llmgw node check.")
    return hosts


def pairs(values: tuple[str, ...], option: str, between: str = "=") -> dict[str, str]:
    """`("a=1", "b=2")` as a mapping. Raises UsageError that names the option."""
    found = {}
    for value in values:
        key, mark, text = value.partition(between)
        if not (key and mark and text):
            raise click.UsageError(f"{option} {value!r}: write {option} KEY{between}VALUE.")
        found[key] = text
    return found


def known_codes(codes: Sequence[str]) -> None:
    """Raises UsageError for a code that no finding has: it would be accepted in silence and mean nothing."""
    from llmgw.core.findings import RULES

    known = sorted(rule.code for rule in RULES if rule.severity == "error")
    for code in codes:
        if code not in known:
            near = difflib.get_close_matches(code, known, 3)
            raise click.UsageError(
                f"--despite {code}: no error has that code"
                + (
                    f"; there are {', '.join(near)}."
                    if near
                    else ": `llmgw node add --check` names those of a machine."
                )
            )


def node_options(options: dict[str, Any]) -> SaidOptions:
    fabrics = pairs(options["fabrics"], "--fabric", ":")
    try:
        return SaidOptions(
            root=options["root"],
            nvidia_smi=options["nvidia_smi"],
            ib_root=options["ib_root"],
            engines=pairs(options["engines"], "--engine"),
            fabrics={name: tuple(filter(None, text.split(","))) for name, text in fabrics.items()},
            despite=options["despite"],
            own_key=not options["no_key"],
            identities=tuple(str(Path(one).expanduser().absolute()) for one in options["identities"])
            if options["no_key"]
            else (),
        )
    except ValidationError as exc:
        first = exc.errors()[0]
        field = str(first["loc"][0])
        option = "--" + {"fabrics": "fabric", "engines": "engine"}.get(field, field.replace("_", "-"))
        raise click.UsageError(f"{option}: {first['msg'].removeprefix('Value error, ')}.") from None
