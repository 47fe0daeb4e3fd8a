"""A world that goes wrong at random, and what must hold in it after every step.

Nodes with processes, links that break, machines that reboot, replies that are lost or late, a control plane that is
killed. Decisions are the real ones (core.reconcile, core.adopt) and so is everything that is written down (loops.*
over a database in memory); only the nodes and the order of events are played. A failure names its seed:

    LLMGW_WORLD_SEED=123 pytest tests/core/test_world.py
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any

import pytest

from llmgw.core.adopt import unclaimed
from llmgw.core.reconcile import reconcile
from llmgw.engines.base import GIB
from llmgw.errors import LinkLost, LlmgwError, NodeError, TimedOut, Unreachable
from llmgw.loops import act, connect, health, observe, restart, starting, stopping
from llmgw.loops.changes import fail, move
from llmgw.model.action import Launch
from llmgw.model.listing import Exit, Listed, Listing
from llmgw.model.node import DrainState, LinkState
from llmgw.model.replica import Replica, ReplicaState
from llmgw.model.snapshot import Snapshot
from llmgw.nodes.replies import Started
from llmgw.ssh.pool import LinkStatus
from llmgw.store import intents, models, nodes, replicas
from llmgw.store.db import Tx

from .house import House, count_up
from .made import model, node, probe, snapshot

S = ReplicaState
SEEDS = range(60)
STEPS = 400
ROUNDS = 60
Story = Generator[None, None, None]


@dataclass
class Engine:
    """A process on a node, dead or alive, and its manifest."""

    replica: str
    attempt: int
    pid: int
    ticks: int
    boot: str
    alive: bool = True
    hung: bool = False


@dataclass
class Machine:
    """What engine.py sees and does on one node."""

    name: str
    up: bool = True
    boots: int = 0
    ticks: int = 0
    engines: list[Engine] = field(default_factory=list)
    manifests: dict[str, Engine] = field(default_factory=dict)

    @property
    def boot(self) -> str:
        return f"{self.name}-boot{self.boots}"

    def living(self, replica: str) -> list[Engine]:
        return [one for one in self.engines if one.replica == replica and one.alive]

    def start(self, replica: str, attempt: int) -> tuple[Engine, bool]:
        for other in self.living(replica):
            if other.attempt != attempt:
                raise NodeError(f"attempt {other.attempt} still runs", code="older_attempt")
            return other, True
        manifest = self.manifests.get(replica)
        if manifest is not None and manifest.attempt > attempt:
            raise NodeError(f"at attempt {manifest.attempt} already", code="newer_attempt")
        if manifest is not None and manifest.attempt == attempt:
            raise NodeError("attempt ended", code="attempt_ended")
        self.ticks += 1
        # Few pids, so that they are used again.
        made = Engine(replica, attempt, 100 + self.ticks % 3, self.ticks, self.boot)
        self.engines.append(made)
        self.manifests[replica] = made
        return made, False

    def stop(self, replica: str, *, remove: bool) -> list[Engine]:
        ended = self.living(replica)
        for one in ended:
            one.alive = False
        if remove:
            self.manifests.pop(replica, None)
        return ended

    def list(self) -> Listing:
        entries = tuple(
            Listed(
                replica=one.replica,
                attempt=one.attempt,
                alive=one.alive,
                pid=one.pid,
                start_ticks=one.ticks,
                boot_id=one.boot,
                port=41000 + one.ticks % 1000,
                exit=None if one.alive else Exit(signal=9),
            )
            for one in self.manifests.values()
        )
        return Listing(boot_id=self.boot, now=0.0, replicas=entries)

    def reboot(self) -> None:
        self.boots += 1
        self.ticks = 0
        for one in self.engines:
            one.alive = False


class World:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = 1_700_000_000.0
        self.house = House()
        self.db = self.house.db
        self.machines = {name: Machine(name) for name in ("n1", "n2", "n3")}
        self.calm = False
        self.history: list[str] = []
        self.known: set[str] = set()
        """Every replica that was ever recorded."""
        self.busy: dict[str, Story] = {}
        self.looks: dict[str, Story] = {}
        self.looked_at: set[str] = set()
        self.look_now: set[str] = set()
        self.models = {name: model(name, want=self.random.randint(1, 3)) for name in ("a", "b")}
        self.house.fill([node(name, link=LinkState.UP) for name in self.machines], self.models.values(), [])
        self.size = self.random.choice([GIB // 2, GIB, 8 * GIB])

    # What the control plane does

    def write(self, work: Callable[[Tx], Any]) -> Any:
        self.db.conn.execute("BEGIN IMMEDIATE")
        try:
            result = work(Tx(self.db, self.now))
        except BaseException:
            self.db.conn.execute("ROLLBACK")
            raise
        self.db.conn.execute("COMMIT")
        self.known |= {one.id for one in replicas.every(self.db)}
        return result

    def snapshot(self) -> Snapshot:
        everyone = nodes.every(self.db)
        memory = {"total": self.size, "available": self.size}
        found = snapshot(
            *everyone,
            models=tuple(models.every(self.db)),
            replicas=tuple(replicas.every(self.db)),
            probes={one.id: probe(one.id, memory=memory) for one in everyone},
        )
        return found.model_copy(update={"at": self.now})

    def remote(self, name: str, effect: Callable[[Machine], Any]) -> Generator[None, None, Any]:
        """One call to a node. It may be lost before it had its effect, or after."""
        machine = self.machines[name]
        yield
        if not machine.up:
            raise Unreachable(f"{name} is down", code="link_down")
        chance = 1.0 if self.calm else self.random.random()
        if chance < 0.06:
            raise LinkLost("lost before it happened")
        result = effect(machine)
        if chance < 0.12:
            raise self.random.choice([LinkLost("lost after it happened"), TimedOut("no answer")])
        yield
        return result

    def launch(self, name: str) -> Story:
        """`loops.starting.launch`, step by step."""
        found = replicas.get(self.db, name)
        if found is None or found.state is not S.FETCHING:
            return
        where = found.lead.node
        try:
            yield from self.remote(where, lambda machine: None)  # the weights
            if found.lead.attempt:
                yield from self.remote(where, lambda machine: self.end(machine, name, remove=False))
        except (LinkLost, Unreachable, TimedOut) as exc:
            why = str(exc)
            self.write(lambda tx: move(tx, name, S.PLACED, why, next_try_at=tx.now + 2.0))
            return
        self.check_no_question_is_open(name)
        begun = self.write(lambda tx: starting._intend(tx, name, 1))
        if begun is None:
            return
        _, shard, intent = begun
        yield
        try:
            made, already = yield from self.remote(where, lambda machine: machine.start(name, shard.attempt))
        except NodeError as exc:
            why = str(exc)
            self.write(lambda tx: fail(tx, name, why))
            return
        except LlmgwError:
            self.look_now.add(where)
            return
        yield
        answer = Started(
            already=already, attempt=made.attempt, pid=made.pid, start_ticks=made.ticks, boot_id=made.boot, port=41000
        )
        self.write(lambda tx: starting._started(tx, name, shard, answer, intent))

    def stop(self, name: str) -> Story:
        """`loops.stopping.stop`, step by step."""
        found = replicas.get(self.db, name)
        if found is None or not found.state.going:
            return
        yield
        self.write(lambda tx: stopping._intend(tx, name, 1))
        yield
        try:
            yield from self.remote(found.lead.node, lambda machine: self.end(machine, name, remove=True))
        except LlmgwError:
            self.look_now.add(found.lead.node)
            return

        def done(tx: Tx) -> None:
            move(tx, name, S.STOPPED, "ended")
            intents.close_for(tx, name, "stopped")

        self.write(done)

    def look(self, name: str) -> Story:
        """`loops.observe`: the question, the answer as of some moment, and what it means by the time it arrives."""
        busy = set(self.busy)
        before = observe.marks(self.db)
        try:
            listing = yield from self.remote(name, lambda machine: machine.list())
        except LlmgwError:
            self.look_now.add(name)
            return
        known, old_news = self.write(lambda tx: observe._apply(tx, name, listing, busy | set(self.busy), before))
        self.look_now |= {name} if old_news else set()
        self.looked_at.add(name)
        strangers = unclaimed(name, listing, known, "c")
        self.say(f"looked at {name}, unclaimed {[one.replica for one in strangers]}")

    def decide(self) -> None:
        actions = reconcile(self.snapshot(), self.now).actions
        if actions:
            self.write(lambda tx: act._record(tx, actions))
        for action in actions:
            self.say(repr(action))
            if isinstance(action, Launch) and action.replica not in self.busy:
                self.busy[action.replica] = self.launch(action.replica)

    def go_on_with_stops(self) -> None:
        for one in replicas.every(self.db):
            where = one.lead.node
            up = nodes.get(self.db, where).link is LinkState.UP  # type: ignore[union-attr]
            if one.state.going and up and where in self.looked_at and one.id not in self.busy:
                self.busy[one.id] = self.stop(one.id)

    def prove(self) -> None:
        """`loops.health`: what answers is ready, what hangs is started anew."""
        for one in replicas.every(self.db):
            machine = self.machines[one.lead.node]
            if not (machine.up and one.wanted and one.state in (S.LOADING, S.READY)):
                continue
            running = [
                each for each in machine.living(one.id) if each.ticks == getattr(one.lead.process, "start_ticks", 0)
            ]
            if running and not running[0].hung and one.state is S.LOADING:
                self.write(lambda tx, one=one: health._ready(tx, one))
            elif running and running[0].hung:
                self.write(lambda tx, one=one: fail(tx, one.id, "it runs and does not answer"))
            elif not running:
                self.look_now.add(machine.name)

    def run(self, stories: dict[str, Story], name: str) -> None:
        try:
            next(stories[name])
        except StopIteration:
            stories.pop(name, None)

    # What happens to it

    def step(self) -> None:
        self.now += self.random.choice([0.1, 0.5, 1.0, 5.0])
        happen = self.random.choices(
            [
                self.decide,
                self.advance,
                self.observe,
                self.go_on_with_stops,
                self.prove,
                self.break_link,
                self.heal_link,
                self.kill_engine,
                self.hang_engine,
                self.reboot,
                self.kill_control_plane,
                self.wish,
                self.wait,
            ],
            [30, 150, 30, 20, 20, 3, 9, 5, 3, 1, 2, 3, 1],
        )[0]
        happen()
        self.check()

    def advance(self) -> None:
        """One story or one look, a step. Looks are slow: what they say may be old when it comes."""
        slow = self.looks if self.random.random() < 0.25 else self.busy
        stories = slow or self.busy or self.looks
        if stories:
            self.run(stories, self.random.choice(list(stories)))

    def observe(self) -> None:
        wanted = [
            name
            for name in self.machines
            if name not in self.looks and nodes.get(self.db, name).link is LinkState.UP  # type: ignore[union-attr]
        ]
        asked = [name for name in wanted if name in self.look_now] or wanted
        if asked:
            name = self.random.choice(asked)
            self.look_now.discard(name)
            self.looks[name] = self.look(name)

    def break_link(self) -> None:
        self.link(self.random.choice(list(self.machines)), up=False)

    def heal_link(self) -> None:
        if down := [name for name, machine in self.machines.items() if not machine.up]:
            self.link(self.random.choice(down), up=True)

    def link(self, name: str, up: bool) -> None:
        machine = self.machines[name]
        machine.up = up
        self.say(f"{machine.name} {'up' if machine.up else 'down'}")
        if machine.up:
            self.write(lambda tx: connect._up(tx, machine.name))
            self.look_now.add(machine.name)
        else:
            self.looked_at.discard(machine.name)
            self.write(lambda tx: connect._down(tx, machine.name, LinkStatus(up=False, since=self.now)))

    def some_engine(self) -> Engine | None:
        alive = [one for machine in self.machines.values() for one in machine.engines if one.alive]
        return self.random.choice(alive) if alive else None

    def kill_engine(self) -> None:
        if one := self.some_engine():
            one.alive = False
            self.say(f"{one.replica} attempt {one.attempt} dies")

    def hang_engine(self) -> None:
        if one := self.some_engine():
            one.hung = True

    def reboot(self) -> None:
        machine = self.random.choice(list(self.machines.values()))
        self.say(f"{machine.name} reboots")
        if machine.up:
            self.link(machine.name, up=False)
        machine.reboot()

    def kill_control_plane(self) -> None:
        self.say("the control plane is killed and starts again")
        self.busy.clear()
        self.looks.clear()
        self.looked_at.clear()
        self.write(restart.after_restart)
        for machine in self.machines.values():
            if machine.up:
                self.link(machine.name, up=True)

    def wish(self) -> None:
        name = self.random.choice(list(self.machines))
        kind = self.random.choice(["scale", "scale", "drain", "undrain", "undrain", "entry", "remove"])
        self.say(f"{kind} {name}")
        if kind in ("drain", "undrain"):
            drain = DrainState.DRAINING if kind == "drain" else DrainState.NONE
            self.write(lambda tx: nodes.change(tx, name, drain=drain))
            return
        chosen = self.random.choice(list(self.models))
        if kind == "remove" and self.random.random() < 0.3:
            self.write(lambda tx: models.remove(tx, chosen))
            return
        before = self.models[chosen]
        fields = {"scaling": {"min": self.random.choice([0, 1, 1, 2, 3])}}
        if kind == "entry":
            fields = {"scaling": {"min": before.scaling.min}, "context_length": self.random.choice([512, 1024])}
        self.models[chosen] = model(chosen, **{"context_length": before.context_length, **fields})
        self.write(lambda tx: models.put(tx, self.models[chosen]))

    def wait(self) -> None:
        self.now += 400.0

    # What must hold

    def end(self, machine: Machine, name: str, *, remove: bool) -> None:
        assert name in self.known, f"{name} is stopped and was never recorded"
        recorded = replicas.get(self.db, name)
        assert recorded is not None, f"{name} is stopped after it was forgotten"
        assert recorded.state in (S.STOPPING, S.FETCHING), f"{name} is stopped while it is {recorded.state}"
        machine.stop(name, remove=remove)

    def check_no_question_is_open(self, name: str) -> None:
        kinds = [one.kind for one in intents.open_ones(self.db) if one.replica == name]
        assert not kinds, f"{name} is launched while it is not known what became of {kinds}"

    def check(self) -> None:
        living: dict[str, list[Engine]] = {}
        for machine in self.machines.values():
            for one in machine.engines:
                if one.alive:
                    living.setdefault(one.replica, []).append(one)
        for name, alive in living.items():
            assert len(alive) == 1, f"{name} runs {len(alive)} times"
        for stored in replicas.every(self.db):
            assert len(stored.shards) == 1
            if stored.state is S.READY:
                assert stored.wanted
                assert stored.lead.process is not None

    # The end of all faults

    def settle(self) -> None:
        self.calm = True
        for machine in self.machines.values():
            self.link(machine.name, up=True)
            self.write(lambda tx, name=machine.name: self.end_drains(tx, name))
        for round_ in range(ROUNDS):
            self.now += 20.0
            for name in self.machines:
                if name not in self.looks:
                    self.looks[name] = self.look(name)
            for stories in (self.looks, self.busy):
                for name in list(stories):
                    while name in stories:
                        self.run(stories, name)
            self.check()
            self.decide()
            self.go_on_with_stops()
            for name in list(self.busy):
                while name in self.busy:
                    self.run(self.busy, name)
            self.prove()
            self.check()
            if self.at_rest():
                self.say(f"at rest after {round_ + 1} rounds")
                return
        raise AssertionError(f"it does not come to rest: {reconcile(self.snapshot(), self.now)}")

    def end_drains(self, tx: Tx, name: str) -> None:
        now = nodes.get(tx.db, name)
        if now is not None and now.drain is DrainState.DRAINED:
            nodes.change(tx, name, drain=DrainState.NONE)

    def at_rest(self) -> bool:
        if self.busy or reconcile(self.snapshot(), self.now).actions or intents.open_ones(self.db):
            return False
        stored = {one.id: one for one in replicas.every(self.db)}
        if any(not self.settled(one) for one in stored.values()):
            return False
        running = {one.replica for machine in self.machines.values() for one in machine.engines if one.alive}
        assert running <= set(stored), f"{running - set(stored)} run and nobody knows them"
        decision = reconcile(self.snapshot(), self.now)
        for status in decision.status:
            assert status.ready == status.wanted or status.reason, status
        return True

    def settled(self, one: Replica) -> bool:
        given_up = one.state is S.FAILED and one.next_try_at is None
        return one.wanted and (one.state is S.READY or given_up)

    def say(self, what: str) -> None:
        self.history.append(f"{self.now:.1f} {what}")


def seeds() -> list[int]:
    chosen = os.environ.get("LLMGW_WORLD_SEED")
    return [int(chosen)] if chosen else list(SEEDS)


@pytest.mark.parametrize("seed", seeds())
def test_the_world_stays_in_order_and_comes_to_rest(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    count_up(monkeypatch)
    world = World(seed)
    try:
        for _ in range(STEPS):
            world.step()
        world.settle()
    except BaseException as exc:
        exc.add_note(f"LLMGW_WORLD_SEED={seed}\n" + "\n".join(world.history[-60:]))
        raise


def test_the_worlds_do_something(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every kind of trouble happens in some of them, and most engines were started more than once."""
    count_up(monkeypatch)
    world = World(3)
    for _ in range(STEPS * 4):
        world.step()
    kinds = {row[0] for row in world.db.conn.execute("SELECT DISTINCT kind FROM events")}
    assert {"replica.state", "replica.failed", "replica.adopted", "node.link"} <= kinds
    assert sum(len(machine.engines) for machine in world.machines.values()) > 20
