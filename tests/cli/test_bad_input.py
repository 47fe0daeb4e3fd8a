"""Each bad input has its own sentence and exit status, and loses nothing."""

from __future__ import annotations

import json
import socket
import sqlite3
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Run
from tests.fleet.plane import Plane, sim


def config(home: Path, text: str) -> None:
    home.mkdir(mode=0o700)
    (home / "llmgw.yaml").write_text(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("listen: 127.0.0.1:0\nlisten_adress: x\n", "llmgw.yaml:2: listen_adress: unknown key. Did you mean"),
        ("gateway:\n  queue: many\n", "llmgw.yaml:2: gateway.queue:"),
        ("probe_interval: soon\n", "'soon' is not a duration"),
        ("listen: here\n", "'here' is not an address to listen on"),
        ("engine_ports: 41000\n", "llmgw.yaml:1: engine_ports:"),
        ("a: [\n", "not YAML"),
        ("- a\n", "expected keys and values, found list"),
    ],
    ids=["unknown key", "wrong type", "duration", "listen", "ports", "not yaml", "a list"],
)
def test_configuration(llmgw: Run, home: Path, text: str, words: str):
    config(home, text)
    done = llmgw("server", "run")
    assert done.returncode == 2
    assert words in done.stderr
    assert not (home / "state.db").exists()


def test_configuration_that_is_not_there(llmgw: Run, tmp_path: Path):
    done = llmgw("server", "run", "--config", str(tmp_path / "missing.yaml"))
    assert done.returncode == 2
    assert "does not exist" in done.stderr


def test_configuration_that_cannot_be_read(llmgw: Run, tmp_path: Path):
    done = llmgw("server", "run", "--config", str(tmp_path))
    assert done.returncode == 2
    assert "cannot be read" in done.stderr


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ("name: Bad Name\nsource: 'sim:'\nprofiles: [{name: a, engine: sim}]\n", "is not a name"),
        ("name: a\nsource: 'sim:'\nprofiles: []\n", "profiles"),
        ("name: a\nsource: 'sim:'\n", "profiles: is missing"),
        ("name: a\nsource: 'sim:'\nprofiles: [{name: a, engine: vvllm}]\n", "there is no engine 'vvllm'"),
        ("name: a\nsource: ftp://x\nprofiles: [{name: a, engine: sim}]\n", "is no source of weights"),
        ("name: a\nsource: http://example.org/x\nprofiles: [{name: a, engine: sim}]\n", "is not encrypted"),
        ("name: a\nsource: 'sim:'\nprofiles: [{name: a, engine: llamacpp}]\n", "needs a .gguf file"),
        ("name: a\nsource: 'sim:'\ntask: rerank\nprofiles: [{name: a, engine: sim}]\n", "sim does not do rerank"),
        ("name: a\nsource: 'sim:'\nprofiles: [{name: a, engine: sim, args: [--port, 1]}]\n", "set by llmgw itself"),
        ("name: a\nsource: 'sim:'\nscaling: {min: 3, max: 1}\nprofiles: [{name: a, engine: sim}]\n", "below min"),
        (
            "name: a\nsource: 'sim:'\nrouting: prefix\nprofiles: [{name: a, engine: sim}]\n",
            "routing: prefix is",
        ),
        ("name: a\nsource: 'sim:'\nscaling: {max: 3}\nprofiles: [{name: a, engine: sim}]\n", "scaling.max: scaling by"),
        ("name: a\nsource: 'sim:'\nprofile: []\nprofiles: [{name: a, engine: sim}]\n", "Did you mean 'profiles'"),
    ],
)
def test_a_catalog_entry_that_cannot_work(llmgw: Run, tmp_path: Path, entry: str, words: str):
    file = tmp_path / "entry.yaml"
    file.write_text(entry)
    done = llmgw("model", "add", str(file))
    assert done.returncode == 2
    assert words in done.stderr


