"""What asyncssh does for every packet and this project can do without: a good half of what a streamed chunk costs it.

Nothing of the protocol changes. Packets that are plain data of an open channel are taken here; every other packet, and
every fault, is left where it is for asyncssh's own code. This reaches into asyncssh (tried with 2.24):
`tests/ssh/test_lean.py` holds the names it relies on and what must come to the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import asyncssh
import asyncssh.encryption
from asyncssh.constants import MSG_CHANNEL_DATA, MSG_IGNORE
from asyncssh.crypto.cipher import AESGCM, GCMCipher, InvalidTag  # type: ignore[attr-defined]
from asyncssh.encryption import ChachaEncryption, GCMEncryption

_LENGTH, _TAG, _HEAD = 4, 16, 10
"""Bytes of a packet's length, of its tag, and of what stands before the data in the plain text: the padding's length,
the packet's type, the channel, the data's length (RFC 4253, 6; RFC 4254, 5.2; RFC 5647, 7.2)."""
_NOTHING = object()


class Gcm(GCMCipher):
    """AES-GCM with its key expanded once a key exchange and not once a packet. The nonce counts up (RFC 5647, 7.1)."""

    def __init__(self, cipher_name: str, key: bytes, iv: bytes) -> None:
        super().__init__(cipher_name, key, iv)
        self._aead = AESGCM(key)
        self._fixed = iv[:4]
        self._invocation = int.from_bytes(iv[4:], "big")
        self._looked_at: Any = _NOTHING

    def encrypt_and_sign(self, header: bytes, data: bytes) -> tuple[bytes, bytes]:
        sealed = self._aead.encrypt(self._nonce(), data, header)
        return header + sealed[:-_TAG], sealed[-_TAG:]

    def verify_and_decrypt(self, header: bytes, data: bytes, mac: bytes) -> bytes | None:
        if self._looked_at is not _NOTHING:
            plain, self._looked_at = self._looked_at, _NOTHING
            return plain  # type: ignore[no-any-return]
        return self.open(header, data + mac)

    def open(self, header: bytes, sealed: bytes) -> bytes | None:
        """The plain text of the next packet, None where it was tampered with."""
        try:
            return self._aead.decrypt(self._nonce(), sealed, header)
        except InvalidTag:
            return None

    def put_back(self, plain: bytes | None) -> None:
        """`open` has looked at this packet, and asyncssh shall have it."""
        self._looked_at = plain

    def _nonce(self) -> bytes:
        nonce = self._fixed + self._invocation.to_bytes(8, "big")
        self._invocation = (self._invocation + 1) & 0xFFFFFFFFFFFFFFFF
        return nonce


# Every key exchange takes its cipher from here.
asyncssh.encryption.GCMCipher = Gcm  # type: ignore[attr-defined]


def connection(made: Any) -> None:
    """Makes a logged-in asyncssh connection lean."""
    no_empty_packets(made)
    whole, heard = made._recv_data, _one_timer(made)

    def receive() -> None:
        heard()
        _take_data(made)
        if made._inpbuf:
            whole()

    made._recv_data = receive


def channel(chan: Any, receive: Callable[[bytes], None]) -> None:
    """Makes an open channel lean: its data goes to `receive`, which must not raise."""
    half = chan._init_recv_window // 2

    def take(data: bytes) -> bool:
        """False: not now, let asyncssh judge it, buffer it or tell the node that it may go on."""
        left = chan._recv_window - len(data)
        if left < half or chan._recv_paused or chan._recv_state != "open" or chan._send_state != "open":
            return False
        chan._recv_window = left
        receive(data)
        return True

    chan.lean_take = take
    # asyncssh words a log line for every packet before it looks at the level.
    chan.log_received_packet = chan.log_sent_packet = _unlogged


def _take_data(made: Any) -> None:
    """Hands the data at the front of what has arrived to its channels, up to the first packet that is anything else."""
    cipher = getattr(made._recv_encryption, "_cipher", None)
    if type(cipher) is not Gcm or made._packet or made._decompressor or made._recv_handler != made._recv_pkthdr:
        return
    arrived, start = made._inpbuf, 0
    try:
        while len(arrived) - start > _LENGTH + _HEAD + _TAG:
            header = arrived[start : start + _LENGTH]
            length = int.from_bytes(header, "big")
            end = start + _LENGTH + length + _TAG
            if len(arrived) < end or length > made._max_recv_pktlen:
                return
            plain = cipher.open(header, arrived[start + _LENGTH : end])
            if plain is None or not _taken(made, plain):
                cipher.put_back(plain)
                return
            start = end
            made._recv_seq = (made._recv_seq + 1) & 0xFFFFFFFF
    finally:
        if start and made._inpbuf is arrived:  # a connection that was closed in between has none left
            made._inpbuf = arrived[start:]


def _taken(made: Any, plain: bytes) -> bool:
    if len(plain) < _HEAD or plain[1] != MSG_CHANNEL_DATA:
        return len(plain) > 1 and plain[1] == MSG_IGNORE
    take = getattr(made._channels.get(int.from_bytes(plain[2:6], "big")), "lean_take", None)
    size = int.from_bytes(plain[6:_HEAD], "big")
    whole = 0 < size == len(plain) - plain[0] - _HEAD
    return whole and take is not None and take(plain[_HEAD : _HEAD + size])


def _one_timer(made: Any) -> Callable[[], None]:
    """Keepalive with one timer an interval, not one cancelled and one set for every packet. Returns `heard`."""
    time, check = made._loop.time, made._keepalive_timer_callback
    last = time()

    def heard() -> None:
        nonlocal last
        last = time()

    def due() -> None:
        silent = time() - last
        if silent < made._keepalive_interval:
            made._keepalive_timer = made._loop.call_later(made._keepalive_interval - silent, due)
        else:
            check()

    made._reset_keepalive_timer, made._keepalive_timer_callback = heard, due
    made._cancel_keepalive_timer()
    made._set_keepalive_timer()
    return heard


def no_empty_packets(made: Any) -> None:
    """No empty packet ahead of each one, a client's or a server's: it is there for CBC, and AEAD ciphers need none."""
    send = made.send_packet

    def lean(pkttype: int, *args: bytes, handler: Any = None) -> None:
        if pkttype != MSG_IGNORE or not isinstance(made._send_encryption, GCMEncryption | ChachaEncryption):
            send(pkttype, *args, handler=handler)

    made.send_packet = lean


def _unlogged(*about: Any) -> None:
    return
