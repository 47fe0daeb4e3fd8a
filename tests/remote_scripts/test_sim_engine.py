"""The simulated engine, as a process and over bare sockets: everything else's tests stand on it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "remote_scripts" / "sim_engine.py"
CHAT = "/v1/chat/completions"


@dataclass
class Engine:
    process: subprocess.Popen[bytes]
    port: int

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=5)

    def send(self, path: str, body: Any = None, key: str = "", connection: str = "close") -> socket.socket:
        sock = self.connect()
        data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        method = "GET" if body is None else "POST"
        auth = f"authorization: Bearer {key}\r\n" if key else ""
        head = f"{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: {connection}\r\n{auth}"
        sock.sendall(f"{head}x-request-id: id-1\r\ncontent-length: {len(data)}\r\n\r\n".encode() + data)
        return sock

    def ask(self, path: str, body: Any = None, key: str = "") -> tuple[int, Any]:
        with self.send(path, body, key) as sock:
            text = b"".join(iter(lambda: sock.recv(1 << 16), b""))
        head, _, rest = text.partition(b"\r\n\r\n")
        status = int(head.split()[1])
        if b"text/event-stream" in head:
            events = [line[6:] for line in rest.split(b"\r\n") if line.startswith(b"data: ")]
            assert rest.endswith(b"0\r\n\r\n")
            return status, [event.strip().decode() for event in events]
        return status, json.loads(rest)

    def stats(self) -> dict[str, Any]:
        return self.ask("/sim/stats")[1]

    def wait_gone(self, within: float) -> int:
        return self.process.wait(within)


@pytest.fixture
def engine() -> Iterator[Callable[..., Engine]]:
    started: list[Engine] = []

    def start(*options: str, python: str = sys.executable, **environment: str) -> Engine:
        argv = [python, "-B", "-I", "-S", str(SCRIPT), "--port", "0", *options]
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)
        line = process.stdout.readline()
        assert line.startswith(b"sim_engine: listening on 127.0.0.1:"), line
        started.append(Engine(process, int(line.rpartition(b":")[2])))
        return started[-1]

    yield start
    for item in started:
        item.process.kill()
        item.process.communicate()


def chat(**more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": "one two three"}], **more}


def test_a_whole_answer(engine) -> None:
    status, answer = engine(LLMGW_REPLICA="m-7").ask(CHAT, chat(max_tokens=4))
    assert status == 200
    assert answer["choices"] == [
        {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "The quick brown fox"}}
    ]
    assert answer["usage"] == {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}
    assert (answer["system_fingerprint"], answer["id"], answer["model"]) == ("sim-m-7", "id-1", "m")


def test_a_stream_says_the_same(engine) -> None:
    status, events = engine().ask(CHAT, chat(max_tokens=4, stream=True, stream_options={"include_usage": True}))
    assert (status, events[-1]) == (200, "[DONE]")
    *words, end, usage = [json.loads(event) for event in events[:-1]]
    assert "".join(word["choices"][0]["delta"]["content"] for word in words).strip() == "The quick brown fox"
    assert end["choices"][0]["finish_reason"] == "stop"
    assert usage["usage"] == {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}
    assert {event["object"] for event in [*words, end, usage]} == {"chat.completion.chunk"}


def test_completions_and_embeddings(engine) -> None:
    running = engine()
    text = running.ask("/v1/completions", {"model": "m", "prompt": "a b", "max_tokens": 2})[1]
    assert (text["object"], text["choices"][0]["text"]) == ("text_completion", "The quick")
    events = running.ask("/v1/completions", {"model": "m", "prompt": "a", "max_tokens": 2, "stream": True})[1]
    assert [json.loads(event)["choices"][0]["text"] for event in events[:-1]] == ["The ", "quick ", ""]
    first = running.ask("/v1/embeddings", {"model": "m", "input": ["a b", "c"]})[1]
    assert [len(row["embedding"]) for row in first["data"]] == [8, 8]
    assert first["data"][0]["embedding"] != first["data"][1]["embedding"]
    assert first["usage"] == {"prompt_tokens": 3, "total_tokens": 3}
    assert running.ask("/v1/embeddings", {"model": "m", "input": ["a b", "c"]})[1]["data"] == first["data"]


def test_content_in_parts(engine) -> None:
    parts = [{"type": "text", "text": "a b"}, {"type": "image_url", "image_url": {"url": "x"}}]
    answer = engine().ask(CHAT, chat(messages=[{"role": "user", "content": parts}]))[1]
    assert answer["usage"]["prompt_tokens"] == 2


def test_the_key(engine) -> None:
    running = engine(SIM_API_KEY="secret")
    assert running.ask("/health")[0] == 200
    for path, body in ((CHAT, chat()), ("/v1/models", None)):
        assert running.ask(path, body)[0] == 401
        assert running.ask(path, body, key="wrong")[0] == 401
        assert running.ask(path, body, key="secret")[0] == 200
    assert "secret" not in Path(f"/proc/{running.process.pid}/cmdline").read_text()


def test_loading(engine) -> None:
    running = engine("--load-time", "0.4")
    assert running.ask("/health") == (503, {"status": "loading"})
    assert running.ask(CHAT, chat())[0] == 503
    end = time.monotonic() + 3
    while running.ask("/health")[0] != 200:
        assert time.monotonic() < end
        time.sleep(0.02)
    assert running.ask(CHAT, chat())[0] == 200


def test_the_model_it_serves(engine) -> None:
    running = engine("--model", "smollm2")
    assert [entry["id"] for entry in running.ask("/v1/models")[1]["data"]] == ["smollm2"]
    assert running.ask(CHAT, chat(model="smollm2"))[0] == 200
    status, answer = running.ask(CHAT, chat(model="other"))
    assert status == 404
    assert "other" in answer["error"]["message"]


def test_speed(engine) -> None:
    running = engine("--tokens-per-second", "50", "--first-token-delay", "0.1")
    start = time.monotonic()
    assert running.ask(CHAT, chat(max_tokens=11, stream=True))[0] == 200
    assert 0.29 < time.monotonic() - start < 0.8  # 0.1 s and ten gaps of 20 ms


@pytest.mark.parametrize("streaming", [True, False])
def test_aborts_are_seen_at_once(engine, streaming: bool) -> None:
    running = engine("--tokens-per-second", "20")
    sock = running.send(CHAT, chat(max_tokens=1000, stream=streaming))
    while not running.stats()["active"]:
        time.sleep(0.005)
    left = time.time()
    sock.close()
    end = time.monotonic() + 2
    while not running.stats()["aborted"]:
        assert time.monotonic() < end
        time.sleep(0.005)
    stats = running.stats()
    (abort,) = stats["aborted"]
    assert abort["id"] == "id-1"
    assert -0.05 < abort["at"] - left < 0.3
    assert (stats["requests"], stats["completed"], stats["active"]) == (1, 0, [])


def test_an_answer_that_was_read_is_no_abort(engine) -> None:
    running = engine()
    for streaming in (True, False):
        running.ask(CHAT, chat(stream=streaming))
    stats = running.stats()
    assert (stats["requests"], stats["completed"], stats["aborted"], stats["active"]) == (2, 2, [], [])


def test_dying_after_tokens(engine) -> None:
    running = engine("--die-after-tokens", "10", "--tokens-per-second", "500")
    with running.send(CHAT, chat(max_tokens=50, stream=True)) as sock:
        text = b"".join(iter(lambda: sock.recv(1 << 16), b""))
    assert running.wait_gone(2) == 9
    assert not text.endswith(b"0\r\n\r\n")


def test_dying_after_requests(engine) -> None:
    running = engine("--die-after-requests", "2")
    assert [running.ask(CHAT, chat())[0] for _ in range(2)] == [200, 200]
    with running.send(CHAT, chat()) as sock, contextlib.suppress(ConnectionError):
        assert sock.recv(10) == b""
    assert running.wait_gone(2) == 9


def test_hanging(engine) -> None:
    for path in ("/health", CHAT):
        with engine("--hang").send(path, chat() if path == CHAT else None) as sock:
            sock.settimeout(0.2)
            with pytest.raises(TimeoutError):
                sock.recv(1)


def test_hanging_in_the_middle(engine) -> None:
    with engine("--hang-after-tokens", "3").send(CHAT, chat(stream=True)) as sock:
        sock.settimeout(0.3)
        text = b""
        with contextlib.suppress(TimeoutError):
            while data := sock.recv(1 << 16):
                text += data
    assert text.count(b"data: ") == 3
    assert not text.endswith(b"0\r\n\r\n")


@pytest.mark.parametrize(
    ("options", "statuses"),
    [
        (("--fail-every", "3"), [200, 200, 500, 200, 200, 500]),
        (("--error-rate", "0.5"), [200, 500, 200, 500, 200, 500]),
        (("--error-rate", "1"), [500] * 6),
    ],
)
def test_failing(engine, options: tuple[str, ...], statuses: list[int]) -> None:
    running = engine(*options)
    assert [running.ask(CHAT, chat())[0] for _ in range(6)] == statuses
    assert running.stats()["failed"] == statuses.count(500)


def test_the_context(engine) -> None:
    running = engine("--context", "2")
    assert running.ask(CHAT, chat())[0] == 400
    assert running.ask(CHAT, chat(messages=[{"role": "user", "content": "a b"}]))[0] == 200


@pytest.mark.parametrize("body", [b"", b"nonsense", b"[]", b'{"messages":5}', b'{"max_tokens":"x"}', b"\xff"], ids=repr)
def test_bad_bodies(engine, body: bytes) -> None:
    running = engine()
    assert running.ask(CHAT, body)[0] == 400
    assert running.ask(CHAT, chat())[0] == 200


def test_unknown_paths(engine) -> None:
    assert engine().ask("/v1/nope")[0] == 404


def test_connections_are_kept_and_pipelined(engine) -> None:
    running = engine()
    body = json.dumps(chat(max_tokens=1)).encode()
    with running.connect() as sock:
        sock.sendall(b"POST %b HTTP/1.1\r\ncontent-length: %d\r\n\r\n%b" % (CHAT.encode(), len(body), body) * 3)
        text = b""
        while text.count(b"HTTP/1.1 200") < 3 or not text.endswith(b"}"):
            text += sock.recv(1 << 16)
    assert running.stats()["completed"] == 3


def test_a_reader_that_pauses_gets_everything(engine) -> None:
    with engine().send(CHAT, chat(max_tokens=30_000, stream=True)) as sock:
        time.sleep(0.1)
        text = b"".join(iter(lambda: sock.recv(1 << 16), b""))
    assert text.count(b'"content":') == 30_000
    assert text.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")


def test_term_ends_it_at_once(engine) -> None:
    running = engine("--tokens-per-second", "10")
    with running.send(CHAT, chat(max_tokens=1000)):
        running.process.send_signal(signal.SIGTERM)
        start = time.monotonic()
        assert running.wait_gone(2) == 0
        assert time.monotonic() - start < 0.2


def test_term_may_be_ignored(engine) -> None:
    running = engine("--ignore-term")
    running.process.send_signal(signal.SIGTERM)
    with pytest.raises(subprocess.TimeoutExpired):
        running.wait_gone(0.3)
    assert running.ask(CHAT, chat())[0] == 200


def test_memory(engine) -> None:
    def resident(running: Engine) -> int:
        return int(Path(f"/proc/{running.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    assert resident(engine("--memory-mb", "64")) - resident(engine()) > 60 << 20


def test_it_listens_on_loopback_only(engine) -> None:
    running = engine()
    listening = []
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        address, port = line.split()[1].split(":")
        if int(port, 16) == running.port and line.split()[3] == "0A":
            listening.append(address)
    assert listening == ["0100007F"]


def run(*options: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-B", "-I", "-S", str(SCRIPT), *options]
    return subprocess.run(argv, capture_output=True, text=True, timeout=10, check=False)


def test_version_and_help() -> None:
    assert run("--version").stdout.startswith("sim-engine ")
    assert "--hang-after-tokens" in run("--help").stdout


@pytest.mark.parametrize(
    "options", [("--nope",), ("--port", "1", "--tok", "5"), ("--port", "x"), (), ("--port", "1", "stray")]
)
def test_unknown_options_are_refused_in_a_sentence(options: tuple[str, ...]) -> None:
    done = run(*options)
    assert done.returncode == 2
    assert "sim_engine.py: error:" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_port_in_use_is_said_in_a_sentence(engine) -> None:
    port = engine().port
    done = run("--port", str(port))
    assert done.returncode == 1
    assert f"port {port}" in done.stderr
    assert "Traceback" not in done.stderr


def pythons() -> list[str]:
    """One interpreter of every version that this machine has: on the PATH, and where pyenv keeps them."""
    places = [Path(folder) for folder in os.environ["PATH"].split(":")]
    places += [folder / "bin" for folder in Path.home().glob(".pyenv/versions/3.*")]
    found: dict[str, str] = {}
    for minor in range(6, 16):
        for place in places:
            program = place / f"python3.{minor}"
            if (
                program.exists()
                and not subprocess.run([program, "-c", ""], capture_output=True, check=False).returncode
            ):
                found.setdefault(program.name, str(program))
    return list(found.values())


@pytest.mark.parametrize("python", pythons(), ids=lambda path: Path(path).name)
def test_every_python(engine, python: str) -> None:
    running = engine("--max-tokens", "3", python=python)
    assert running.ask(CHAT, chat())[0] == 200
    assert running.ask(CHAT, chat(stream=True))[1][-1] == "[DONE]"
