"""The control plane's own key: made once, never weak, never half."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import threading
from pathlib import Path

import pytest

from llmgw.errors import Refused, UsageError
from llmgw.pki.sshkey import ensure_key, fingerprint, public_blob, public_key, public_line


def test_made_once_with_tight_modes(tmp_path: Path) -> None:
    home = tmp_path / "home"
    path = ensure_key(home)
    assert path == home / "id_ed25519"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    before = path.read_bytes()
    assert b"OPENSSH PRIVATE KEY" in before
    assert ensure_key(home).read_bytes() == before
    assert sorted(entry.name for entry in home.iterdir()) == ["id_ed25519", "id_ed25519.pub"]


def test_the_public_side(tmp_path: Path) -> None:
    key = public_key(tmp_path)
    assert key.startswith("ssh-ed25519 AAAA")
    assert (tmp_path / "id_ed25519.pub").read_text().split() == key.split()
    assert public_blob(tmp_path) == key.split()[1]
    assert public_line(tmp_path, "c0ffee") == (
        f'restrict,port-forwarding,permitopen="127.0.0.1:*",permitlisten="localhost:1" {key} llmgw:c0ffee'
    )
    for bad in ("", "two words", "a\nssh-ed25519 evil"):
        with pytest.raises(UsageError):
            public_line(tmp_path, bad)


@pytest.mark.skipif(not shutil.which("ssh-keygen"), reason="no ssh-keygen on this machine")
def test_ssh_keygen_agrees(tmp_path: Path) -> None:
    path = ensure_key(tmp_path)
    shown = subprocess.run(["ssh-keygen", "-l", "-f", path], capture_output=True, text=True, check=True).stdout
    assert fingerprint(public_key(tmp_path)) in shown
    derived = subprocess.run(["ssh-keygen", "-y", "-f", path], capture_output=True, text=True, check=True).stdout
    assert derived.split()[:2] == public_key(tmp_path).split()


def test_a_missing_or_wrong_public_file_is_written_again(tmp_path: Path) -> None:
    key = public_key(tmp_path)
    for text in (None, "ssh-ed25519 AAAAother\n"):
        public = tmp_path / "id_ed25519.pub"
        public.unlink() if text is None else public.write_text(text)
        assert public_key(tmp_path) == key
        assert public.read_text().split() == key.split()


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660])
def test_a_key_that_others_may_read_is_refused(tmp_path: Path, mode: int) -> None:
    path = ensure_key(tmp_path)
    path.chmod(mode)
    with pytest.raises(Refused) as caught:
        ensure_key(tmp_path)
    assert caught.value.fix == f"chmod 600 {path}"


def test_other_files_are_refused_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "id_ed25519"
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Refused, match="no regular file"):
        ensure_key(tmp_path)
    assert not (tmp_path / "elsewhere").exists()
    path.unlink()
    path.write_text("rubbish")
    path.chmod(0o600)
    with pytest.raises(Refused, match="no unencrypted OpenSSH private key"):
        ensure_key(tmp_path)
    assert path.read_text() == "rubbish"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_strangers_key_is_refused(tmp_path: Path) -> None:
    os.chown(ensure_key(tmp_path), 12345, -1)
    with pytest.raises(Refused, match="belongs to uid 12345"):
        ensure_key(tmp_path)


def test_many_at_once_agree(tmp_path: Path) -> None:
    """Two processes that start together keep one key; threads stand in for them, so each has a file of its own."""
    keys: list[str] = []
    ensure_lock = threading.Lock()

    def make() -> None:
        with ensure_lock:
            keys.append(public_key(tmp_path))

    threads = [threading.Thread(target=make) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(keys)) == 1
