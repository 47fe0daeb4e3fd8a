"""An SSH server inside this process: makes this machine a node where no sshd runs (address `local`).

Bound to 127.0.0.1; only one key gets in; commands run as this user in sessions of their own, so that engines outlive
the server; forwarding goes to 127.0.0.1 only; no pty, agent, X11, SFTP or remote listener.
"""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path

import asyncssh

from llmgw.config.files import read_plain
from llmgw.errors import Refused
from llmgw.ssh import lean
from llmgw.ssh.command import CommandSession
from llmgw.ssh.identity import parse_public_key, public_text

log = logging.getLogger(__name__)


class EmbeddedServer:
    def __init__(self, authorized_key: str, host_key_path: Path) -> None:
        """`authorized_key` is the one public key that may log in, as any user name. The host key is made when its file
        is missing. Raises UsageError for something that is no key."""
        self._authorized = public_text(parse_public_key(authorized_key))
        self._host_key_path = host_key_path
        self._acceptor: asyncssh.SSHAcceptor | None = None
        self._connections: set[asyncssh.SSHServerConnection] = set()
        self.port = 0
        """Where it listens once started."""
        self.host_key = ""
        """Its public key, `TYPE BASE64`, once started."""

    async def start(self) -> None:
        """Listens on a free port. Raises Refused when the host key cannot be used."""
        key = _host_key(self._host_key_path)
        self.host_key = public_text(key)
        self._acceptor = await asyncssh.listen(
            "127.0.0.1",
            0,
            server_factory=self.serve,
            server_host_keys=[key],
            config=None,
            encoding=None,
            public_key_auth=True,
            password_auth=False,
            kbdint_auth=False,
            host_based_auth=False,
            gss_host=None,
            x509_trusted_certs=None,
            allow_pty=False,
            line_editor=False,
            agent_forwarding=False,
            x11_forwarding=False,
            compression_algs=None,
            encryption_algs=["aes128-gcm@openssh.com", "aes256-gcm@openssh.com", "chacha20-poly1305@openssh.com"],
            login_timeout=15,
            keepalive_interval=0,
            utf8_decode_errors="replace",
        )
        self.port = self._acceptor.get_port()

    def serve(self) -> asyncssh.SSHServer:
        """The server side of one connection; another one in tests that misbehaves."""
        return Server(self._authorized, self._connections)

    async def close(self) -> None:
        """Stops listening and cuts every connection. Commands that still run are ended; what they detached lives on."""
        if self._acceptor is not None:
            self._acceptor.close()
            self._acceptor = None
            for connection in list(self._connections):
                connection.abort()
            await asyncio.gather(*(connection.wait_closed() for connection in list(self._connections)))


class Server(asyncssh.SSHServer):
    """One connection of the embedded server."""

    def __init__(self, authorized: str, connections: set[asyncssh.SSHServerConnection]) -> None:
        self._authorized = authorized
        self._connections = connections
        self._connection: asyncssh.SSHServerConnection | None = None

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        self._connection = conn
        self._connections.add(conn)
        lean.no_empty_packets(conn)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._connection is not None:
            self._connections.discard(self._connection)

    def begin_auth(self, username: str) -> bool:
        return True

    def public_key_auth_supported(self) -> bool:
        return True

    def validate_public_key(self, username: str, key: asyncssh.SSHKey) -> bool:
        return public_text(key) == self._authorized

    def session_requested(self) -> asyncssh.SSHServerSession[bytes]:
        return CommandSession()

    def connection_requested(self, dest_host: str, dest_port: int, orig_host: str, orig_port: int) -> bool:
        if dest_host != "127.0.0.1":
            raise asyncssh.ChannelOpenError(asyncssh.OPEN_ADMINISTRATIVELY_PROHIBITED, "only 127.0.0.1 is forwarded to")
        return True

    def unix_connection_requested(self, dest_path: str) -> bool:
        return False

    def server_requested(self, listen_host: str, listen_port: int) -> bool:
        return False

    def unix_server_requested(self, listen_path: str) -> bool:
        return False


def _host_key(path: Path) -> asyncssh.SSHKey:
    if not path.exists():
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        data = asyncssh.generate_private_key("ssh-ed25519").export_private_key("openssh")
        beside = path.with_name(f".{path.name}.{os.getpid()}")
        beside.unlink(missing_ok=True)
        with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "wb") as file:
            file.write(data)
        os.replace(beside, path)
    try:
        return asyncssh.import_private_key(read_plain(path))
    except (OSError, asyncssh.KeyImportError) as exc:
        raise Refused(
            f"the host key of the embedded SSH server cannot be used: {exc}.",
            fix=f"Remove {path}: a new one is made.",
            code="bad_key",
        ) from None
