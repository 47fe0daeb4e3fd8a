"""The story of an add, with a machine and an operator that do as they are told: what comes first, what ends it, what is
asked, and that nothing of a failed add stays."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from llmgw.core.fabric import Group
from llmgw.core.remedies import Remedy
from llmgw.errors import BadReply, LlmgwError, NodeError, Refused, Unreachable
from llmgw.model.node import Address, NodeOptions, Problem
from llmgw.model.probe import Owner
from llmgw.model.requests import Join, Whoami
from llmgw.model.secret import Secret
from llmgw.model.surroundings import Surroundings
from llmgw.nodes import examine, onboard
from llmgw.nodes.examine import Examined
from llmgw.nodes.onboard import Story
from llmgw.nodes.operator import Wish
from llmgw.ssh.identity import Login
from tests.core.findings.node import probe

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGozCD8FoXd1SfB3x6/Vh5/k0niEDUPyLSl9V0w2c2zX"
ME = Whoami(
    version="1", cluster_id="k", controller_id="me", term=1, public_key=f"{KEY} llmgw", key_line=f"restrict {KEY}",
    listen=None, admin_listen=None,
)  # fmt: skip
LINGER = Problem(code="kills_processes", severity="error", message="it ends processes at logout", fix="loginctl …")
DISK = Problem(code="low_disk", severity="error", message="full", fix="Free some.")
IB = {"hca": "mlx5_0", "port": 1, "state": "ACTIVE", "link_layer": "InfiniBand", "sm_lid": 1}


class Machine:
    """Answers scripts; `ran` is what it was asked. `outlives`: whether processes live on."""

    def __init__(self) -> None:
        self.ran: list[tuple[str, str]] = []
        self.outlives = True
        self.key_is_there = False
        self.host_key = KEY
        self.fails: dict[str, LlmgwError] = {}
        self.problems: list[list[Problem]] = []
        self.facts: dict[str, Any] = {}
        self.connects: list[LlmgwError | None] = []
        self.options: list[NodeOptions] = []
        self.name = "gpu1"
        self.says: dict[str, Any] = {}
        """What an action answers in place of the truth."""
        self.cut: asyncio.Event | None = None
        """A link on which the writing of the key hangs once it is done."""

    async def run_script(self, name: str, args: dict[str, Any], **_: Any) -> dict[str, Any]:
        action = str(args.get("action", args.get("remedy", "")))
        self.ran.append((name, action))
        if name in self.fails:
            raise self.fails[name]
        if action == "add" and self.cut is not None:
            self.cut.set()
            await asyncio.sleep(60)
        if action in self.says:
            return dict(self.says[action])
        path = "~/.ssh/authorized_keys"
        return {
            "outlive": {"pid": 7, "start_ticks": 1, "boot_id": "b"},
            "outlived": {"alive": self.outlives},
            "look": {"present": self.key_is_there, "path": path, "missing": ["/root/.ssh"]},
            "add": {"changed": not self.key_is_there, "path": path, "created": ["/root/.ssh"]},
            "remove": {"changed": True, "path": path},
        }.get(action, {"remedy": action, "by": "sudo", "command": "sudo it", "said": "done"})

    async def close(self) -> None:
        self.ran.append(("close", ""))


class Operator:
    """Says what it is told, and writes down what it was asked."""

    def __init__(self, *, goes_on: bool = False, mends: bool = False, fabric: str = "") -> None:
        self.told: list[tuple[str, str]] = []
        self.asked: list[str] = []
        self._goes_on, self._mends, self._fabric = goes_on, mends, fabric

    async def say(self, step: str, text: str, **more: Any) -> None:
        self.told.append((step, text))

    async def trust(self, host: str, key: str, fingerprint: str) -> bool:
        self.asked.append("trust")
        return True

    async def go_on(self, problems: Sequence[Problem]) -> bool:
        self.asked.append("go on")
        return self._goes_on

    async def mend(self, remedy: Remedy) -> bool:
        self.asked.append(f"mend {remedy.name}")
        return self._mends

    async def password(self, remedy: Remedy, why: str) -> Secret | None:
        self.asked.append("password")
        return None

    async def fabrics(self, found: Sequence[Group]) -> dict[str, tuple[str, ...]]:
        self.asked.append("fabrics")
        return {self._fabric: found[0].adapters} if self._fabric else {}

    def steps(self) -> list[str]:
        return list(dict.fromkeys(step for step, _ in self.told))


Add = Callable[..., Any]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine()

    async def resolve(name: str, **_: Any) -> Address:
        return Address(host=name, user="root")

    async def connect(address: Address, *, login: Login, host_key: str | None, **_: Any) -> Machine:
        made.ran.append(("connect", "own" if login.client_keys == (Path("own"),) else "operator"))
        if made.connects and (failure := made.connects.pop(0)) is not None:
            raise failure
        return made

    async def examine(way: Machine, options: NodeOptions, **_: Any) -> Examined:
        made.ran.append(("examine", ""))
        made.options.append(options)
        now = tuple(made.problems.pop(0) if made.problems else ())
        return Examined(probe(**made.facts), None, Surroundings(), None, (41000, 41999), extra=now)

    for name, stand_in in (("resolve", resolve), ("connect", connect), ("examine", examine)):
        monkeypatch.setattr(onboard, name, stand_in)
    monkeypatch.setattr(onboard, "operator_known_keys", lambda *_: [])
    monkeypatch.setattr(onboard, "operator_authorities", lambda *_: [])
    monkeypatch.setattr(onboard, "PAUSE", 0.0)
    return made


def story(operator: Operator, **wish: Any) -> Story:
    return Story(Wish("gpu1", **wish), ME, login=Login(), user=None, operator=operator)


async def keep(made: Join) -> Join:
    """What stands for the control plane: it takes every node."""
    return made


async def added(operator: Operator, **wish: Any) -> Any:
    return await story(operator, **wish).add(Path("own"), keep)


async def test_the_steps_in_their_order(machine: Machine) -> None:
    operator = Operator()
    join = await added(operator, by="me", labels={"zone": "a"})
    assert operator.steps() == ["reach", "identify", "preflight", "decide", "key", "prove"]
    assert machine.ran == [
        ("connect", "operator"), ("examine", ""), ("authorize", "look"), ("authorize", "add"), ("engine", "outlive"),
        ("close", ""),
        ("connect", "own"), ("engine", "outlived"), ("close", ""),
    ]  # fmt: skip
    assert (join.host_key, join.by, join.labels, join.created) == (KEY, "me", {"zone": "a"}, ("/root/.ssh",))
    assert [step.step for step in join.story] == [step for step, _ in operator.told]
    assert operator.asked == []


async def test_a_check_looks_and_does_nothing_else(machine: Machine) -> None:
    found = await story(Operator()).check()
    assert found.probe is not None
    assert machine.ran == [("connect", "operator"), ("examine", ""), ("close", "")]


async def test_an_error_ends_it_before_anything_is_written(machine: Machine) -> None:
    machine.problems = [[DISK]]
    with pytest.raises(Refused) as caught:
        await added(Operator())
    assert caught.value.code == "low_disk"
    assert caught.value.fix == "Free some. Or add --despite low_disk."
    assert ("authorize", "add") not in machine.ran


async def test_an_error_that_is_accepted_is_remembered(machine: Machine) -> None:
    machine.problems = [[DISK]]
    join = await added(Operator(goes_on=True))
    assert join.options.despite == ("low_disk",)


async def test_a_node_of_another_control_plane_is_not_touched(machine: Machine) -> None:
    machine.facts = {"owner": Owner(controller_id="other", term=3)}
    machine.problems = [[LINGER]] * 2
    with pytest.raises(Refused) as caught:
        await added(Operator(mends=True), mend=True)
    assert caught.value.code == "foreign_controller"
    assert [name for name, _ in machine.ran] == ["connect", "examine", "close"]


async def test_it_is_taken_over_when_that_is_said(machine: Machine) -> None:
    machine.facts = {"owner": Owner(controller_id="other", term=3)}
    join = await added(Operator(), take_over=True)
    assert (join.take_over, join.owner_term) == (True, 3)


async def test_what_is_mended_is_looked_at_again(machine: Machine) -> None:
    machine.problems = [[LINGER], []]
    operator = Operator(mends=True)
    await added(operator)
    assert operator.asked == ["mend linger"]
    assert [name for name, _ in machine.ran][:4] == ["connect", "examine", "privileged", "examine"]


async def test_nothing_is_mended_without_a_yes(machine: Machine) -> None:
    machine.problems = [[LINGER]]
    with pytest.raises(Refused, match="ends processes"):
        await added(Operator())
    assert "privileged" not in [name for name, _ in machine.ran]


async def test_mend_says_yes_to_all_of_it(machine: Machine) -> None:
    machine.problems = [[LINGER], []]
    operator = Operator()
    await added(operator, mend=True)
    assert operator.asked == []
    assert ("privileged", "linger") in machine.ran


async def test_a_remedy_that_fails_ends_nothing_by_itself(machine: Machine) -> None:
    machine.problems = [[LINGER], [LINGER]]
    machine.fails = {"privileged": NodeError("sudo is not for you", code="sudo_refused", fix="Ask root.")}
    operator = Operator(mends=True, goes_on=True)
    await added(operator)
    assert ("mend", "sudo is not for you Ask root.") in operator.told
    assert operator.asked == ["mend linger", "go on"]


async def test_fabrics_are_asked_for_once_and_judged_with(machine: Machine) -> None:
    machine.facts = {"fabric": [IB]}
    operator = Operator(fabric="ib0")
    join = await added(operator)
    assert join.options.fabrics == {"ib0": ("mlx5_0",)}
    assert len(machine.options) == 1, "a name needs no second look"
    declared = Operator(fabric="ib0")
    await added(declared, options=NodeOptions(fabrics={"mine": ("mlx5_0",)}))
    assert declared.asked == []


async def test_a_machine_that_ends_processes_gets_no_key(machine: Machine) -> None:
    machine.outlives = False
    operator = Operator()
    with pytest.raises(NodeError) as caught:
        await added(operator)
    assert caught.value.code == "processes_killed"
    assert "enable-linger" in caught.value.fix
    assert ("authorize", "remove") in machine.ran
    assert operator.told[-1] == ("key", "the control plane's key is taken away again")


async def test_a_key_that_was_there_before_stays(machine: Machine) -> None:
    machine.outlives, machine.key_is_there = False, True
    with pytest.raises(NodeError):
        await added(Operator())
    assert ("authorize", "remove") not in machine.ran


async def test_a_changed_host_key_is_not_called_a_refused_key(machine: Machine) -> None:
    machine.connects = [None, Refused("another key", code="host_key_changed")]
    with pytest.raises(Refused) as caught:
        await added(Operator())
    assert caught.value.code == "host_key_changed"


async def test_a_key_that_is_refused_says_so_and_is_taken_away(machine: Machine) -> None:
    machine.connects = [None, Refused("no", code="login_refused")]
    with pytest.raises(NodeError) as caught:
        await added(Operator())
    assert caught.value.code == "key_refused"
    assert ("authorize", "remove") in machine.ran


async def test_what_the_control_plane_refuses_leaves_nothing(machine: Machine) -> None:
    async def join(made: Join) -> Join:
        raise Refused("another machine has that name", code="name_taken")

    with pytest.raises(Refused):
        await story(Operator()).add(Path("own"), join)
    assert ("authorize", "remove") in machine.ran


async def test_nobody_is_asked_for_a_password_so_that_the_key_can_be_taken_away(machine: Machine) -> None:
    """The key itself still opens the door; where it never did, the operator's login has to."""

    async def join(made: Join) -> Join:
        raise Refused("another machine has that name", code="name_taken")

    with pytest.raises(Refused):
        await story(Operator()).add(Path("own"), join)
    assert [what for name, what in machine.ran if name == "connect"] == ["operator", "own", "own"]
    assert machine.ran[-2:] == [("authorize", "remove"), ("close", "")]
    machine.ran.clear()
    refusal = Refused("no", code="login_refused")
    machine.connects = [None, refusal, refusal, None]
    with pytest.raises(NodeError):
        await added(Operator())
    assert [what for name, what in machine.ran if name == "connect"] == ["operator", "own", "own", "operator"]


