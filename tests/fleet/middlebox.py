"""What may stand between a control plane and a node: a firewall that forgets connections without a word."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

from tests.fleet.machines import NET, Machine


class Middlebox:
    """Passes TCP on to a node's port 22. `idle`: seconds after which it forgets a connection on which nothing moved.

    Of a forgotten connection every byte vanishes, both ways, as of one whose state a firewall has dropped.
    """

    def __init__(self, machine: Machine, *, idle: float | None = None) -> None:
        self.accepted = 0
        self.idle = idle
        self.machine = machine
        self._live: list[_Passing] = []
        self._listener = socket.create_server((f"{NET}.1", 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    @property
    def target(self) -> str:
        return f"{self.machine.user}@{NET}.1:{self.port}"

    def forget(self) -> None:
        """Every connection of now is dead from here on, and neither end is told."""
        for passing in self._live:
            passing.forgotten = True

    def shut(self) -> None:
        """Nothing listens any more; what is connected stays."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def open(self) -> None:
        self._listener = socket.create_server((f"{NET}.1", self.port))
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def close(self) -> None:
        self.shut()
        for passing in self._live:
            passing.close()

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                inside, _ = listener.accept()
                self.accepted += 1
                self._live.append(_Passing(inside, self))


class _Passing:
    def __init__(self, inside: socket.socket, box: Middlebox) -> None:
        self.forgotten = False
        self._box = box
        self._moved = time.monotonic()
        self._ends = (inside, socket.create_connection((box.machine.address, 22), timeout=5))
        self._ends[1].settimeout(None)
        for source, sink in (self._ends, self._ends[::-1]):
            threading.Thread(target=self._pump, args=(source, sink), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                now, idle = time.monotonic(), self._box.idle
                if idle is not None and now - self._moved > idle:
                    self.forgotten = True
                self._moved = now
                if not self.forgotten:
                    sink.sendall(data)
            if not self.forgotten:
                sink.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        for end in self._ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
