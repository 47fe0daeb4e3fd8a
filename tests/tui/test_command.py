"""`llmgw tui` as a command."""

from __future__ import annotations

import os
import subprocess
import sys


def llmgw(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    plain = {name: value for name, value in os.environ.items() if not name.startswith("LLMGW_")}
    return subprocess.run(
        [sys.executable, "-m", "llmgw", *words],
        env={**plain, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        stdin=subprocess.DEVNULL,
    )


def test_without_a_control_plane_it_says_what_to_start(tmp_path):
    ended = llmgw("tui", LLMGW_HOME=str(tmp_path))
    assert ended.returncode == 5
    assert "No control plane runs in" in ended.stderr
    assert "llmgw server run" in ended.stderr
    assert ended.stdout == ""


def test_at_an_address_where_nothing_listens(tmp_path):
    ended = llmgw("tui", LLMGW_HOME=str(tmp_path), LLMGW_ADMIN_URL="http://127.0.0.1:9")
    assert ended.returncode == 5
    assert "http://127.0.0.1:9" in ended.stderr
