"""The picture is OpenSSH's own, drawn for the same key."""

from __future__ import annotations

import base64
import shutil
import subprocess
from pathlib import Path

import pytest

from llmgw.protocol.randomart import randomart


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="no ssh-keygen on this machine")
@pytest.mark.parametrize(("kind", "bits", "title"), [("ed25519", "256", "ED25519 256"), ("rsa", "2048", "RSA 2048")])
def test_as_openssh_draws_it(tmp_path: Path, kind: str, bits: str, title: str) -> None:
    for number in range(4):
        file = tmp_path / f"key{number}"
        subprocess.run(["ssh-keygen", "-q", "-t", kind, "-b", bits, "-N", "", "-f", file], check=True)
        drawn = subprocess.run(["ssh-keygen", "-lvf", f"{file}.pub"], check=True, capture_output=True, text=True)
        blob = base64.b64decode(Path(f"{file}.pub").read_text().split()[1])
        assert randomart(blob, title) == drawn.stdout.splitlines()[1:]