def test_a_port_in_use(llmgw: Run, home: Path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        config(home, f"listen: 127.0.0.1:{port}\nadmin_listen: null\nengines: {{llamacpp: []}}\n")
        done = llmgw("server", "run")
    assert done.returncode == 4
    assert f"{port}" in done.stderr
    assert "in use" in done.stderr
    # The lease was given back: the next one starts.
    assert llmgw("key", "create", "x").returncode == 0


def test_a_damaged_database(llmgw: Run, home: Path):
    assert llmgw("key", "create", "x").returncode == 0
    (home / "state.db").write_bytes(b"this is no database" * 100)
    for extra in ("state.db-wal", "state.db-shm"):
        (home / extra).unlink(missing_ok=True)
    done = llmgw("key", "create", "y")
    assert done.returncode == 4
    assert "is damaged" in done.stderr
    assert "backups" in done.stderr
    assert (home / "state.db").read_bytes().startswith(b"this is no database")


def test_a_database_of_a_newer_version(llmgw: Run, home: Path):
    assert llmgw("key", "create", "x").returncode == 0
    with sqlite3.connect(home / "state.db") as db:
        db.execute("INSERT INTO _sqlite_migrations (migration_set, name, applied_at) VALUES ('llmgw', '9999_new', '')")
    done = llmgw("key", "create", "y")
    assert done.returncode == 4
    assert "newer version" in done.stderr
    assert "9999_new" in done.stderr


def test_without_a_server_looking_says_what_to_do(llmgw: Run):
    done = llmgw("ctl", "nodes")
    assert done.returncode == 5
    assert "llmgw server run" in done.stderr


@pytest.mark.parametrize(
    "words", [("frobnicate",), ("node", "add"), ("node", "add", "x", "--label", "nokey"), ("ctl", "drain")]
)
def test_wrong_usage(llmgw: Run, words: tuple[str, ...]):
    done = llmgw(*words)
    assert done.returncode == 2
    assert "Usage:" in done.stderr or "write --label" in done.stderr


def test_destructive_commands_do_not_ask_a_pipe(llmgw: Run):
    done = llmgw("node", "remove", "x")
    assert done.returncode == 2
    assert "--yes" in done.stderr


def test_what_does_not_exist(plane: Plane):
    for words in (
        ("node", "show", "ghost"),
        ("ctl", "drain", "ghost"),
        ("ctl", "logs", "ghost"),
        ("model", "remove", "ghost", "--yes"),
        ("key", "revoke", "ghost", "--yes"),
    ):
        done = plane.llmgw(*words, check=False)
        assert done.returncode == 3, done.stderr
        assert "'ghost'" in done.stderr


def post(url: str, body: bytes, key: str | None) -> tuple[int, Any]:
    headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {key}"} if key else {})
    request = urllib.request.Request(url, data=body, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as exc:
        return exc.code, json.load(exc)


def test_the_endpoint(plane: Plane, tmp_path: Path):
    plane.llmgw("node", "add", "local", "--name", "here")
    plane.add_model(tmp_path, sim("echo"))
    key, url = plane.key(), f"{plane.url}/chat/completions"
    good = {"model": "echo", "messages": [{"role": "user", "content": "hi"}]}
    cases = [
        (json.dumps(good).encode(), key, 200, ""),
        (json.dumps(good).encode(), None, 401, "API key"),
        (json.dumps(good).encode(), "sk-llmgw-wrong", 401, "key"),
        (b"{no json", key, 400, "JSON"),
        (json.dumps({**good, "model": "ecko"}).encode(), key, 404, "echo"),
        (json.dumps({"messages": []}).encode(), key, 400, "model"),
    ]
    for body, given, status, words in cases:
        found, reply = post(url, body, given)
        assert found == status, reply
        if words:
            assert words in reply["error"]["message"]
    plane.llmgw("key", "revoke", "test", "--yes")
    assert post(url, cases[0][0], key)[0] == 401


def test_a_key_that_may_use_one_model_only(plane: Plane, tmp_path: Path):
    plane.llmgw("node", "add", "local", "--name", "here")
    plane.add_model(tmp_path, sim("one"))
    plane.add_model(tmp_path, sim("two"))
    made = json.loads(plane.llmgw("key", "create", "narrow", "--model", "one", "--json").stdout)
    url = f"{plane.url}/chat/completions"
    for model, status in (("one", 200), ("two", 403)):
        body = json.dumps({"model": model, "messages": [{"role": "user", "content": "hi"}]}).encode()
        assert post(url, body, made["secret"])[0] == status


def test_bytes_that_are_no_text_are_a_sentence(plane: Plane):
    for words in (
        ("node", "show", "\udcff"),
        ("node", "probe", "\udcff"),
        ("node", "remove", "\udcff", "--yes"),
        ("node", "check", "\udcff"),
        ("ctl", "drain", "\udcff"),
        ("ctl", "cordon", "\udcff"),
        ("ctl", "logs", "\udcff"),
        ("ctl", "events", "--node", "\udcff"),
        ("ctl", "audit", "--node", "\udcff"),
        ("model", "remove", "\udcff", "--yes"),
        ("model", "add", "/nowhere/\udcff"),
        ("key", "create", "\udcff"),
        ("key", "create", "k", "--model", "\udcff"),
        ("key", "revoke", "\udcff", "--yes"),
    ):
        done = plane.llmgw(*words, check=False)
        assert done.returncode in (2, 3), (words, done.stderr)
        assert done.stderr.startswith("Error: "), (words, done.stderr)
        assert "This is a bug" not in done.stderr


def test_what_a_command_takes_is_found_by_what_a_person_calls_it(plane: Plane, tmp_path: Path):
    plane.llmgw("node", "add", "local", "--name", "here")
    plane.add_model(tmp_path, sim("one", replicas=2))
    first, second = sorted(one["id"] for one in plane.replicas("one"))
    part = first.rpartition("-")[2]
    assert f"The log of {first}:" in plane.llmgw("ctl", "logs", part).stderr
    assert plane.llmgw("ctl", "logs", first).stderr == ""
    done = plane.llmgw("ctl", "logs", "one", check=False)
    assert done.returncode == 2
    assert first in done.stderr
    assert second in done.stderr
    for words in (
        ("node", "show", "local"),
        ("node", "probe", "local"),
        ("node", "check", "local"),
        ("node", "remove", "local", "--yes"),
        ("ctl", "drain", "local", "--wait"),
        ("ctl", "undrain", "local"),
        ("ctl", "cordon", "local"),
        ("ctl", "uncordon", "local"),
        ("ctl", "events", "--node", "local"),
        ("ctl", "audit", "--node", "local"),
    ):
        done = plane.llmgw(*words, check=False)
        assert done.returncode == 3, done.stderr
        assert "The node that was added as local is here." in done.stderr
