"""`LLMGW_HOME`: where the control plane keeps what it owns, and who may keep it there."""

from __future__ import annotations

import json
import os
import socket
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from llmgw.errors import DiskFull, Refused, UsageError

NETWORK_FILE_SYSTEMS = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "ceph", "glusterfs", "fuse.sshfs", "9p", "lustre", "beegfs", "gpfs"}
)


@dataclass(frozen=True)
class Identity:
    """Who this control plane is, towards its nodes. Survives the database, hence a file."""

    cluster_id: str
    controller_id: str


@dataclass(frozen=True)
class Home:
    path: Path

    @property
    def config(self) -> Path:
        return self.path / "llmgw.yaml"

    @property
    def database(self) -> Path:
        return self.path / "state.db"

    @property
    def lock(self) -> Path:
        return self.path / "state.lock"

    @property
    def socket(self) -> Path:
        return self.path / "admin.sock"

    @property
    def token(self) -> Path:
        return self.path / "admin.token"

    @property
    def known_hosts(self) -> Path:
        return self.path / "known_hosts"

    @property
    def embedded_host_key(self) -> Path:
        return self.path / "embedded_host_key"

    @property
    def mirror(self) -> Path:
        return self.path / "mirror"

    @property
    def backups(self) -> Path:
        return self.path / "backups"

    def ensure(self) -> None:
        """Creates the directory with mode 0700. Refuses one that is not ours, is open to others or lies on a network.

        The mode of a directory that was there already is never changed: it may be anything, /tmp or /proc.
        """
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            info = self.path.stat()
        except OSError as exc:
            raise _from_os(exc, f"{self.path} cannot be made the control plane's home") from None
        if info.st_uid != os.geteuid():
            raise Refused(
                f"{self.path} belongs to uid {info.st_uid}, not to you (uid {os.geteuid()}).",
                fix="Run as that user (sudo -u), or set LLMGW_HOME to a directory of your own.",
                code="foreign_home",
            )
        if info.st_mode & 0o077:
            raise Refused(
                f"{self.path} may be entered by others (mode {info.st_mode & 0o7777:04o}).",
                fix=f"If it is llmgw's own, `chmod 700 {self.path}`; else set LLMGW_HOME to a directory of its own.",
                code="open_home",
            )
        kind = file_system(self.path)
        if kind in NETWORK_FILE_SYSTEMS:
            raise Refused(
                f"{self.path} lies on a network file system ({kind}), where SQLite's write-ahead log gets corrupted.",
                fix="Set LLMGW_HOME to a directory on a local disk.",
                code="network_home",
            )

    def identity(self) -> Identity:
        """Reads `identity.json`, makes it when it is missing."""
        path = self.path / "identity.json"
        try:
            body = json.loads(path.read_text())
            return Identity(str(body["cluster_id"]), str(body["controller_id"]))
        except FileNotFoundError:
            identity = Identity(uuid.uuid4().hex[:12], uuid.uuid4().hex)
            write_private(path, json.dumps(identity.__dict__, indent=1) + "\n")
            return identity
        except (ValueError, KeyError, TypeError):
            raise UsageError(
                f"{path} is damaged.", fix="Restore it from a backup: nodes obey only the controller it names."
            ) from None


def find_home(environ: Mapping[str, str] | None = None, uid: int | None = None) -> Home:
    """`LLMGW_HOME`, else `/var/lib/llmgw` for root and `~/.local/state/llmgw` for everybody else."""
    environ = os.environ if environ is None else environ
    if named := environ.get("LLMGW_HOME"):
        return Home(Path(named).expanduser().absolute())
    if (os.geteuid() if uid is None else uid) == 0:
        return Home(Path("/var/lib/llmgw"))
    return Home(Path("~/.local/state/llmgw").expanduser())


def write_private(path: Path, text: str) -> None:
    """Writes a 0600 file whole or not at all: beside it first, then renamed into place."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        part.rename(path)
    except OSError as exc:
        part.unlink(missing_ok=True)
        raise _from_os(exc, f"{path} cannot be written") from None


def file_system(path: Path) -> str | None:
    """The type of the file system `path` lies on, from /proc/self/mountinfo; None when it cannot be told."""
    try:
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return None
    best, kind = -1, None
    text = str(path.resolve())
    for line in lines:
        left, _, right = line.partition(" - ")
        mount = left.split()[4].encode().decode("unicode_escape")
        inside = text == mount or text.startswith(mount.rstrip("/") + "/")
        if inside and len(mount) >= best:
            best, kind = len(mount), right.split()[0]
    return kind


def host_name() -> str:
    return socket.gethostname()


def _from_os(exc: OSError, what: str) -> Exception:
    if exc.errno in (28, 122):
        return DiskFull(f"{what}: no space left on the device.", fix="Free some space there and try again.")
    return Refused(f"{what}: {exc.strerror}.", fix="Check its owner and mode, or set LLMGW_HOME.", code="home")
