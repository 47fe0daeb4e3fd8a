"""An installed engine is looked at again: one whose files are gone is failed, to be installed again at once."""

from __future__ import annotations

from llmgw.engines.base import Build
from llmgw.errors import NodeError
from llmgw.model.engine import InstallState, NodeEngine
from llmgw.nodes.provision import recheck
from llmgw.nodes.replies import Installed

BUILD = Build(engine="sim", version="builtin", name="script", directory="abc")
ENTRY = NodeEngine(node="n", engine="sim", version="builtin", state=InstallState.INSTALLED, path="/r/engines/sim/abc")


class There:
    def __init__(self, found: Installed | NodeError) -> None:
        self._found = found

    async def install_check(self, build: Build) -> Installed:
        if isinstance(self._found, NodeError):
            raise self._found
        return self._found


async def test_one_that_runs_stays():
    there = There(Installed(installed=True, version_text="sim 2"))
    found = await recheck(there, ENTRY, BUILD, now=lambda: 7.0)  # type: ignore[arg-type]
    assert (found.state, found.checked_at, found.detail) == (InstallState.INSTALLED, 7.0, "sim 2")


async def test_one_that_is_gone_is_installed_again_at_once():
    there = There(Installed(installed=False, reason="no installed.json"))
    found = await recheck(there, ENTRY, BUILD, now=lambda: 7.0)  # type: ignore[arg-type]
    assert found.state is InstallState.FAILED
    assert "no installed.json" in found.detail
    assert found.next_try_at is None


async def test_one_that_does_not_run_any_more_says_why():
    there = There(NodeError("libgomp.so.1 is missing", code="missing_library"))
    found = await recheck(there, ENTRY, BUILD, now=lambda: 7.0)  # type: ignore[arg-type]
    assert (found.state, found.detail) == (InstallState.FAILED, "libgomp.so.1 is missing")
