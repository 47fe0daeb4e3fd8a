"""The admin app on a real unix socket and a real TCP port, before a control that remembers what it is asked."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import pytest_asyncio

from llmgw.admin.app import app
from llmgw.admin.client import AdminClient
from llmgw.admin.feed import EventFeed
from llmgw.admin.serve import serve, tcp_listener, unix_listener
from llmgw.config.home import Home
from llmgw.model.catalog import Model
from llmgw.model.event import Audit, Event
from llmgw.model.key import ApiKey
from llmgw.model.node import Address, Node
from llmgw.model.requests import (
    Checked,
    Join,
    Joined,
    KeyList,
    Logs,
    MadeKey,
    NewKey,
    NodeDetail,
    Removal,
    Said,
    Whoami,
)
from llmgw.model.secret import Secret
from llmgw.model.snapshot import Snapshot

TOKEN = Secret("llmgw-admin-token")
NODE = Node(id="n1", address=Address(host="n1", user="root"), host_key="")


class Control:
    """Answers everything with something plausible; `asked` holds what was asked for; `fails` is raised instead."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.fails: Exception | None = None
        self.stored: list[Event] = []

    def _asked(self, *what: Any) -> None:
        self.asked.append(what)
        if self.fails is not None:
            raise self.fails

    async def whoami(self) -> Whoami:
        self._asked("whoami")
        return Whoami(
            version="1",
            cluster_id="c",
            controller_id="k",
            term=3,
            public_key="p",
            key_line="l",
            listen=None,
            admin_listen=None,
        )

    async def snapshot(self) -> Snapshot:
        self._asked("snapshot")
        return Snapshot(at=5.0, nodes=(NODE,))

    async def join(self, wish: Join) -> Joined:
        self._asked("join", wish)
        return Joined(node=NODE, known=False, after_event=7)

    async def node(self, name: str) -> NodeDetail:
        self._asked("node", name)
        return NodeDetail(node=NODE, engines=(), probe={"schema": 1})

    async def probe(self, name: str) -> NodeDetail:
        self._asked("probe", name)
        return NodeDetail(node=NODE, engines=(), probe=None)

    async def check(self, name: str) -> Checked:
        self._asked("check", name)
        return Checked(node=name, problems=())

    async def cordon(self, name: str) -> Said:
        self._asked("cordon", name)
        return Said(message="done")

    async def uncordon(self, name: str) -> Said:
        self._asked("uncordon", name)
        return Said(message="done", changed=False)

    async def drain(self, name: str) -> Said:
        self._asked("drain", name)
        return Said(message="done")

    async def undrain(self, name: str) -> Said:
        self._asked("undrain", name)
        return Said(message="done")

    async def remove(self, name: str, *, purge: bool, force: bool) -> Removal:
        self._asked("remove", name, purge, force)
        return Removal(message="gone", removed=("/a",))

    async def add_model(self, model: Model) -> Said:
        self._asked("add_model", model)
        return Said(message="added")

    async def remove_model(self, name: str) -> Said:
        self._asked("remove_model", name)
        return Said(message="gone")

    async def create_key(self, wish: NewKey) -> MadeKey:
        self._asked("create_key", wish)
        return MadeKey(key=ApiKey(name=wish.name, hash="h", hint="sk"), secret="sk-llmgw-x")

    async def revoke_key(self, name: str) -> Said:
        self._asked("revoke_key", name)
        return Said(message="revoked")

    async def keys(self) -> KeyList:
        self._asked("keys")
        return KeyList(keys=(ApiKey(name="k", hash="h", hint="sk"),))

    async def logs(self, replica: str, *, lines: int = 200) -> Logs:
        self._asked("logs", replica, lines)
        return Logs(replica=replica, lines=("one", "two"))

    async def events(self, *, after: int | None, limit: int, node: str | None) -> list[Event]:
        self._asked("events", after, limit, node)
        found = [event for event in self.stored if node in (None, event.node)]
        if after is None:
            return found[-limit:]
        return [event for event in found if event.id > after][:limit]

    async def audit(self, *, limit: int, node: str | None) -> list[Audit]:
        self._asked("audit", limit, node)
        return [Audit(id=1, at=1.0, node="n1", command="probe.py")]


@dataclass
class Plane:
    home: Home
    control: Control
    feed: EventFeed
    client: AdminClient
    url: str
    told: int = 0
    tokens: list[str] = field(default_factory=list)

    def happen(self, *messages: str, node: str | None = None) -> None:
        for message in messages:
            self.told += 1
            self.control.stored.append(Event(id=self.told, at=float(self.told), kind="k", message=message, node=node))
        self.feed.tell(self.control.stored[-len(messages) :])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Plane]:
    home, control, feed = Home(tmp_path_factory.mktemp("home")), Control(), EventFeed()
    over_unix = app(control, feed, metrics=lambda: "llmgw_up 1\n", token=None)
    over_tcp = app(control, feed, metrics=lambda: "llmgw_up 1\n", token=TOKEN)
    unix = await serve(over_unix, unix_listener(home.socket))
    tcp = await serve(over_tcp, tcp_listener("127.0.0.1", 0, "admin_listen"))
    client = AdminClient(home, url=None)
    yield Plane(home, control, feed, client, f"http://127.0.0.1:{tcp.listener.getsockname()[1]}")
    await client.close()
    await tcp.stop()
    await unix.stop()


@pytest.fixture
def plane(served: Plane) -> Plane:
    """The same servers for every test, with nothing asked, failed or happened yet."""
    served.control.asked, served.control.fails, served.control.stored, served.told = [], None, [], 0
    return served
