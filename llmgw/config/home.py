"""`LLMGW_HOME`: where the control plane keeps what it owns, and who may keep it there."""

from __future__ import annotations

import json
import os
import re
import shlex
import socket
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from llmgw.config.files import LARGE, SMALL, check_text, expanded, is_empty, plain, read_json
from llmgw.errors import DiskFull, LlmgwError, Refused, UsageError

NETWORK_FILE_SYSTEMS = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "ceph", "glusterfs", "fuse.sshfs", "9p", "lustre", "beegfs", "gpfs"}
)
_ID = re.compile(r"[!-~]{1,64}")
"""A cluster id is the comment of a key and an argument of commands: one printable word."""
_ESCAPE = re.compile(r"\\([0-7]{3})")


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
    def identity_file(self) -> Path:
        return self.path / "identity.json"

    @property
    def key(self) -> Path:
        return self.path / "id_ed25519"

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
        except FileExistsError:
            what = "it is a link that leads to no directory" if self.path.is_symlink() else "it is no directory"
            raise Refused(
                f"{self.path} cannot be made the control plane's home: {what}.",
                fix="Set LLMGW_HOME to a directory of its own.",
                code="home",
            ) from None
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

        for strange in self.strangers():
            raise strange

    def strangers(self) -> Iterator[LlmgwError]:
        """What lies in the home under a name of ours and cannot be that: no plain file, far too large, no text,
        or an empty token.

        A server that opens a FIFO hangs for ever, one that reads sixty gigabytes is killed.
        """
        restore = "put the right file back from a copy of the home."
        anew = "the next start makes a new one."
        state = "`llmgw doctor` says then how to go on."
        public = self.key.with_suffix(".pub")
        own: list[tuple[Path, int | None, str]] = [
            (self.lock, SMALL, anew),
            (self.identity_file, SMALL, restore),
            (self.key, SMALL, restore),
            (public, SMALL, anew),
            (self.embedded_host_key, SMALL, anew),
            (self.token, SMALL, anew),
            (self.known_hosts, LARGE, restore),
            *((self.database.with_name(f"{self.database.name}{end}"), None, state) for end in ("", "-wal", "-shm")),
        ]
        for path, most, then in own:
            try:
                plain(path, most)
                if most is not None and path in (public, self.token, self.known_hosts):
                    check_text(path, most)
            except FileNotFoundError:
                continue
            except Refused as exc:
                yield Refused(exc.message, fix=f"Run `{_aside(path)}`; {then}", code=exc.code)
            except OSError as exc:
                yield _from_os(exc, f"{path} cannot be looked at")
        if is_empty(self.token):
            message = f"{self.token} is empty: whoever sends no token at all would be let in."
            yield Refused(message, fix=f"Run `{_aside(self.token)}`; {anew}", code="empty_token")
        # What else lies there is replaced by the server; a directory is not.
        if self.socket.is_dir() and not self.socket.is_symlink():
            message = f"{self.socket} is a directory: no socket can be made there."
            yield Refused(message, fix=f"Run `{_aside(self.socket)}`.", code="no_plain_file")

    def identity(self) -> Identity:
        """Reads `identity.json`, makes it when it is missing."""
        try:
            return self.known_identity()
        except FileNotFoundError:
            identity = Identity(uuid.uuid4().hex[:12], uuid.uuid4().hex)
            write_private(self.identity_file, json.dumps(identity.__dict__, indent=1) + "\n")
            return identity

    def known_identity(self) -> Identity:
        """What `identity.json` says. Raises FileNotFoundError, Refused, UsageError for a damaged one."""
        path = self.identity_file
        try:
            body = read_json(path)
            found = [body["cluster_id"], body["controller_id"]]
        except (ValueError, KeyError, TypeError):
            found = []
        except FileNotFoundError:
            raise
        except OSError as exc:
            raise _from_os(exc, f"{path} cannot be read") from None
        if len(found) != 2 or not all(isinstance(word, str) and _ID.fullmatch(word) for word in found):
            raise UsageError(
                f"{path} is damaged.", fix="Restore it from a backup: nodes obey only the controller it names."
            )
        return Identity(*found)


def find_home(environ: Mapping[str, str] | None = None, uid: int | None = None) -> Home:
    """`LLMGW_HOME`, else `/var/lib/llmgw` for root and `~/.local/state/llmgw` for everybody else.

    Raises UsageError for a name that leads to no path: `~nobody/x`, or a relative one in a directory that is gone.
    """
    environ = os.environ if environ is None else environ
    if named := environ.get("LLMGW_HOME"):
        try:
            return Home(expanded(named).absolute())
        except UsageError as exc:
            raise UsageError(f"LLMGW_HOME is {exc.message}", fix=exc.fix) from None
        except OSError as exc:
            raise UsageError(
                f"LLMGW_HOME is {named}, and the current directory cannot be told: {exc.strerror}.",
                fix="Write the whole path, or change to a directory that exists.",
            ) from None
    if (os.geteuid() if uid is None else uid) == 0:
        return Home(Path("/var/lib/llmgw"))
    return Home(expanded("~/.local/state/llmgw"))


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
        lines = os.fsdecode(Path("/proc/self/mountinfo").read_bytes()).split("\n")
    except OSError:
        return None
    best, kind = -1, None
    text = os.path.realpath(path)
    for line in filter(None, lines):
        left, _, right = line.partition(" - ")
        # Only white space and the backslash are escaped there: whatever else a name holds stands as it is.
        mount = _ESCAPE.sub(lambda found: chr(int(found[1], 8)), left.split(" ")[4])
        inside = text == mount or text.startswith(mount.rstrip("/") + "/")
        if inside and len(mount) >= best:
            best, kind = len(mount), right.split()[0]
    return kind


def host_name() -> str:
    return socket.gethostname()


def _aside(path: Path) -> str:
    return f"mv {shlex.quote(str(path))} {shlex.quote(f'{path}.aside')}"


def _from_os(exc: OSError, what: str) -> DiskFull | Refused:
    if exc.errno in (28, 122):
        return DiskFull(f"{what}: no space left on the device.", fix="Free some space there and try again.")
    return Refused(f"{what}: {exc.strerror}.", fix="Check its owner and mode, or set LLMGW_HOME.", code="home")
