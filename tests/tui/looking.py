"""Where on the dashboard the tests look."""

from __future__ import annotations

from textual.widgets import Static

from llmgw.tui.app import Dashboard
from llmgw.tui.widgets.banner import Banner
from llmgw.tui.widgets.nodes import Nodes
from llmgw.tui.widgets.replicas import Replicas
from tests.tui.plane import Plane


def dashboard(plane: Plane, *, every: float = 0.2) -> Dashboard:
    return Dashboard(plane, every=every)


def nodes(app) -> Nodes:
    return app._main.query_one(Nodes)


def replicas(app) -> Replicas:
    return app._main.query_one(Replicas)


def banner(app) -> Banner:
    return app._main.query_one(Banner)


def text_of(app) -> str:
    """What the sheet on top says; nothing while there is none."""
    return "".join(str(one.content) for one in app.screen.query("#text").results(Static))


def toasts(app) -> list[str]:
    return [one.message for one in app._notifications]