async def test_the_line_of_a_machine_that_is_a_node_by_another_name_stays(machine: Machine) -> None:
    async def join(made: Join) -> Join:
        raise Refused("it is the same machine as gpu1", code="same_machine")

    with pytest.raises(Refused):
        await story(Operator()).add(Path("own"), join)
    assert ("authorize", "remove") not in machine.ran


async def test_an_interrupted_add_leaves_nothing(machine: Machine) -> None:
    async def join(made: Join) -> Join:
        await asyncio.sleep(60)
        return made

    adding = asyncio.create_task(story(Operator()).add(Path("own"), join))
    async with asyncio.timeout(5):
        while ("engine", "outlived") not in machine.ran:
            await asyncio.sleep(0)
    await asyncio.sleep(0)
    adding.cancel()
    with pytest.raises(asyncio.CancelledError):
        await adding
    assert ("authorize", "remove") in machine.ran


async def test_an_add_that_is_interrupted_while_the_key_is_written_takes_it_away(machine: Machine) -> None:
    machine.cut = asyncio.Event()
    adding = asyncio.create_task(added(Operator()))
    async with asyncio.timeout(5):
        await machine.cut.wait()
    adding.cancel()
    with pytest.raises(asyncio.CancelledError):
        await adding
    assert ("authorize", "remove") in machine.ran


