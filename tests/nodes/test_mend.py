"""Mending as the control plane does it: who is asked, how often, what is kept, and that no password is ever shown."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from llmgw.core.remedies import Remedy
from llmgw.errors import BadReply, NodeError, Refused
from llmgw.model.node import Address
from llmgw.model.secret import MASK, Secret
from llmgw.nodes.mend import TRIES, Mender, mend
from llmgw.nodes.replies import Mended
from llmgw.pki.sshkey import ensure_key, public_key
from llmgw.ssh.connection import connect
from llmgw.ssh.identity import Login
from llmgw.ssh.run import CommandRecord, mask
from tests.remote_scripts.account import ASKED, FREE, PASSWORD, TTY, an_account, needs_sudo
from tests.ssh.conftest import SSHD, start_sshd

LINGER = Remedy("linger", ("kills_processes",), "let processes live on", "sudo loginctl enable-linger anna", "asked")
TOOLS = Remedy(
    "install",
    ("fabric_tools_missing",),
    "install infiniband-diags",
    "sudo apt-get install infiniband-diags",
    "given",
    900.0,
    {"packages": ("infiniband-diags",)},
)
RIGHT = Secret("richtig")


class Node:
    """Its sudo wants a password, unless `wants` is None. What it was asked is in `calls`."""

    def __init__(self, wants: Secret | None = RIGHT) -> None:
        self.wants = wants
        self.calls: list[dict[str, Any]] = []

    async def run_script(
        self, name: str, args: Mapping[str, Any], *, deadline: float, on_event: Any = None, **more: Any
    ) -> dict[str, Any]:
        assert name == "privileged"
        assert deadline == args["seconds"] + 45
        self.calls.append(dict(args))
        if self.wants is not None and args["password"] is None:
            raise NodeError("sudo wants a password from anna", fix="Run on it: sudo x", code="sudo_password_needed")
        if self.wants is not None and args["password"] != self.wants:
            raise NodeError("sudo does not take this password for anna", fix="Try again", code="sudo_password_wrong")
        if on_event is not None:
            on_event({"state": "running", "detail": "Setting up"})
        return {"remedy": args["remedy"], "by": "sudo", "command": "x", "said": "ok", "seconds": 0.1}

    async def open_stream(self, *args: Any, **more: Any) -> Any:
        raise NotImplementedError


def asker(*answers: Secret | None) -> tuple[Callable[[Remedy, str], Any], list[str]]:
    left, said = list(answers), []

    async def ask(remedy: Remedy, why: str) -> Secret | None:
        said.append(why)
        return left.pop(0)

    return ask, said


async def test_what_needs_no_password_is_done_without_asking() -> None:
    node, events = Node(wants=None), []
    ask, said = asker()
    mended = await Mender(node, ask, on_event=events.append).mend(TOOLS)
    assert mended == Mended(remedy="install", by="sudo", command="x", said="ok", seconds=0.1)
    assert said == []
    assert events == [{"state": "running", "detail": "Setting up"}]
    assert node.calls == [{"remedy": "install", "packages": ("infiniband-diags",), "seconds": 900.0, "password": None}]


async def test_the_password_is_asked_for_once_and_kept_for_the_next_remedy() -> None:
    node = Node()
    ask, said = asker(RIGHT)
    mender = Mender(node, ask)
    await mender.mend(TOOLS)
    await mender.mend(LINGER)
    assert said == ["sudo wants a password from anna"]
    assert [call["password"] for call in node.calls] == [None, RIGHT, RIGHT]


async def test_a_wrong_one_is_asked_for_again_and_said_to_be_wrong() -> None:
    ask, said = asker(Secret("falsch"), RIGHT)
    await Mender(Node(), ask).mend(LINGER)
    assert said == ["sudo wants a password from anna", "sudo does not take this password for anna"]


async def test_it_is_asked_for_three_times_at_most() -> None:
    node = Node()
    ask, said = asker(*[Secret("falsch")] * 5)
    with pytest.raises(Refused) as caught:
        await Mender(node, ask).mend(LINGER)
    assert caught.value.code == "sudo_password_wrong"
    assert len(said) == TRIES
    assert len(node.calls) == TRIES + 1


@pytest.mark.parametrize("answers", [None, (None,)])
async def test_where_nobody_answers_it_is_refused_with_the_command(answers: tuple[None] | None) -> None:
    ask = asker(*answers)[0] if answers else None
    with pytest.raises(Refused) as caught:
        await Mender(Node(), ask).mend(LINGER)
    assert (caught.value.code, caught.value.exit_status) == ("sudo_password_needed", 4)
    assert caught.value.fix == "Run on it: sudo x"


async def test_what_sudo_refuses_is_not_asked_about_and_what_fails_is_the_nodes_error() -> None:
    class Other(Node):
        async def run_script(self, *args: Any, **more: Any) -> dict[str, Any]:
            raise self.error

    node = Other()
    ask, said = asker()
    node.error = NodeError("no", fix="f", code="sudo_refused", whose="anna")
    with pytest.raises(Refused) as refused:
        await Mender(node, ask).mend(LINGER)
    assert refused.value.data == {"whose": "anna"}
    node.error = NodeError("no", code="remedy_failed", output="…")
    with pytest.raises(NodeError) as failed:
        await Mender(node, ask).mend(LINGER)
    assert failed.value.data["output"] == "…"
    assert said == []


async def test_nonsense_is_no_answer() -> None:
    class Mad(Node):
        async def run_script(self, *args: Any, **more: Any) -> dict[str, Any]:
            return {"ok": True}

    with pytest.raises(BadReply):
        await mend(Mad(), LINGER)


async def test_the_password_is_masked_wherever_its_arguments_are_shown() -> None:
    node = Node()
    await mend(node, LINGER, password=RIGHT)
    (call,) = node.calls
    assert mask(call)["password"] == MASK
    assert "richtig" not in json.dumps(mask(call), ensure_ascii=False) + repr(call) + repr(Mender(node).__dict__)


@needs_sudo
@pytest.mark.skipif(not SSHD, reason="no sshd on this machine (openssh-server)")
async def test_over_a_real_connection_with_the_real_sudo(tmp_path: Path) -> None:
    """The login is not root's; loginctl is the machine's own, and may not know what to do here."""
    (home := tmp_path / "home").mkdir()
    key = ensure_key(home)
    records: list[CommandRecord] = []
    with an_account() as account:
        offers = f"/bin/echo {public_key(home)}"  # the account may not read where this test lives
        server = start_sshd(tmp_path / "sshd", home, AuthorizedKeysCommand=offers, AuthorizedKeysCommandUser="root")
        try:
            address = Address(host="127.0.0.1", port=server.port, user=account.name)
            login = Login(client_keys=(key,))
            node = await connect(address, login=login, host_key=server.host_key, node="n1", audit=records.append)
            account.may(ASKED, TTY)
            with pytest.raises(Refused) as caught:
                await mend(node, LINGER)
            assert caught.value.code == "sudo_password_needed"
            with pytest.raises(Refused) as caught:
                await mend(node, LINGER, password=Secret("falsch"))
            assert caught.value.code == "sudo_password_wrong"
            said = await _taken(node, Secret(PASSWORD))
            account.may(FREE, TTY)
            assert await _taken(node, None) == said
            assert said.startswith(("sudo", "remedy_failed: `loginctl"))
            await node.close()
        finally:
            server.stop()
            Path("/var/lib/systemd/linger", account.name).unlink(missing_ok=True)
    assert [record.args["password"] for record in records] == [None, MASK, MASK, None]
    assert PASSWORD not in repr(records)
    log = (tmp_path / "sshd" / "log").read_text()
    assert PASSWORD not in log
    assert "falsch" not in log


async def _taken(node: Any, password: Secret | None) -> str:
    """What loginctl said, by way of root: this machine may have no logind, or no loginctl."""
    if shutil.which("loginctl") is None:
        pytest.skip("no loginctl on this machine")
    try:
        return (await mend(node, LINGER, password=password)).by
    except NodeError as exc:
        return f"{exc.code}: {exc.message}"
