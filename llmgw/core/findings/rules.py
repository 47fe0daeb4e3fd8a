"""What a rule is: one thing that may be wrong with a node, how bad it is, and what mends it.

A rule is a function over typed facts that answers with its sentence, with the sentence and a fix that fits this node,
or with None. A fact that is not known is no finding: unknown is not bad.

A fix is copied. It is one command and nothing else, or prose, which begins with a capital letter or a backtick and has
every command in backticks.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from inspect import getdoc
from typing import Literal

from llmgw.core.packages import INSTALL, PACKAGES
from llmgw.model.preflight import Mount, Preflight
from llmgw.model.probe import Probe
from llmgw.model.surroundings import Surroundings

Severity = Literal["note", "warning", "error"]
Said = str | tuple[str, str] | None

ORDER: dict[Severity, int] = {"error": 0, "warning": 1, "note": 2}
_FAMILIES = {
    "apt": {"debian", "ubuntu", "raspbian", "linuxmint", "pop", "kali", "proxmox", "dgx"},
    "dnf": {"fedora", "rhel", "centos", "rocky", "almalinux", "ol", "amzn", "azurelinux", "anolis", "openeuler"},
    "zypper": {"opensuse", "opensuse-leap", "opensuse-tumbleweed", "sles", "sled"},
    "pacman": {"arch", "manjaro", "endeavouros", "cachyos"},
    "apk": {"alpine", "postmarketos"},
}


@dataclass(frozen=True)
class Facts:
    """All there is to judge by. What is None was not asked for."""

    probe: Probe | None = None
    preflight: Preflight | None = None
    outside: Surroundings = field(default_factory=Surroundings)
    node_id: str | None = None
    ports: tuple[int, int] | None = None

    @property
    def user(self) -> str:
        return self.probe.user.name if self.probe else "$USER"

    @property
    def home(self) -> Mount | None:
        """The file system of the home; None where it is not known, or did not answer."""
        home = self.probe.user.home if self.probe else None
        return self.preflight.mount(home) if self.preflight and home else None

    @property
    def manager(self) -> str | None:
        """The package manager of the node: what was found there, else that of its distribution."""
        if self.preflight is not None and self.preflight.packages.manager:
            return self.preflight.packages.manager
        name = self.probe.os.id if self.probe else None
        return next((manager for manager, names in _FAMILIES.items() if name in names), None)

    def root(self, command: str) -> str:
        """A command as this user has to type it where root is needed."""
        return command if self.probe and self.probe.user.uid == 0 else f"sudo {command}"

    def install(self, *things: str, names: Mapping[str, str] | None = None) -> str | None:
        """The command that installs these things of the table, or what `names` calls it for each package manager; None
        where that is not known."""
        manager = self.manager or ""
        every = [PACKAGES[thing].get(manager) for thing in things] if names is None else [names.get(manager)]
        if not every or None in every:
            return None
        return self.root(f"{INSTALL[manager]} {' '.join(sorted({name for name in every if name}))}")


@dataclass(frozen=True)
class Rule:
    code: str
    severity: Severity
    means: str
    """Why it matters, in a sentence or two."""
    fix: str
    """What mends it anywhere; a finding may say it in this node's own commands."""
    find: Callable[[Facts], Said]

    @property
    def subject(self) -> str:
        return self.find.__module__.rpartition(".")[2]


RULES: list[Rule] = []
"""Every rule there is, in the order of the modules that hold them."""

Find = Callable[[Facts], Said]
OfProbe = Callable[[Probe, Facts], Said]
OfPreflight = Callable[[Preflight, Facts], Said]


def rule(code: str, severity: Severity, fix: str = "") -> Callable[[Find], Find]:
    """A rule over all facts. Its docstring says why it matters."""

    def register(find: Find) -> Find:
        _add(code, severity, fix, find, find)
        return find

    return register


def on_probe(code: str, severity: Severity, fix: str = "") -> Callable[[OfProbe], OfProbe]:
    """A rule that a probe is enough for."""

    def register(find: OfProbe) -> OfProbe:
        def judged(facts: Facts) -> Said:
            return find(facts.probe, facts) if facts.probe is not None else None

        _add(code, severity, fix, judged, find)
        return find

    return register


def on_preflight(code: str, severity: Severity, fix: str = "") -> Callable[[OfPreflight], OfPreflight]:
    """A rule that needs a preflight, and can be asked before acting only."""

    def register(find: OfPreflight) -> OfPreflight:
        def judged(facts: Facts) -> Said:
            return find(facts.preflight, facts) if facts.preflight is not None else None

        _add(code, severity, fix, judged, find)
        return find

    return register


def _add(code: str, severity: Severity, fix: str, judged: Find, written: Callable[..., Said]) -> None:
    judged.__module__ = written.__module__
    means = " ".join((getdoc(written) or "").split("\n\n")[0].split())
    RULES.append(Rule(code, severity, means, fix, judged))


def listed(words: Iterable[object], most: int = 4) -> str:
    """`a, b and 3 more`."""
    every = [str(word) for word in words]
    if len(every) > most:
        return f"{', '.join(every[: most - 1])} and {len(every) - most + 1} more"
    return " and ".join(filter(None, [", ".join(every[:-1]), every[-1] if every else ""]))


def arg(text: str) -> str:
    """A word of the node as one word of a command to copy: it may hold anything, and whoever copies it trusts us."""
    return shlex.quote(" ".join(text.split()))


def raised(facts: Facts, item: str, value: str, *kinds: str) -> str:
    """How a limit of this user's is raised for good: limits.conf(5)."""
    lines = " ".join(arg(f"{facts.user} {kind} {item} {value}") for kind in kinds)
    command = f"printf '%s\\n' {lines} | {facts.root(f'tee /etc/security/limits.d/llmgw-{item}.conf')}"
    return f"Run `{command}`, then log in again."


def many(count: int, one: str) -> str:
    """`1 card`, `3 cards`."""
    return f"{count} {one}{'' if count == 1 else 's'}"


def sentence(fix: str) -> str:
    """A fix to go on after with another sentence: what is a command alone is one in backticks."""
    if not fix:
        return ""
    return f"Run `{fix}`." if fix[0].islower() or fix[0] in "/~" else fix if fix[-1] in ".?!" else f"{fix}."


def quoted(text: str, most: int = 200) -> str:
    """Words of the node in one line, and not too many of them."""
    plain = " ".join(text.split())
    return plain if len(plain) <= most else plain[: most - 1] + "…"


def version(text: str | None) -> tuple[int, ...]:
    """`550.54.15` → (550, 54, 15); empty for what begins with no number."""
    numbers = []
    for part in (text or "").replace("-", ".").split("."):
        if not part.isdecimal():
            break
        numbers.append(int(part))
    return tuple(numbers)
