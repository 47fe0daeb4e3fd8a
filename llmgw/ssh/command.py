"""A command that the embedded SSH server runs: a process in a session of its own, streamed with back-pressure."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import signal
from typing import cast

import asyncssh

log = logging.getLogger(__name__)

KILL_AFTER = 3.0
"""Seconds between TERM and KILL for a command whose channel has closed."""
HOME = os.path.expanduser("~")


def environment() -> dict[str, str]:
    """What a command sees: ours without what belongs to the control plane and its unit (F72)."""
    dropped = ("LLMGW_", "SSH_", "NOTIFY_SOCKET", "INVOCATION_ID", "JOURNAL_STREAM", "WATCHDOG_", "LISTEN_", "MAINPID")
    return {name: value for name, value in os.environ.items() if not name.startswith(dropped)}


def argv(command: str) -> list[str]:
    """`command` under /bin/sh; inside a systemd unit in a scope of its own, which the unit's stop leaves alone."""
    shell = ["/bin/sh", "-c", command]
    if "INVOCATION_ID" in os.environ and shutil.which("systemd-run"):
        owner = "--system" if os.geteuid() == 0 else "--user"
        return ["systemd-run", owner, "--scope", "--quiet", "--collect", "--", *shell]
    return shell


class CommandSession(asyncssh.SSHServerSession[bytes]):
    """The channel's side. Refuses a shell and subsystems."""

    def __init__(self) -> None:
        self.channel: asyncssh.SSHServerChannel[bytes] | None = None
        self._process = _Process(self)
        self._starting: asyncio.Task[None] | None = None
        self._unread: list[bytes] = []
        self.ended = False
        self._eof = False

    def connection_made(self, chan: asyncssh.SSHServerChannel[bytes]) -> None:
        self.channel = chan
        chan.set_encoding(None)

    def exec_requested(self, command: str) -> bool:
        self._starting = asyncio.create_task(self._start(argv(command)))
        return True

    def shell_requested(self) -> bool:
        return False

    def subsystem_requested(self, subsystem: str) -> bool:
        return False

    async def _start(self, words: list[str]) -> None:
        channel = self.channel
        assert channel is not None
        channel.pause_reading()
        try:
            await asyncio.get_running_loop().subprocess_exec(
                lambda: self._process, *words, start_new_session=True, env=environment(), cwd=HOME
            )
        except (OSError, ValueError) as exc:  # ValueError: a NUL in the command
            channel.write_stderr(f"{words[0]}: {exc}\n".encode())
            channel.exit(126)
            return
        if self.ended:
            self._process.end()
            return
        for data in self._unread:
            self._process.feed(data)
        self._unread.clear()
        if self._eof:
            self._process.feed_eof()
        if not self._process.full:
            channel.resume_reading()

    def data_received(self, data: bytes, datatype: int | None) -> None:
        if self._process.started:
            self._process.feed(data)
        else:
            self._unread.append(data)  # at most what came before reading was paused

    def eof_received(self) -> bool:
        self._eof = True
        if self._process.started:
            self._process.feed_eof()
        return True

    def pause_writing(self) -> None:
        self._process.pause_output()

    def resume_writing(self) -> None:
        self._process.resume_output()

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended = True
        self._process.end()


class _Process(asyncio.SubprocessProtocol):
    """The process's side: its pipes to the channel and back. Neither side may run ahead of the other."""

    def __init__(self, session: CommandSession) -> None:
        self._session = session
        self._transport: asyncio.SubprocessTransport | None = None
        self._paused = False
        self._full = False

    @property
    def started(self) -> bool:
        return self._transport is not None

    @property
    def full(self) -> bool:
        """Whether it reads more slowly than it is fed."""
        return self._full

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.SubprocessTransport, transport)
        if self._paused:
            self.pause_output()

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        channel = self._session.channel
        if channel is None or channel.is_closing():
            return
        if fd == 1:
            channel.write(data)
        else:
            channel.write_stderr(data)

    def process_exited(self) -> None:
        if self._session.ended and self._transport is not None:
            self._transport.close()

    def pause_writing(self) -> None:  # the process's stdin is full
        self._full = True
        if self._session.channel is not None:
            self._session.channel.pause_reading()

    def resume_writing(self) -> None:
        # Not from within: what waits in the channel is handed over at once, its end too, and asyncio's pipe, which is
        # in the middle of writing, would close on that end with the last piece still in its hand.
        self._full = False
        asyncio.get_running_loop().call_soon(self._read_on)

    def _read_on(self) -> None:
        if self._session.channel is not None and not self._full:
            self._session.channel.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """Ended, and all its pipes too: like sshd, a command lasts until its output is closed by all who hold it."""
        channel, transport = self._session.channel, self._transport
        if channel is None or transport is None or channel.is_closing():
            return
        status = transport.get_returncode()
        if status is not None and status < 0:
            name = signal.Signals(-status).name.removeprefix("SIG")
            channel.exit_with_signal(name)
        else:
            channel.exit(status if status is not None else 255)

    def feed(self, data: bytes) -> None:
        if (stdin := self._stdin) is not None and not stdin.is_closing():
            stdin.write(data)

    def feed_eof(self) -> None:
        if (stdin := self._stdin) is not None:
            stdin.close()

    def pause_output(self) -> None:
        self._paused = True
        for pipe in self._outputs():
            pipe.pause_reading()

    def resume_output(self) -> None:
        self._paused = False
        for pipe in self._outputs():
            pipe.resume_reading()

    def end(self) -> None:
        """The channel is gone: the command and its group are ended. What has left the group (an engine) is not."""
        transport = self._transport
        if transport is None:
            return
        if transport.get_returncode() is not None:
            transport.close()  # its pipes, which a grandchild may hold
            return
        self.feed_eof()
        self._signal(signal.SIGTERM)
        asyncio.get_running_loop().call_later(KILL_AFTER, self._signal, signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        transport = self._transport
        # While there is no return code the process is not reaped, so its number cannot be another's (F32).
        if transport is not None and transport.get_returncode() is None:
            try:
                os.killpg(transport.get_pid(), number)
            except ProcessLookupError:
                return

    @property
    def _stdin(self) -> asyncio.WriteTransport | None:
        if self._transport is None:
            return None
        return cast("asyncio.WriteTransport | None", self._transport.get_pipe_transport(0))

    def _outputs(self) -> list[asyncio.ReadTransport]:
        if self._transport is None:
            return []
        pipes = (self._transport.get_pipe_transport(fd) for fd in (1, 2))
        return [cast(asyncio.ReadTransport, pipe) for pipe in pipes if pipe is not None and not pipe.is_closing()]
