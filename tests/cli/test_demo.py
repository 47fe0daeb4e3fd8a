"""What the demo says to type next can be copied out of any terminal."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from llmgw.cli.demo import MODEL, _invite
from llmgw.config.home import Home
from llmgw.model.key import new_key

ENDPOINT = "http://127.0.0.1:65535/v1"


def test_no_line_is_wider_than_a_terminal_and_the_command_is_one(capsys: pytest.CaptureFixture[str]) -> None:
    key = new_key().reveal()
    _invite(ENDPOINT, key, Home(Path("/home/somebody/.cache/llmgw/demo/home")))
    said = capsys.readouterr().out
    assert max(map(len, said.splitlines())) < 80
    assert f"export LLMGW_API_KEY={key}\n" in said
    (command,) = [part for part in said.replace("\\\n", " ").splitlines() if part.startswith("curl ")]
    words = shlex.split(command)
    assert words[:2] == ["curl", f"{ENDPOINT}/chat/completions"]
    assert "authorization: Bearer $LLMGW_API_KEY" in words
    assert json.loads(words[-1])["model"] in MODEL.names
