"""The control plane's own SSH key: made once, kept as files so that it survives the database."""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import os
import stat
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from llmgw.config.files import read_plain
from llmgw.errors import Refused, UsageError

NAME = "id_ed25519"

# Tried against sshd (F76): without `port-forwarding` nothing is forwarded; without a `permitlisten` remote listeners
# are allowed; `permitlisten="none"` makes sshd refuse the key. No option of a key line limits Unix sockets: who wants
# them closed says `AllowStreamLocalForwarding no` in sshd_config.
OPTIONS = 'restrict,port-forwarding,permitopen="127.0.0.1:*",permitlisten="localhost:1"'


def ensure_key(home: Path) -> Path:
    """Path of the private key in `home`, made first when it is missing (0600, OpenSSH format, `.pub` beside it).

    Raises Refused when the file is no private key, belongs to somebody else or may be read by others.
    """
    path = home / NAME
    if not path.exists() and not path.is_symlink():
        _create(path)
    _check(path)
    line = _public_line_of(path)
    public = path.with_suffix(".pub")
    if not public.exists() or read_plain(public).split()[:2] != line.encode().split():
        _write(public, f"{line}\n".encode(), 0o644)
    return path


def public_key(home: Path) -> str:
    """`ssh-ed25519 AAAA…`, without a comment. Makes the key when it is missing; errors as `ensure_key`."""
    return _public_line_of(ensure_key(home))


def present_key(home: Path) -> str:
    """As `public_key`, but nothing is made or mended. Raises FileNotFoundError, and Refused as `ensure_key`."""
    _check(home / NAME)
    return _public_line_of(home / NAME)


def public_blob(home: Path) -> str:
    """The base64 part of the public key."""
    return public_key(home).split()[1]


def public_line(home: Path, cluster: str) -> str:
    """The line for `authorized_keys` on a node of the cluster with id `cluster`. No pty, agent, X11 or listener."""
    if not cluster or not cluster.isprintable() or any(char.isspace() for char in cluster):
        raise UsageError(f"{cluster!r} cannot be the comment of a key.", fix="Use the cluster id: one printable word.")
    return f"{OPTIONS} {public_key(home)} llmgw:{cluster}"


def fingerprint(public_key: str) -> str:
    """`SHA256:…` without padding, as ssh-keygen prints it, of `TYPE BASE64 [comment]`. Raises UsageError."""
    try:
        blob = base64.b64decode(public_key.split()[1], validate=True)
    except (IndexError, binascii.Error, ValueError):
        raise UsageError(f"{public_key[:40]!r} is no public key in OpenSSH's format.") from None
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")


def _create(path: Path) -> None:
    data = Ed25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    _write(path, data, 0o600, keep=True)


def _write(path: Path, data: bytes, mode: int, *, keep: bool = False) -> None:
    """Beside it and then into place: no reader ever sees half a key. With `keep` a file that is there by then wins."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.unlink(missing_ok=True)
    handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if keep:
            with contextlib.suppress(FileExistsError):
                os.link(beside, path)  # fails where another process was first, unlike rename
        else:
            os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def _check(path: Path) -> None:
    found = path.lstat()
    if not stat.S_ISREG(found.st_mode):
        raise Refused(f"{path} is no regular file.", fix="Move it away; a new key is made then.", code="unsafe_key")
    if found.st_uid != os.geteuid():
        raise Refused(f"{path} belongs to uid {found.st_uid}.", fix=f"chown {os.geteuid()} {path}", code="unsafe_key")
    if found.st_mode & 0o077:
        mode = stat.S_IMODE(found.st_mode)
        raise Refused(f"{path} has mode {mode:04o}: others may use it.", fix=f"chmod 600 {path}", code="unsafe_key")


def _public_line_of(path: Path) -> str:
    try:
        key = serialization.load_ssh_private_key(read_plain(path), password=None)
    except (ValueError, TypeError):
        raise Refused(
            f"{path} is no unencrypted OpenSSH private key.",
            fix="Put the right file back from a backup; without it every node must be added again.",
            code="unsafe_key",
        ) from None
    return key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH).decode()
