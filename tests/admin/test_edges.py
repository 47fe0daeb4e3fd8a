"""Where the admin API listens, and how it describes itself."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from llmgw.admin.endpoints import ENDPOINTS
from llmgw.admin.openapi import document
from llmgw.admin.serve import tcp_listener, unix_listener
from llmgw.errors import Refused


def test_a_path_that_is_too_long_for_a_socket(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="107 bytes at most") as caught:
        unix_listener(tmp_path / ("x" * 120))
    assert caught.value.code == "socket"


def test_a_port_in_use_names_the_option() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(Refused, match=rf"Cannot listen on 127\.0\.0\.1:{port}: Address already in use") as caught:
            tcp_listener("127.0.0.1", port, "admin_listen")
    assert caught.value.code == "port_in_use"
    assert "admin_listen" in caught.value.fix
    assert caught.value.exit_status == 4


@pytest.mark.parametrize("host", ["203.0.113.1", "no.such.host.invalid", "::ffff:203.0.113.1"])
def test_an_address_that_is_not_here(host: str) -> None:
    with pytest.raises(Refused, match="Cannot listen on"):
        tcp_listener(host, 0, "admin_listen")


def test_openapi_lists_every_endpoint_and_every_reference_leads_somewhere() -> None:
    made = document("1.0")
    listed = {(method.upper(), path) for path, methods in made["paths"].items() for method in methods}
    assert listed == {(one.method, "/api/v1" + one.path.replace(":path", "")) for one in ENDPOINTS}
    text = json.dumps(made)
    schemas = made["components"]["schemas"]
    references = {piece.split('"')[0] for piece in text.split("#/components/schemas/")[1:]}
    assert references <= set(schemas)
    assert {"Snapshot", "Node", "Replica", "Model", "Event"} <= set(schemas)
    for path, methods in made["paths"].items():
        for method, operation in methods.items():
            names = {one["name"] for one in operation["parameters"] if one["in"] == "path"}
            assert names == {piece[1:-1] for piece in path.split("/") if piece.startswith("{")}, (method, path)
            assert operation["summary"]
            assert ("requestBody" in operation) == (
                path in ("/api/v1/nodes", "/api/v1/models", "/api/v1/keys") and method == "post"
            )
    assert made["info"]["version"] == "1.0"
