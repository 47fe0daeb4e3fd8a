"""What the details say: key and value, in the order a person asks for them."""

from __future__ import annotations

from collections.abc import Iterable

from rich.text import Text

from llmgw.admin.text import age, size
from llmgw.model.catalog import Model
from llmgw.model.replica import Replica
from llmgw.model.snapshot import Snapshot, Unclaimed
from llmgw.tui.style import BAD, COMING, GOING, QUIET, plain, state, words

Facts = list[tuple[str, object]]


def replica_facts(replica: Replica, snapshot: Snapshot) -> Facts:
    facts: Facts = [
        ("replica", replica.id),
        ("model", f"{replica.model}, profile {replica.profile}, revision {replica.revision}"),
        ("engine", f"{replica.engine} {replica.engine_version}"),
        ("state", f"{replica.state} since {age(replica.state_since, snapshot.at)}"),
        ("reason", replica.reason or "–"),
        ("wanted", "yes" if replica.wanted else "no: it is on its way out"),
        ("memory", f"{size(replica.memory_bytes)} on each of its nodes"),
        ("traffic", f"{snapshot.inflight.get(replica.id, 0)} in flight, {snapshot.served.get(replica.id, 0)} served"),
    ]
    for shard in replica.shards:
        process = f"pid {shard.process.pid}, port {shard.port or '–'}" if shard.process else "no process"
        facts.append((f"rank {shard.rank}", f"{shard.node}, attempt {shard.attempt}, {process}"))
    if replica.failures:
        facts.append(("failures", f"{replica.failures} in a row"))
    if replica.next_try_at is not None and replica.next_try_at > snapshot.at:
        facts.append(("next try", f"in {replica.next_try_at - snapshot.at:.0f}s"))
    return facts


def unclaimed_facts(one: Unclaimed) -> Facts:
    return [
        ("replica", one.replica),
        ("state", "unclaimed"),
        ("reason", "An engine with our tag that this state does not know. It is left alone."),
        ("node", one.node),
        ("model", one.model or "–"),
        ("cluster", one.cluster or "–"),
        ("process", f"pid {one.pid}, port {one.port or '–'}, attempt {one.attempt}, rank {one.rank}"),
        ("memory", size(one.rss)),
    ]


def model_facts(model: Model, snapshot: Snapshot) -> Facts:
    now = next((one for one in snapshot.status if one.model == model.name), None)
    scaling = f"{model.scaling.min} at least" + (f", {model.scaling.max} at most" if model.scaling.max else "")
    facts: Facts = [
        ("model", model.name),
        ("state", f"{now.state}, {now.ready} of {now.wanted} ready" if now else "–"),
        ("reason", now.reason if now and now.reason else "–"),
        ("aliases", ", ".join(model.aliases) or "–"),
        ("task", f"{model.task}, context {model.context_length or '–'}, routing {model.routing}"),
        ("source", model.source),
        ("scaling", scaling),
    ]
    weights = snapshot.weights.get(model.source)
    if weights is not None:
        part = "" if weights.progress is None else f" {weights.progress:.0%}"
        facts.append(("weights", f"{weights.state}{part} of {size(weights.size)} {weights.error or ''}".rstrip()))
    for profile in model.profiles:
        wants = [f"{profile.gpus} GPUs"] if profile.gpus else []
        wants += [f"{profile.nodes} nodes"] if profile.nodes > 1 else []
        wants += [f"{key}={value}" for key, value in profile.node_selector.items()]
        facts.append(
            ("profile", " · ".join([profile.name, profile.engine, *wants, " ".join(profile.args)]).rstrip(" ·"))
        )
    facts += [
        ("replica", f"{one.id} {one.state} on {', '.join(one.nodes)}") for one in snapshot.replicas_of(model.name)
    ]
    return facts


def sheet(facts: Iterable[tuple[str, object]]) -> Text:
    """Keys to the left in grey, values beside them; a key that repeats is said once."""
    facts = list(facts)
    width = max((len(key) for key, _ in facts), default=0)
    text = Text()
    last = ""
    for key, value in facts:
        shown = "" if key == last else plain(key)
        last = key
        text.append(f"{shown:<{width}}  ", QUIET)
        text.append_text(_value(key, plain(value)))
        text.append("\n")
    text.rstrip()
    return text


def log(lines: Iterable[str]) -> Text:
    text = Text()
    for line in lines:
        text.append(plain(line) + "\n")
    text.rstrip()
    return text if text else Text("The log is empty.", QUIET)


def _value(key: str, value: str) -> Text:
    if key == "state":
        return state(value)
    if key == "quarantined":
        return words(value, BAD)
    if key == "problem":
        return words(value, {"error": BAD, "warning": GOING}.get(value.partition(":")[0], COMING))
    return Text(value)
