"""Opening the port: what can be wrong with it, and TLS."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import signal
import socket
import ssl
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from llmgw.config.settings import TlsSettings
from llmgw.errors import ConfigError, Refused, Unreachable
from llmgw.gateway.serve import serve

from .engines import plain
from .raw import Raw, ask


async def test_a_port_in_use(house) -> None:
    home = await house()
    with pytest.raises(Refused, match=f"Port {home.port} on 127.0.0.1 is in use") as caught:
        await serve(home.gateway, host="127.0.0.1", port=home.port)
    assert caught.value.code == "port_in_use"
    assert caught.value.exit_status == 4
    assert str(home.port) in caught.value.fix


async def test_an_address_of_another_machine(house) -> None:
    home = await house()
    with pytest.raises(Refused, match="cannot be listened on"):
        await serve(home.gateway, host="203.0.113.7", port=0)
    with pytest.raises(Unreachable, match="no address"):
        await serve(home.gateway, host="no-such-host.invalid", port=0)


async def test_the_port_is_free_again_after_stop(house) -> None:
    first = await house()
    port = first.port
    await first.server.stop()
    second = await house()
    again = await serve(second.gateway, host="127.0.0.1", port=port)
    assert again.port == port
    await again.stop()


async def test_localhost_is_every_address_of_it(house) -> None:
    home = await house()
    server = await serve(home.gateway, host="localhost", port=0)
    for family, _, _, _, address in socket.getaddrinfo("localhost", server.port, type=socket.SOCK_STREAM):
        reader, writer = await asyncio.open_connection(address[0], server.port, family=family)
        writer.write(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        writer.close()
    await server.stop()


async def test_signals_stay_the_programs_own(house) -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    await house()
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


def certificate(folder: Path) -> TlsSettings:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "test")])
    now = datetime.datetime.now(datetime.UTC)
    names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(names, critical=False)
        .sign(key, hashes.SHA256())
    )
    cert_file, key_file = folder / "cert.pem", folder / "key.pem"
    cert_file.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    no_password = serialization.NoEncryption()
    key_file.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, no_password))
    return TlsSettings(cert=str(cert_file), key=str(key_file))


async def test_tls(house, fake, tmp_path: Path) -> None:
    engine = await fake(plain({"ok": True}))
    home = await house(engine.upstream)
    tls = certificate(tmp_path)
    server = await serve(home.gateway, host="127.0.0.1", port=0, tls=tls)
    trust = ssl.create_default_context(cafile=tls.cert)
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=trust)
    raw = Raw(reader, writer, {"authorization": "Bearer sk-test"})
    assert (await raw.ask(ask())).json() == {"ok": True}
    raw.writer.write(raw.head("POST", "/v1/chat/completions", 10**12))
    assert (await raw.answer()).status == 413
    raw.abort()
    await server.stop()


async def test_a_client_certificate_is_asked_for(house, tmp_path: Path) -> None:
    home = await house()
    tls = certificate(tmp_path)
    server = await serve(
        home.gateway, host="127.0.0.1", port=0, tls=TlsSettings(cert=tls.cert, key=tls.key, client_ca=tls.cert)
    )
    trust = ssl.create_default_context(cafile=tls.cert)

    async def health() -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=trust)
        writer.write(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        try:
            return await reader.readexactly(12)
        finally:
            writer.transport.abort()

    with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
        await health()
    trust.load_cert_chain(tls.cert, tls.key)
    assert await health() == b"HTTP/1.1 200"
    await server.stop()


async def test_a_certificate_that_is_none(house, tmp_path: Path) -> None:
    home = await house()
    nonsense = tmp_path / "cert.pem"
    nonsense.write_text("hello")
    for cert in (str(nonsense), str(tmp_path / "missing.pem")):
        with pytest.raises(ConfigError, match="tls"):
            await serve(home.gateway, host="127.0.0.1", port=0, tls=TlsSettings(cert=cert, key=cert))
