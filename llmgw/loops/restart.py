"""What a start means for what is recorded: everything that ran is out of sight until it has been looked at."""

from __future__ import annotations

from llmgw.loops.changes import S
from llmgw.model.node import LinkState
from llmgw.store import nodes, replicas
from llmgw.store.db import Tx

_RAN = (S.LOADING, S.READY)


def after_restart(tx: Tx) -> None:
    """No event is told of this: nothing has happened to the engines, we have only not seen them yet.

    `starting` and `stopping` stay: their open intents are questions that the first look at the node answers.
    """
    for node in nodes.every(tx.db):
        nodes.change(tx, node.id, link=LinkState.DOWN, link_since=tx.now, link_error=None)
    for replica in replicas.every(tx.db):
        if replica.state in _RAN:
            replicas.change(tx, replica.id, state=S.LOST, reason="not looked at since the control plane started")
        elif replica.state is S.FETCHING:
            replicas.change(tx, replica.id, state=S.PLACED, reason="the control plane started anew")
