"""What may be in the catalog and among the keys: the checks and transactions behind `model` and `key`."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from llmgw.engines.registry import engines
from llmgw.errors import NotFound, Refused, UsageError
from llmgw.mirror import sources
from llmgw.model import key as keys_model
from llmgw.model.catalog import Model, Scaling
from llmgw.model.event import Severity
from llmgw.model.key import ApiKey
from llmgw.model.secret import Secret
from llmgw.store import events, keys, models
from llmgw.store.db import Tx


def check_entry(model: Model) -> None:
    """What no node could make work is refused before it is in the catalog."""
    sources.parse(model.source)
    _check_promises(model)
    for profile in model.profiles:
        engine = engines().get(profile.engine)
        if engine is None:
            raise UsageError(
                f"{model.name}: profile {profile.name}: there is no engine {profile.engine!r}.",
                fix=f"Known: {', '.join(sorted(engines()))}.",
            )
        if model.task not in engine.tasks:
            able = ", ".join(sorted(engine.tasks))
            raise UsageError(f"{model.name}: {profile.engine} does not do {model.task}.", fix=f"It does {able}.")
        if profile.nodes > 1:
            raise UsageError(
                f"{model.name}: profile {profile.name}: {profile.engine} runs on one node, not on {profile.nodes}."
            )
        if (reason := engine.check_entry(model, profile)) is not None:
            raise UsageError(f"{model.name}: profile {profile.name}: {reason}.")


def _check_promises(model: Model) -> None:
    """What an entry may say and this version does not do yet is refused: an option that is ignored is a lie."""
    if model.routing != "least-loaded":
        raise UsageError(
            f"{model.name}: routing: {model.routing} is not there yet.",
            fix="Leave it away: requests go to the replica with the least to do.",
        )
    plain = Scaling(min=model.scaling.min)
    asked = [name for name, value in model.scaling if value != getattr(plain, name)]
    if asked:
        raise UsageError(
            f"{model.name}: scaling.{asked[0]}: scaling by load is not there yet.",
            fix="Give `min` alone: so many replicas are kept.",
        )


def not_found(kind: str, name: str, known: Iterable[str]) -> NotFound:
    """With the nearest names."""
    known = list(known)
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.6)
    hint = f"There is no {kind} yet."
    if near:
        hint = f"Did you mean {', '.join(near)}?"
    elif known:
        hint = f"There are: {', '.join(sorted(known)[:8])}."
    return NotFound(f"There is no {kind} {name!r}.", fix=hint)


def put_model(tx: Tx, model: Model) -> str:
    for other in models.every(tx.db):
        if other.name == model.name:
            continue
        for name in set(model.names) & set(other.names):
            raise Refused(f"{name!r} is a name of {other.name} already.", fix="Choose another.", code="name_taken")
    before = models.get(tx.db, model.name)
    if before == model:
        return "same"
    models.put(tx, model)
    changed = "changed" if before is not None else "new"
    words = "has changed" if before is not None else "is in the catalog"
    events.add(tx, "model.added", f"{model.name} {words}", model=model.name)
    return changed


def create_key(tx: Tx, name: str, allowed: tuple[str, ...], secret: Secret) -> ApiKey:
    if keys.get(tx.db, name) is not None:
        raise Refused(f"There is a key {name} already.", fix="Revoke it, or choose another name.", code="name_taken")
    text = secret.reveal()
    made = ApiKey(name=name, hash=keys_model.digest(text), hint=text[:14] + "…", models=allowed, created_at=tx.now)
    keys.put(tx, made)
    events.add(tx, "key.created", f"API key {name} was created")
    return made


def revoke(tx: Tx, name: str) -> bool:
    found = keys.get(tx.db, name)
    if found is None:
        raise not_found("key", name, [one.name for one in keys.every(tx.db, revoked=True)])
    if found.revoked_at is not None:
        return False
    keys.put(tx, found.model_copy(update={"revoked_at": tx.now}))
    events.add(tx, "key.revoked", f"API key {name} was revoked", severity=Severity.WARNING)
    return True
