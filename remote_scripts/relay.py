"""Carries streams between the control plane and engines on this machine where sshd forwards nothing.

One process a connection, for as long as that lasts: ends with its stdin, or after `silence` seconds without a word.
Connects to 127.0.0.1 only. README.md has the frames; llmgw/protocol/relay.py is the other side.
"""
import errno
import os
import resource
import select
import socket
import struct
import sys
import time

import prelude

HEAD = struct.Struct(">BII")
DATA, EOF, CREDIT, OPEN, OPENED, CLOSE, ABORT, CLOSED, PING, PONG = range(1, 11)
FRAME = 32 << 10
CHUNK = 256 << 10
TURN = 16  # engines read before it is written what they said. epoll puts them at its end: all get their turn
READ, WRITE = select.EPOLLIN, select.EPOLLOUT
LATER = (errno.EAGAIN, errno.EWOULDBLOCK, errno.EINTR)


class Stream(object):
    """One connection to an engine. `window`: what we may send to the control plane before it grants more."""
    __slots__ = ("backlog", "deaf", "fd", "last", "mask", "number", "open", "shut", "socket", "taken", "window")

    def __init__(self, number, sock, window):
        self.number, self.socket, self.fd = number, sock, sock.fileno()
        self.open = False    # connected
        self.window = window
        self.backlog = bytearray()  # what the engine has not taken yet
        self.taken = 0       # what it has, and no credit was given for
        self.deaf = False    # nothing more is read from the engine
        self.last = 0        # EOF or CLOSE: what follows the backlog
        self.shut = False    # our side towards the engine is closed
        self.mask = 0        # what is watched; 0 is not watched at all, or epoll would report a hang-up for ever


