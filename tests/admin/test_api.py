"""The admin API from both ends: what each endpoint asks for, who may ask, what comes back when something fails."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from llmgw import errors
from llmgw.admin.app import MAX_BODY, app
from llmgw.admin.client import AdminClient, part
from llmgw.admin.endpoints import ENDPOINTS, MAX_LIST
from llmgw.admin.serve import serve, unix_listener
from llmgw.config.home import Home
from llmgw.errors import LlmgwError, Refused, Unreachable
from llmgw.model.catalog import Model
from llmgw.model.node import Address
from llmgw.model.requests import (
    AuditList,
    Checked,
    EventList,
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
from llmgw.model.snapshot import Snapshot

from .conftest import NODE, TOKEN, Plane

pytestmark = pytest.mark.asyncio(loop_scope="module")
MODEL = Model.model_validate({"name": "m", "source": "sim:", "profiles": [{"name": "p", "engine": "sim"}]})
JOIN = Join(address=Address(host="h", user="u", port=2222), host_key="ssh-ed25519 A", labels={"a": "b"})
KEY = NewKey(name="k", models=("m",))

CALLS: list[tuple[str, str, type, Any, dict[str, Any], tuple[Any, ...]]] = [
    ("GET", "/whoami", Whoami, None, {}, ("whoami",)),
    ("GET", "/snapshot", Snapshot, None, {}, ("snapshot",)),
    ("POST", "/nodes", Joined, JOIN, {}, ("join", JOIN)),
    ("GET", "/nodes/n1", NodeDetail, None, {}, ("node", "n1")),
    ("DELETE", "/nodes/n1", Removal, None, {}, ("remove", "n1", False, False)),
    ("DELETE", "/nodes/n1", Removal, None, {"purge": "true", "force": "1"}, ("remove", "n1", True, True)),
    ("DELETE", "/nodes/n1", Removal, None, {"purge": "no"}, ("remove", "n1", False, False)),
    ("POST", "/nodes/n1/probe", NodeDetail, None, {}, ("probe", "n1")),
    ("POST", "/nodes/n1/check", Checked, None, {}, ("check", "n1")),
    ("POST", "/nodes/n1/cordon", Said, None, {}, ("cordon", "n1")),
    ("POST", "/nodes/n1/uncordon", Said, None, {}, ("uncordon", "n1")),
    ("POST", "/nodes/n1/drain", Said, None, {}, ("drain", "n1")),
    ("POST", "/nodes/n1/undrain", Said, None, {}, ("undrain", "n1")),
    ("POST", "/models", Said, MODEL, {}, ("add_model", MODEL)),
    ("DELETE", f"/models/{part('Qwen/Qwen2.5:x@y')}", Said, None, {}, ("remove_model", "Qwen/Qwen2.5:x@y")),
    ("GET", "/replicas/m-1/logs", Logs, None, {"lines": 5}, ("logs", "m-1", 5)),
    ("GET", "/replicas/m-1/logs", Logs, None, {"lines": 10**9}, ("logs", "m-1", MAX_LIST)),
    ("GET", "/events", EventList, None, {}, ("events", None, 100, None)),
    ("GET", "/events", EventList, None, {"after": 0, "limit": 5, "node": "n1"}, ("events", 0, 5, "n1")),
    ("GET", "/audit", AuditList, None, {"limit": 10**30}, ("audit", MAX_LIST, None)),
    ("GET", "/keys", KeyList, None, {}, ("keys",)),
    ("POST", "/keys", MadeKey, KEY, {}, ("create_key", KEY)),
    ("DELETE", "/keys/k", Said, None, {}, ("revoke_key", "k")),
]


@pytest.mark.parametrize(("method", "path", "gives", "body", "query", "asked"), CALLS)
async def test_every_endpoint_asks_the_control_and_gives_its_record(
    plane: Plane, method: str, path: str, gives: type, body: Any, query: dict[str, Any], asked: tuple[Any, ...]
) -> None:
    found = await plane.client.call(method, path, gives, body=body, query=query)
    assert isinstance(found, gives)
    assert plane.control.asked == [asked]


async def test_no_endpoint_is_left_out_of_that_table() -> None:
    def shape(path: str) -> str:
        return "/".join(
            "*" if index in (1,) and index < len(path.split("/")) else piece
            for index, piece in enumerate(path.split("/")[1:])
        )

    assert {(method, shape(path)) for method, path, *_ in CALLS} == {(one.method, shape(one.path)) for one in ENDPOINTS}


async def test_records_come_back_whole(plane: Plane) -> None:
    snapshot = await plane.client.get("/snapshot", Snapshot)
    assert snapshot == Snapshot(at=5.0, nodes=(NODE,))
    made = await plane.client.post("/keys", MadeKey, KEY)
    assert made.secret == "sk-llmgw-x"


# Who may ask


@pytest.mark.parametrize(
    ("header", "status"),
    [
        (None, 401),
        ("", 401),
        ("Bearer", 401),
        ("Bearer wrong", 401),
        ("Basic " + TOKEN.reveal(), 401),
        (TOKEN.reveal(), 401),
        ("Bearer " + TOKEN.reveal() + "x", 401),
        ("Bearer " + TOKEN.reveal(), 200),
        ("bearer " + TOKEN.reveal(), 200),
    ],
)
async def test_over_tcp_only_with_the_token(plane: Plane, header: str | None, status: int) -> None:
    headers = {} if header is None else {"authorization": header}
    for path in ("/api/v1/snapshot", "/metrics", "/api/v1/events"):
        async with aiohttp.ClientSession() as http, http.get(plane.url + path, headers=headers) as answer:
            assert answer.status == status, path
            if status == 401:
                error = (await answer.json())["error"]
                assert error["code"] == "unauthorized"
                assert TOKEN.reveal() not in json.dumps(error)
    assert status == 200 or plane.control.asked == []


async def test_a_token_of_odd_bytes_is_a_wrong_one(plane: Plane) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", int(plane.url.rpartition(":")[2]))
    writer.write(
        b"GET /api/v1/snapshot HTTP/1.1\r\nhost: x\r\nauthorization: Bearer \xff\xe9\r\nconnection: close\r\n\r\n"
    )
    assert (await reader.readline()).split()[1] == b"401"
    writer.close()


async def test_the_token_of_the_environment_is_sent(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    for token, fine in ((TOKEN.reveal(), True), ("wrong", False)):
        monkeypatch.setenv("LLMGW_ADMIN_TOKEN", token)
        client = AdminClient(plane.home, url=plane.url + "/")
        try:
            if fine:
                assert (await client.get("/whoami", Whoami)).term == 3
            else:
                with pytest.raises(Refused, match="The admin token is missing or wrong"):
                    await client.get("/whoami", Whoami)
        finally:
            await client.close()


async def test_openapi_and_metrics(plane: Plane) -> None:
    async with aiohttp.ClientSession() as http:
        async with http.get(plane.url + "/api/v1/openapi.json") as answer:
            assert (await answer.json())["openapi"] == "3.1.0"
        async with http.get(plane.url + "/metrics", headers={"authorization": "Bearer " + TOKEN.reveal()}) as answer:
            assert await answer.text() == "llmgw_up 1\n"
            assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")


# What fails

KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, LlmgwError)]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
async def test_an_error_comes_out_of_the_client_as_it_went_into_the_control(
    plane: Plane, kind: type[LlmgwError]
) -> None:
    plane.control.fails = kind("It failed: «why».", fix="Do this.", code="special")
    with pytest.raises(LlmgwError) as caught:
        await plane.client.post("/nodes/n1/drain", Said)
    error = caught.value
    assert (error.message, error.fix, error.code) == ("It failed: «why».", "Do this.", "special")
    assert error.exit_status == kind.exit_status
    async with aiohttp.ClientSession() as http:
        headers = {"authorization": "Bearer " + TOKEN.reveal()}
        async with http.post(plane.url + "/api/v1/nodes/n1/drain", headers=headers) as answer:
            assert answer.status == kind.http_status


async def test_a_crash_is_told_without_its_details(plane: Plane) -> None:
    plane.control.fails = RuntimeError("secret sk-llmgw-abc")
    with pytest.raises(LlmgwError, match=r"The control plane failed at this: RuntimeError\. Its log says more\."):
        await plane.client.get("/snapshot", Snapshot)


async def post(plane: Plane, path: str, data: bytes) -> tuple[int, dict[str, Any]]:
    headers = {"authorization": "Bearer " + TOKEN.reveal()}
    async with aiohttp.ClientSession() as http, http.post(plane.url + path, data=data, headers=headers) as answer:
        return answer.status, (await answer.json())["error"]


@pytest.mark.parametrize(
    ("path", "data", "said"),
    [
        ("/api/v1/models", b"{", "The request: Invalid JSON"),
        ("/api/v1/models", b"", "The request: Invalid JSON"),
        ("/api/v1/models", b"[]", "The request: Input should be an object"),
        ("/api/v1/models", b"\xff\xfe", "The request: Invalid JSON"),
        ("/api/v1/models", b"{}", "name: Field required."),
        ("/api/v1/keys", b'{"name": "Not A Name"}', "name: 'Not A Name' is not a name"),
        ("/api/v1/keys", b'{"name": "k", "admin": true}', "admin: Extra inputs are not permitted."),
        ("/api/v1/nodes", b'{"address": {"host": "h", "user": "u", "port": 0}}', "address.port: Input should be"),
        ("/api/v1/models", b"[" * 100_000, "The request: Invalid JSON"),
        ("/api/v1/keys", b'{"name": ' + b"9" * 5000 + b"}", "The request: Invalid JSON: number out of range"),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_a_body_that_makes_no_sense(plane: Plane, path: str, data: bytes, said: str) -> None:
    status, error = await post(plane, path, data)
    assert status == 400
    assert error["message"].startswith(said)
    assert error["exit_status"] == 2
    assert plane.control.asked == []


async def test_a_body_that_is_too_large(plane: Plane) -> None:
    status, error = await post(plane, "/api/v1/models", b" " * (MAX_BODY + 1))
    assert (status, error["message"]) == (400, "The request is larger than 1 MiB.")


@pytest.mark.parametrize("query", ["after=x", "after=-1", "limit=1.5", "limit="])
async def test_a_number_that_is_none(plane: Plane, query: str) -> None:
    with pytest.raises(errors.UsageError, match="is not a whole number"):
        await plane.client.get("/events?" + query, EventList)


@pytest.mark.parametrize(("method", "path", "status"), [("GET", "/nowhere", 404), ("PUT", "/models", 405)])
async def test_a_path_that_is_not_there(plane: Plane, method: str, path: str, status: int) -> None:
    with pytest.raises(errors.NotFound) as caught:
        await plane.client.call(method, path, Said)
    assert caught.value.message == f"There is no {method} /api/v1{path} here."
    assert "openapi.json" in caught.value.fix


async def test_no_server(tmp_path: Path) -> None:
    client = AdminClient(Home(tmp_path), url=None)
    with pytest.raises(Unreachable, match="Start it with `llmgw server run`"):
        await client.get("/whoami", Whoami)
    with pytest.raises(Unreachable):
        async for _ in client.events():
            pass
    await client.close()


# Events


async def follow(client: AdminClient, count: int, **query: Any) -> list[str]:
    found = []
    async for event in client.events(**query):
        found.append(event.message)
        if len(found) == count:
            break
    return found


async def test_a_stream_goes_on_from_where_it_is_asked_to(plane: Plane) -> None:
    plane.happen("one", "two", "three")
    assert await follow(plane.client, 2, after=1) == ["two", "three"]


async def test_a_stream_without_a_place_begins_now(plane: Plane) -> None:
    plane.happen("old")
    reading = asyncio.create_task(follow(plane.client, 2))
    while ("events", 1, 500, None) not in plane.control.asked:
        await asyncio.sleep(0.001)
    plane.happen("new")
    plane.happen("newer")
    assert await reading == ["new", "newer"]


async def test_a_stream_of_one_node(plane: Plane) -> None:
    plane.happen("mine", node="n1")
    plane.happen("theirs", node="n2")
    plane.happen("mine too", node="n1")
    assert await follow(plane.client, 2, after=0, node="n1") == ["mine", "mine too"]


async def test_a_stream_that_broke_is_resumed_by_its_last_event(plane: Plane) -> None:
    plane.happen("one", "two\nlines: data", "three")
    headers = {
        "authorization": "Bearer " + TOKEN.reveal(),
        "accept": "text/event-stream",
        "last-event-id": "1",
    }
    url = plane.url + "/api/v1/events?after=0"
    async with aiohttp.ClientSession() as http, http.get(url, headers=headers) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["cache-control"] == "no-cache"
        lines = [await answer.content.readline() for _ in range(8)]
    assert lines[:2] == [b": llmgw events\n", b"\n"]
    assert lines[2:4] == [b"id: 2\n", b"event: k\n"]
    assert json.loads(lines[4].removeprefix(b"data: "))["message"] == "two\nlines: data"
    assert lines[6] == b"id: 3\n"


async def test_a_stream_survives_silence(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llmgw.admin.app.PING_EVERY", 0.01)
    reading = asyncio.create_task(follow(plane.client, 1))
    while plane.control.asked.count(("events", 0, 500, None)) < 3:
        await asyncio.sleep(0.001)
    plane.happen("at last")
    assert await reading == ["at last"]


# Listeners


async def test_the_socket_is_its_owners_alone_and_what_a_dead_process_left_is_replaced(plane: Plane) -> None:
    assert plane.home.socket.stat().st_mode & 0o777 == 0o600
    listener = unix_listener(plane.home.socket)
    assert plane.home.socket.stat().st_mode & 0o777 == 0o600
    listener.close()


async def test_stopping_ends_open_streams(plane: Plane, tmp_path: Path) -> None:
    home = Home(tmp_path)
    served = await serve(app(plane.control, plane.feed, metrics=str, token=None), unix_listener(home.socket))
    client = AdminClient(home, url=None)
    reading = asyncio.create_task(follow(client, 1))
    while ("events", 0, 500, None) not in plane.control.asked:
        await asyncio.sleep(0.001)
    await served.stop()
    assert [type(one) for one in await asyncio.gather(reading, return_exceptions=True)] == [Unreachable]
    await client.close()
