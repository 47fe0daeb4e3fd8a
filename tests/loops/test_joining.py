"""The transaction of `node add`: the first of two wins, a changed key is trusted only when told, the story is kept."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from llmgw.clock import ManualClock
from llmgw.errors import Refused
from llmgw.loops.members import join
from llmgw.model.node import Address, Node, NodeState
from llmgw.model.requests import Join, Joined, Step
from llmgw.pki.sshkey import ensure_key, public_key
from llmgw.store import events, nodes
from llmgw.store.db import Store


@pytest_asyncio.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    made = Store(tmp_path / "state.db", ManualClock())
    await made.open()
    yield made
    await made.close()


@pytest.fixture
def keys(tmp_path: Path) -> list[str]:
    """Two host keys."""
    found = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir(mode=0o700)
        ensure_key(tmp_path / name)
        found.append(" ".join(public_key(tmp_path / name).split()[:2]))
    return found


def wish(key: str, **more: Any) -> Join:
    facts = {"machine_id": "m", "boot_id": "b", "hostname": "gpu1", "host_key": key, "by": "pid 1 of me on ctl"}
    return Join(**{"address": Address(host="10.0.0.1", user="root"), **facts, **more})


async def joined(store: Store, given: Join, name: str = "gpu1") -> Joined:
    return await store.write(lambda tx: join(tx, name, given))


async def test_the_first_of_two_wins_and_the_other_says_which(store: Store, keys: list[str]) -> None:
    first = await joined(store, wish(keys[0]))
    second = await joined(store, wish(keys[0], by="pid 2 of you on ctl"))
    assert (first.known, first.adding_by) == (False, None)
    assert (second.known, second.adding_by) == (True, "pid 1 of me on ctl")
    await store.write(lambda tx: nodes.change(tx, "gpu1", state=NodeState.READY, adding_by=None))
    later = await joined(store, wish(keys[0], by="pid 3 of you on ctl"))
    assert (later.known, later.adding_by) == (True, None)


async def test_one_machine_under_two_names_is_refused_with_both(store: Store, keys: list[str]) -> None:
    await joined(store, wish(keys[0], name="a"), "a")
    with pytest.raises(Refused, match="same machine as a") as caught:
        await joined(store, wish(keys[0], name="b"), "b")
    assert caught.value.code == "same_machine"


async def test_a_changed_key_is_taken_only_where_that_is_said(store: Store, keys: list[str]) -> None:
    await joined(store, wish(keys[0]))
    await store.write(lambda tx: nodes.change(tx, "gpu1", quarantined="its host key changed"))
    with pytest.raises(Refused) as caught:
        await joined(store, wish(keys[1]))
    assert caught.value.code == "host_key_changed"
    assert "llmgw node add root@10.0.0.1 --trust-key SHA256:" in caught.value.fix
    node = (await joined(store, wish(keys[1], trust_key=True, machine_id="new"))).node
    assert (node.host_key, node.quarantined, node.machine_id) == (keys[1], None, "new")
    assert [event.kind for event in await everything(store)].count("node.trust") == 1


async def test_a_changed_key_is_trusted_for_the_node_at_that_address_whatever_its_name(
    store: Store, keys: list[str]
) -> None:
    await joined(store, wish(keys[0], name="a"), "a")
    for trust, name in ((False, "gpu1"), (True, "b")):
        with pytest.raises(Refused):
            await joined(store, wish(keys[1], trust_key=trust, name="b" if trust else None, boot_id="b2"), name)
    again = await joined(store, wish(keys[1], trust_key=True, boot_id="b2"), "gpu1")
    assert (again.known, again.node.id, again.node.host_key) == (True, "a", keys[1])


async def test_another_account_of_a_machine_is_refused_and_changes_nothing(store: Store, keys: list[str]) -> None:
    await joined(store, wish(keys[0]))
    with pytest.raises(Refused) as caught:
        await joined(store, wish(keys[0], address=Address(host="10.0.0.1", user="other")))
    assert caught.value.code == "account_changed"
    assert (await store.read(lambda db: nodes.get(db, "gpu1"))).address.user == "root"


async def test_two_machines_behind_two_jump_hosts_may_have_one_address(store: Store, keys: list[str]) -> None:
    for number, key in enumerate(keys):
        address = Address(host="10.0.0.1", user="root", config_host=f"site{number}")
        about = {"machine_id": f"m{number}", "boot_id": f"b{number}", "name": f"n{number}"}
        assert not (await joined(store, wish(key, address=address, **about), f"n{number}")).known


async def test_another_address_is_another_machine_whatever_is_trusted(store: Store, keys: list[str]) -> None:
    await joined(store, wish(keys[0]))
    elsewhere = Address(host="10.0.0.2", user="root")
    with pytest.raises(Refused) as caught:
        await joined(store, wish(keys[1], trust_key=True, address=elsewhere, machine_id="x"))
    assert caught.value.code == "name_taken"


async def test_a_cordoned_node_stays_cordoned(store: Store, keys: list[str]) -> None:
    await joined(store, wish(keys[0]))
    await store.write(lambda tx: nodes.change(tx, "gpu1", cordoned=True))
    assert (await joined(store, wish(keys[0]))).node.cordoned


async def test_first_contact_is_told_in_the_events(store: Store, keys: list[str]) -> None:
    story = (Step(step="reach", message="it answers"), Step(step="key", message="left there"))
    await joined(store, wish(keys[0], story=story))
    told = [event.message for event in await everything(store) if event.kind == "node.step"]
    assert told == ["reach: it answers", "key: left there"]


async def everything(store: Store) -> list[Any]:
    return await store.read(lambda db: events.after(db, 0, limit=100))


async def test_a_node_from_before_has_nobody_adding_it(store: Store, keys: list[str]) -> None:
    node = Node(id="old", address=Address(host="h", user="u"), host_key=keys[0])
    await store.write(lambda tx: nodes.put(tx, node))
    assert (await store.read(lambda db: nodes.get(db, "old"))).adding_by is None