class Relay(object):
    def __init__(self, window, silence):
        self.window, self.silence = window, silence
        self.streams, self.by_fd = {}, {}
        self.out, self.late = [], False
        self.head, self.left, self.of = b"", 0, 0
        self.everything, self.control = select.epoll(), select.epoll()
        self.everything.register(0, READ)
        self.control.register(0, READ)
        self.control.register(1, WRITE)

    def run(self):
        heard = time.monotonic()
        while True:
            # While stdout takes nothing no engine is read: they wait in their own sockets, not in our memory.
            ready = (self.control if self.late else self.everything).poll(self.silence / 4.0, TURN)
            spoken = False
            for fd, what in ready:
                stream = self.by_fd.get(fd)
                if stream is None:
                    spoken = spoken or fd == 0
                elif not stream.open:
                    self.connected(stream)
                else:
                    if what & ~READ and stream.mask & WRITE:
                        self.push(stream)
                    if what & ~WRITE and stream.mask & READ:
                        self.pull(stream)
            if spoken:  # after the engines: a new socket may have the number of one that has just been closed
                data = receive(0)
                if data == b"":
                    return
                if data:
                    heard = time.monotonic()
                    self.take(data)
            if self.out:
                self.flush()
            if time.monotonic() - heard > self.silence:
                return

    # ---- to and from the control plane ----

    def send(self, kind, number, value=0):
        self.out.append(HEAD.pack(kind, number, value))

    def flush(self):
        data = b"".join(self.out)
        try:
            done = os.write(1, data)
        except OSError as exc:
            if exc.errno not in LATER:
                raise
            done = 0
        self.late = done < len(data)
        self.out = [data[done:]] if self.late else []

    def take(self, data):
        at = 0
        if self.left:
            piece = data[:self.left]
            at = len(piece)
            self.left -= at
            self.to_engine(self.of, piece)
        elif self.head:
            data = self.head + data
            self.head = b""
        end = len(data)
        while end - at >= HEAD.size:
            kind, number, value = HEAD.unpack_from(data, at)
            at += HEAD.size
            if kind == DATA:
                piece = data[at:at + value]
                at += len(piece)
                self.of, self.left = number, value - len(piece)
                self.to_engine(number, piece)
            elif kind == OPEN:
                self.connect(number, value)
            elif kind == PING:
                self.send(PONG, 0)
            else:
                stream = self.streams.get(number)
                if stream is not None:  # else it ended while this was on its way
                    self.told(stream, kind, value)
        if at < end:
            self.head = data[at:]

    def told(self, stream, kind, value):
        if kind == CREDIT:
            stream.window += value
            self.watch(stream)
        elif kind == ABORT:
            self.end(stream)
        elif kind in (EOF, CLOSE):
            stream.last = kind
            stream.deaf = stream.deaf or kind == CLOSE
            self.watch(stream)
            if not stream.backlog:
                self.finish(stream)

    # ---- to and from the engines ----

    def connect(self, number, port):
        if not 0 < port < 65536:
            self.send(CLOSED, number, errno.EINVAL)
            return
        try:
            sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        except OSError as exc:
            self.send(CLOSED, number, exc.errno or errno.EIO)
            return
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stream = self.streams[number] = Stream(number, sock, self.window)
        self.by_fd[stream.fd] = stream
        code = sock.connect_ex(("127.0.0.1", port))
        if code == errno.EINPROGRESS:
            self.watch(stream)
        elif code:
            self.end(stream, code)
        else:
            self.connected(stream)

    def connected(self, stream):
        code = stream.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if not code:
            try:
                # A port without a listener, taken as our own end: TCP then connects us to ourselves.
                code = stream.socket.getsockname() == stream.socket.getpeername() and errno.ECONNREFUSED
            except OSError as exc:
                code = exc.errno
        if code:
            self.end(stream, code)
            return
        stream.open = True
        self.send(OPENED, stream.number)
        self.watch(stream)

    def watch(self, stream):
        """Tells epoll what to wait for. Changes are rare: a window used up, an engine that does not read."""
        if not stream.open:
            mask = WRITE
        else:
            mask = (0 if stream.deaf or stream.window <= 0 else READ) | (WRITE if stream.backlog else 0)
        if mask != stream.mask:
            if not stream.mask:
                self.everything.register(stream.fd, mask)
            elif mask:
                self.everything.modify(stream.fd, mask)
            else:
                self.everything.unregister(stream.fd)
            stream.mask = mask

    def pull(self, stream):
        window = stream.window
        try:
            data = stream.socket.recv(window if window < FRAME else FRAME)
        except OSError as exc:
            if exc.errno not in LATER:
                self.end(stream, exc.errno)
            return
        size = len(data)
        if size:
            self.out += (HEAD.pack(DATA, stream.number, size), data)
            stream.window = window - size
            if window == size:
                self.watch(stream)
        else:
            self.send(EOF, stream.number)
            stream.deaf = True
            self.watch(stream)
            if stream.shut:
                self.end(stream)

    def to_engine(self, number, data):
        stream = self.streams.get(number)
        if stream is not None and data and not stream.last:
            waiting = bool(stream.backlog)
            stream.backlog += data
            if not waiting:
                self.push(stream)

    def push(self, stream):
        try:
            done = stream.socket.send(stream.backlog)
        except OSError as exc:
            if exc.errno not in LATER:
                self.end(stream, exc.errno)
                return
            done = 0
        del stream.backlog[:done]
        stream.taken += done
        if stream.taken >= self.window // 2:
            self.send(CREDIT, stream.number, stream.taken)
            stream.taken = 0
        self.watch(stream)
        if not stream.backlog and stream.last:
            self.finish(stream)

    def finish(self, stream):
        """The engine has all that was sent."""
        if stream.last == CLOSE or stream.deaf:
            self.end(stream)
        elif not stream.shut:
            stream.shut = True
            try:
                stream.socket.shutdown(socket.SHUT_WR)
            except OSError as exc:
                self.end(stream, exc.errno)

    def end(self, stream, code=0):
        if stream.mask:
            self.everything.unregister(stream.fd)
            stream.mask = 0
        stream.socket.close()
        del self.streams[stream.number], self.by_fd[stream.fd]
        self.send(CLOSED, stream.number, code or 0)


def receive(fd):
    """What is there; None when nothing is after all, nothing (b"") at the end."""
    try:
        return os.read(fd, CHUNK)
    except OSError as exc:
        return None if exc.errno in LATER else b""


def many_files():
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError):
        pass


def main(args):
    many_files()
    relay = Relay(int(args["window"]), float(args["silence"]))
    prelude.event(relay=1)
    # Nothing of the conversation is in the reader that brought this script: it begins when the hello has arrived.
    os.set_blocking(0, False)
    os.set_blocking(1, False)
    status = 0
    try:
        relay.run()
    except BrokenPipeError:
        pass
    except Exception:  # no frame of words into the middle of another: they go to stderr
        import traceback
        traceback.print_exc(file=sys.stderr)
        sys.stderr.flush()
        status = 70
    os._exit(status)


prelude.main(main)
