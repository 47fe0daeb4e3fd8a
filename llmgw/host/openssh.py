"""The operator's own SSH: what first contact with a node is made with."""

from __future__ import annotations

import asyncio
import re
import shlex
import socket
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path

from llmgw.config.files import LARGE, plain, read_plain
from llmgw.config.load import MAX_FILE
from llmgw.core.findings.rules import arg
from llmgw.errors import ConfigError, Refused
from llmgw.host.checks import Here, Said, Sentence, check, info, many, mode, present
from llmgw.model.node import Address
from llmgw.ssh.identity import Login, operator_known_keys, resolve

# Of the agent's protocol (RFC 9987): a request for its keys, and the answer that lists them.
REQUEST_IDENTITIES, IDENTITIES_ANSWER = 11, 12
AGENT_WAIT = 2.0
_EXEC = re.compile(r"^\s*match\b.*\bexec\b", re.I | re.M)
_HOST = re.compile(r"^\s*host[ \t=]+(\S.*)$", re.I | re.M)
_INCLUDE = re.compile(r"^\s*include[ \t=]+(\S.*)$", re.I | re.M)
MOST_HOSTS = 100
MOST_FILES = 100
_PRIVATE = b"PRIVATE KEY-----"


def _folder(here: Here) -> Path:
    return Path(here.environ.get("HOME") or "~").expanduser() / ".ssh"


def _config(here: Here) -> Path | None:
    named = here.effective.ssh.config
    return Path(named).expanduser() if named else None


def _private_keys(here: Here) -> Iterator[Path]:
    folder = _folder(here)
    for path in sorted(folder.iterdir()) if present(folder) else ():
        if path.is_file() and path.suffix != ".pub" and path.stat().st_size < 1 << 16:
            try:
                with path.open("rb") as file:
                    if _PRIVATE in file.readline(100):
                        yield path
            except PermissionError:
                continue


@check("error", "Mend the line, or set ssh.config in llmgw.yaml to another file (null: none).")
def ssh_config_broken(here: Here) -> Said:
    """OpenSSH's configuration cannot be read: no node is reached that is reached by it, and none can be added."""
    path = _config(here)
    if path is None or not present(path):
        return None
    try:
        texts = _texts(path, _folder(here))
    except Refused as exc:
        fix = "Put the file itself there, or set ssh.config in llmgw.yaml to another (null: none)."
        return exc.message.rstrip("."), fix
    if any(_EXEC.search(text) for text in texts):
        raise OSError("it holds `Match exec`: reading it would run a command")
    # A block is only read for a host that it is meant for: so each of them is asked for.
    hosts = [line for text in texts for line in _HOST.findall(text)]
    named = [name for line in hosts for name in line.split() if not set(name) & set("*?!")]
    try:
        asyncio.run(_resolve(["llmgw-doctor", *named[:MOST_HOSTS]], Login(config_files=(path,))))
    except ConfigError as exc:
        return exc.message.rstrip(".")
    return None


def _texts(path: Path, folder: Path) -> list[str]:
    """What is read with this configuration: its own text and that of every file it includes, without quotes. Raises
    OSError and Refused for what cannot be read."""
    read: dict[Path, str] = {}
    waiting = [path]
    while waiting:
        each = waiting.pop()
        if each not in read and len(read) < MOST_FILES:
            text = read_plain(each, MAX_FILE).decode(errors="replace")
            read[each] = re.sub(r"[\"'\\]", "", text)
            for line in _INCLUDE.findall(text):
                for pattern in _words(line):
                    found = folder / Path(pattern).expanduser()
                    waiting += sorted(one for one in Path("/").glob(str(found)[1:]) if one.is_file())
    if waiting:
        raise OSError(f"it includes more than {MOST_FILES} files")
    return list(read.values())


def _words(line: str) -> list[str]:
    """None of a line with a quote that is not closed: whoever reads it for the connection gets no further either."""
    try:
        return shlex.split(line)
    except ValueError:
        return []


async def _resolve(names: Iterable[str], login: Login) -> None:
    for name in names:
        await resolve(name, login=login)


