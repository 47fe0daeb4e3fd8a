"""`llmgw chat` before good endpoints and others, and with keys and prompts that no request can carry."""

from __future__ import annotations

import http.server
import json
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import LLMGW, Run

KEY = "sk-llmgw-secret"


@dataclass
class Endpoint:
    url: str = ""
    status: int = 200
    body: bytes = b""
    asked: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    """Answers every question with the same."""
    made = Endpoint()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            made.asked.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            made.keys.append(self.headers["authorization"])
            self.send_response(made.status)
            self.send_header("content-length", str(len(made.body)))
            self.end_headers()
            self.wfile.write(made.body)

        def log_message(self, *_: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        made.url = f"http://127.0.0.1:{server.server_port}/v1"
        yield made
        server.shutdown()


@pytest.fixture
def chat(llmgw: Run, endpoint: Endpoint) -> Callable[..., subprocess.CompletedProcess[str]]:
    def ask(*words: str, **environ: str) -> subprocess.CompletedProcess[str]:
        done = llmgw("chat", "m", *(words or ("hi",)), "--url", endpoint.url, **{"LLMGW_API_KEY": KEY, **environ})
        assert "This is a bug" not in done.stderr
        return done

    return ask


def stream(*pieces: str) -> bytes:
    chunks = [{"choices": [{"delta": {"content": piece}}]} for piece in pieces]
    return b"".join(b"data: %b\n\n" % json.dumps(chunk).encode() for chunk in chunks) + b"data: [DONE]\n\n"


def test_an_answer_keeps_its_lines_and_steers_no_terminal(chat, endpoint: Endpoint) -> None:
    endpoint.body = stream("one\n", "\ttwo\x1b[2J", "größe\ud800")
    done = chat("hi", "--temperature", "0", "--max-tokens", "5")
    assert done.stdout == "one\n\ttwo\ufffd[2Jgröße\ufffd\n"
    assert endpoint.asked[0]["temperature"] == 0
    assert endpoint.asked[0]["max_tokens"] == 5
    assert endpoint.keys == [f"Bearer {KEY}"]
    chat("hi")
    assert "temperature" not in endpoint.asked[1], "what nobody asked for is left to the engine"


def test_a_piece_that_says_nothing_is_none(chat, endpoint: Endpoint) -> None:
    endpoint.body = b'data: {"choices": [{"delta": null}]}\n\ndata: {"choices": []}\n\n' + stream("x")
    assert chat().stdout == "x\n"


@pytest.mark.parametrize("key", [f"{KEY}\nb", f"{KEY}\rb", f"{KEY} b", f"{KEY}\x7f", f"{KEY}\udcff"], ids=repr)
def test_a_key_that_no_header_carries_is_a_sentence_without_it(chat, endpoint: Endpoint, key: str) -> None:
    done = chat("hi", LLMGW_API_KEY=key)
    assert done.returncode == 2
    assert "LLMGW_API_KEY is no single word" in done.stderr
    assert KEY not in done.stderr
    assert endpoint.asked == []


def test_blanks_around_a_key_are_none_of_it(chat, endpoint: Endpoint) -> None:
    endpoint.body = stream("x")
    assert chat("hi", LLMGW_API_KEY=f" {KEY}\n").returncode == 0
    assert endpoint.keys == [f"Bearer {KEY}"]


@pytest.mark.parametrize(
    "body",
    [b"<html>", b"", b"data: {\n\n", b"data: []\n\n", b"data: 7\n\n", b'data: {"choices": 7}\n\n', b"data: \xff\n\n"],
    ids=repr,
)
def test_what_is_no_endpoint_for_chats(chat, endpoint: Endpoint, body: bytes) -> None:
    endpoint.body = body
    for words in (("hi",), ("hi", "--json")):
        done = chat(*words)
        assert done.returncode == 1
        assert "answers, but not as an endpoint for chats does" in done.stderr


def test_a_line_without_an_end(chat, endpoint: Endpoint) -> None:
    endpoint.body = b"data: " + b"x" * (3 << 20)
    done = chat()
    assert done.returncode == 1
    assert "longer than 1 MiB" in done.stderr


@pytest.mark.parametrize(
    ("status", "body", "exits", "said"),
    [
        (404, b'{"error": {"message": "No such model."}}', 3, "No such model."),
        (401, b'{"error": {"message": "No key."}}', 4, "Set LLMGW_API_KEY"),
        (500, b"<html>\xff", 1, "answered 500: <html>"),
        (500, b'{"error": "x"}', 1, "answered 500"),
        (500, b"[]", 1, "answered 500"),
    ],
    ids=["404", "401", "html", "text", "list"],
)
def test_an_error_is_its_sentence(chat, endpoint: Endpoint, status: int, body: bytes, exits: int, said: str) -> None:
    endpoint.status, endpoint.body = status, body
    done = chat()
    assert done.returncode == exits
    assert said in done.stderr


@pytest.mark.parametrize("url", ["127.0.0.1:8080", "ftp://h/v1", "http://[::1", "http://h:99999/v1"])
def test_an_address_that_is_none(llmgw: Run, url: str) -> None:
    done = llmgw("chat", "m", "hi", "--url", url)
    assert done.returncode == 2
    assert "--url" in done.stderr


def test_words_that_are_no_text(chat, endpoint: Endpoint, tmp_path: Path) -> None:
    done = chat("a\udcff")
    assert (done.returncode, endpoint.asked) == (2, [])
    assert "is not UTF-8 text" in done.stderr
    piped = subprocess.run(
        [LLMGW, "chat", "m", "--url", endpoint.url],
        input=b"a\xff",
        env={**os.environ, "LLMGW_HOME": str(tmp_path)},
        capture_output=True,
        timeout=60,
    )
    assert piped.returncode == 2
    assert b"is not UTF-8 text" in piped.stderr
