"""llama_wheel.py: llama-server's flags on the real wheel with a real model."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from .conftest import SCRIPTS, Node


def flags(*argv: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-B", "-I", "-S", str(SCRIPTS / "llama_wheel.py"), *argv]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--made-up"], "unrecognized arguments: --made-up"),
        (["--mod", "x"], "unrecognized arguments"),
        (["--port", "x", "-m", "y"], "invalid int value"),
        ([], "--model is missing"),
        (["-m", "/nowhere.gguf"], "/nowhere.gguf does not exist"),
        (["-m", __file__, "-np", "0"], "--parallel must be at least 1"),
    ],
)
def test_wrong_usage_is_a_clear_sentence_and_status_2(argv: list[str], words: str) -> None:
    done = flags(*argv)
    assert done.returncode == 2
    assert words in done.stderr


def test_help_needs_no_library_and_names_every_flag() -> None:
    done = flags("--help")
    assert done.returncode == 0
    named = """--model -m --host --port --alias -a --ctx-size -c --parallel -np --threads -t --threads-batch -tb
        --batch-size -b --ubatch-size -ub --n-gpu-layers -ngl --embedding --embeddings --pooling --metrics --slots
        --no-warmup --api-key-file --jinja --cont-batching --no-webui --no-ui --cache-reuse --rerank --reranking
        --version"""
    assert set(named.split()) <= set(done.stdout.replace(",", " ").replace("]", " ").replace("[", " ").split())


def test_without_its_wheel_it_says_so() -> None:
    done = flags("--version")
    assert done.returncode == 1
    assert "xllamacpp cannot be loaded from" in done.stderr


def ask(port: int, path: str, body: Any = None, key: str = "sek-1") -> Any:
    data = None if body is None else json.dumps(body).encode()
    headers = {"content-type": "application/json", "authorization": f"Bearer {key}"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, headers)
    with urllib.request.urlopen(request, timeout=60) as reply:
        text = reply.read().decode()
        return json.loads(text) if text.startswith(("{", "[")) else text


@pytest.mark.engine
def test_from_the_wheel_to_an_answer(node: Node, engine_wheel: Path, engine_weights: Path) -> None:
    wheel, text = engine_wheel.read_bytes(), (SCRIPTS / "llama_wheel.py").read_text()
    weights = engine_weights.read_bytes()
    archive = {
        "name": engine_wheel.name,
        "sha256": hashlib.sha256(wheel).hexdigest(),
        "size": len(wheel),
        "kind": "wheel",
    }
    files = {"llama_wheel.py": {"text": text, "sha256": hashlib.sha256(text.encode()).hexdigest()}}
    check = ["{python}", "-B", "-I", "-S", "{dir}/llama_wheel.py", "--version"]
    place = {"engine": "llamacpp", "directory": "w", "requires_python": [3, 10], "check": check}
    installed = node.call(
        "install", action="receive", payload=wheel, archive=archive, files=files, deadline=60, **place
    )
    assert installed["version_text"].startswith("llama.cpp (xllamacpp 20")
    file_args = {"sha256": hashlib.sha256(weights).hexdigest(), "size": len(weights), "file": "m.gguf"}
    path = node.call("weights", action="receive", payload=weights, offset=0, **file_args)["path"]
    argv = [installed["python"], *check[1:4], installed["path"] + "/llama_wheel.py", "-m", path, "--host", "127.0.0.1"]
    argv = [word for word in argv if "{dir}" not in word]
    argv += ["--port", "{port}", "--alias", "smol", "-c", "2048", "--metrics", "--slots", "--no-webui"]
    shard = {"replica": "m", "rank": 0, "cluster": "k"}
    env = {"LLAMA_API_KEY": "sek-1"}
    started = node.call("engine", action="start", attempt=1, argv=argv, env=env, ports=[41700, 41799], **shard)
    port = started["port"]
    ends = time.monotonic() + 60
    while True:
        try:
            assert ask(port, "/health")["status"] == "ok"
            break
        except OSError:
            assert time.monotonic() < ends
            time.sleep(0.05)
    question = {
        "model": "smol",
        "temperature": 0,
        "max_tokens": 8,
        "messages": [{"role": "user", "content": "Say hello."}],
    }
    answer = ask(port, "/v1/chat/completions", question)
    assert answer["choices"][0]["message"]["content"].strip()
    assert answer["model"] == "smol"
    with pytest.raises(urllib.error.HTTPError) as caught:
        ask(port, "/v1/chat/completions", question, key="wrong")
    assert caught.value.code == 401
    slots = ask(port, "/slots")
    assert len(slots) == 4
    assert {slot["n_ctx"] for slot in slots} == {2048}  # shared, not divided
    assert "llamacpp:" in ask(port, "/metrics")
    began = time.monotonic()
    stopped = node.call("engine", action="stop", attempt=None, grace=10, remove=False, **shard)
    assert stopped["killed"] is False
    assert time.monotonic() - began < 3
    (item,) = node.call("engine", action="list")["replicas"]
    assert item["exit"]["status"] == 0
