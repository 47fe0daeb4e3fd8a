"""Where a new replica goes: filter → candidates → score. Every refusal is kept."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from llmgw.core.fit import Fit, Refusal, fit, holding
from llmgw.model.catalog import Model
from llmgw.model.snapshot import Snapshot


@dataclass(frozen=True)
class Placement:
    fit: Fit
    refusals: tuple[Refusal, ...] = ()

    @property
    def reason(self) -> str:
        return f"{self.fit.node} fits profile {self.fit.profile}"


@dataclass(frozen=True)
class Nowhere:
    refusals: tuple[Refusal, ...]

    @property
    def reason(self) -> str:
        """`gpu01 is cordoned; gpu02 needs 9.0 GiB of memory, 2.1 GiB of 7.8 GiB are free`."""
        if not self.refusals:
            return "there is no node"
        seen = dict.fromkeys(f"{refusal.node} {refusal.reason}" for refusal in self.refusals)
        return "; ".join(seen)


def place(model: Model, snapshot: Snapshot, *, avoid: Collection[str] = ()) -> Placement | Nowhere:
    """The best node for one more replica of `model`, by the profile of the highest priority that fits anywhere.

    `avoid` are nodes where it has just failed for good.
    """
    refusals: list[Refusal] = []
    for profile in sorted(model.profiles, key=lambda profile: -profile.priority):
        candidates: list[Fit] = []
        for node in snapshot.nodes:
            if node.id in avoid:
                refusals.append(Refusal(node.id, profile.name, "it failed there and was given up"))
                continue
            verdict = fit(model, profile, node, snapshot)
            if isinstance(verdict, Fit):
                candidates.append(verdict)
            else:
                refusals.append(verdict)
        if candidates:
            return Placement(min(candidates, key=lambda found: _score(found, model, snapshot)), tuple(refusals))
    return Nowhere(tuple(refusals))


def _score(found: Fit, model: Model, snapshot: Snapshot) -> tuple[int, int, int, str]:
    """Spread a model first, then the load, then where most memory is left; the name decides what is left equal."""
    here = holding(found.node, snapshot)
    of_model = sum(replica.model == model.name for replica in here)
    return (of_model, len(here), -found.free_bytes, found.node)