@check("warning", "Take the right to write it from others with `chmod go-w`.")
def ssh_config_open(here: Here) -> Said:
    """OpenSSH refuses a configuration that others may write; llmgw takes it, and they decide where it connects to."""
    path = _config(here)
    found = info(path) if path else None
    if path is None or found is None:
        return None
    if found.st_uid not in (0, here.uid):
        return f"{path} belongs to uid {found.st_uid}", f"sudo chown {here.uid} {arg(str(path))}"
    return (
        (f"others may write {path} (mode {mode(found)})", f"chmod go-w {arg(str(path))}")
        if found.st_mode & 0o022
        else None
    )


@check("warning", "chmod 700 ~/.ssh")
def ssh_folder_open(here: Here) -> Said:
    """Others may write the directory of the operator's keys."""
    folder = _folder(here)
    found = info(folder)
    if found is None or not found.st_mode & 0o022:
        return None
    return f"others may write {folder} (mode {mode(found)})", f"chmod 700 {arg(str(folder))}"


@check("warning", "Take the key from others with `chmod 600`.")
def ssh_key_open(here: Here) -> Said:
    """OpenSSH passes over a private key that others may read, and says so only when it is asked loudly."""
    found: list[Sentence] = []
    for path in _private_keys(here):
        bits = path.stat().st_mode
        if bits & 0o077:
            found.append((f"others may read {path} (mode {bits & 0o7777:04o})", f"chmod 600 {arg(str(path))}"))
    return found


@check("warning", "Mend the line.")
def ssh_known_hosts_broken(here: Here) -> Said:
    """The operator's known_hosts cannot be read: `node add` does not know which hosts are known already."""
    nobody = Address(host="llmgw-doctor.invalid", user="nobody")
    wrong: list[Sentence] = []
    for path in (_folder(here) / "known_hosts", Path("/etc/ssh/ssh_known_hosts")):
        try:
            plain(path, LARGE)
            operator_known_keys(nobody, (path,))
        except FileNotFoundError:
            continue
        except ConfigError as exc:
            wrong.append(exc.message.rstrip("."))
        except Refused as exc:
            wrong.append((exc.message.rstrip("."), exc.fix))
    return wrong


def _agent_keys(path: str) -> int:
    """How many keys the agent on this socket has. Raises OSError for one that does not answer."""
    with socket.socket(socket.AF_UNIX) as agent:
        agent.settimeout(AGENT_WAIT)
        agent.connect(path)
        agent.sendall(struct.pack(">IB", 1, REQUEST_IDENTITIES))
        head = b""
        while len(head) < 9:
            more = agent.recv(9 - len(head))
            if not more:
                raise OSError("it ended the conversation")
            head += more
    _, kind, count = struct.unpack(">IBI", head)
    if kind != IDENTITIES_ANSWER:
        raise OSError("it answers, but lists no keys")
    return int(count)


@check("warning", "Log in again, or `unset SSH_AUTH_SOCK`.")
def agent_dead(here: Here) -> Said:
    """SSH_AUTH_SOCK names an agent that does not answer: it ended, or the session that it was forwarded from did."""
    path = here.environ.get("SSH_AUTH_SOCK")
    if not path:
        return None
    try:
        _agent_keys(path)
    except OSError as exc:
        return f"the agent at {path} does not answer: {exc.strerror or exc}"
    return None


@check("note", "ssh-add")
def agent_empty(here: Here) -> Said:
    """An agent runs and has no key to offer."""
    path = here.environ.get("SSH_AUTH_SOCK")
    try:
        return f"the agent at {path} has no keys" if path and _agent_keys(path) == 0 else None
    except OSError:
        return None  # agent_dead says so


@check("note", "Make one with `ssh-keygen -t ed25519`, or let `node add` ask for a password.")
def login_by_password_only(here: Here) -> Said:
    """Neither an agent nor a key of the operator's: first contact with a node needs its password."""
    if here.environ.get("SSH_AUTH_SOCK") or here.effective.ssh.identities or next(_private_keys(here), None):
        return None
    count = sum(1 for _ in _folder(here).iterdir()) if present(_folder(here)) else 0
    return f"there is no agent and no private key in {_folder(here)} ({many(count, 'file')})"