@pytest.mark.parametrize(
    ("action", "reply"),
    [
        ("look", {}),
        ("look", {"present": "perhaps", "path": 5}),
        ("add", {"changed": "no", "path": 5, "created": 7}),
        ("add", {}),
        ("outlive", {}),
        ("outlive", {"pid": "x"}),
        ("outlived", {"alive": None}),
    ],
)
async def test_a_reply_that_is_none_ends_the_add_and_leaves_nothing(
    machine: Machine, action: str, reply: dict[str, Any]
) -> None:
    machine.says[action] = reply
    with pytest.raises(BadReply, match="answered with something that is no"):
        await added(Operator())
    assert (("authorize", "remove") in machine.ran) is (action != "look")


async def test_a_namesake_is_refused_before_anything_is_written(machine: Machine) -> None:
    there = [examine.Machine(id="gpu01", machine_id="m" * 32, boot_id="b2", host_key="ssh-ed25519 AAAAother")]
    with pytest.raises(Refused) as caught:
        await story(Operator()).add(Path("own"), keep, there)
    assert caught.value.code == "name_taken"
    assert not [one for one in machine.ran if one[0] == "authorize"]
    machine.ran.clear()
    await story(Operator()).add(Path("own"), keep, [there[0]._replace(host_key=KEY)])
    assert ("authorize", "add") in machine.ran


async def test_without_a_key_it_comes_with_the_operators(machine: Machine) -> None:
    join = await added(Operator(), options=NodeOptions(own_key=False))
    assert not join.options.own_key
    assert ("authorize", "add") not in machine.ran
    assert [what for name, what in machine.ran if name == "connect"] == ["operator", "operator"]


CLOSED = Unreachable("nothing listens at port 22 of gpu1.", code="port_closed")


async def test_a_server_that_never_answered_is_not_waited_for(machine: Machine) -> None:
    machine.connects = [CLOSED]
    with pytest.raises(Unreachable):
        await added(Operator())


async def test_it_is_waited_for_when_that_is_said_and_once_it_had_answered(machine: Machine) -> None:
    machine.connects = [CLOSED, CLOSED, None, CLOSED, None]
    operator = Operator()
    await added(operator, wait=30.0)
    assert sum("Waiting for it" in text for _, text in operator.told) == 2
    machine.connects = [None, CLOSED, None]
    await added(Operator())


async def test_what_no_waiting_mends_is_not_waited_for(machine: Machine) -> None:
    machine.connects = [Unreachable("unknown", code="unknown_host")]
    async with asyncio.timeout(5):
        with pytest.raises(Unreachable):
            await added(Operator(), wait=300.0)
