"""Keys, identity, pins, token, certificates: what is a file so that it survives the database."""

from __future__ import annotations

import datetime
import os
import subprocess
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from llmgw.config.home import Home
from tests.host.conftest import Look, codes, said


def mend(text: str) -> None:
    subprocess.run(["sh", "-c", text.partition(" → ")[2]], check=True)


def test_the_key_may_be_read_by_others(home: Home, look: Look):
    (home.path / "id_ed25519").chmod(0o644)
    text = said(look(), "key_unusable")
    assert "mode 0644" in text
    mend(text)
    assert "key_unusable" not in codes(look())


def test_the_key_is_no_key(home: Home, look: Look):
    (home.path / "id_ed25519").write_text("-----BEGIN OPENSSH PRIVATE KEY-----\nrubbish\n")
    (home.path / "id_ed25519").chmod(0o600)
    report = look()
    assert "is no unencrypted OpenSSH private key" in said(report, "key_unusable")
    assert "key_public_differs" not in codes(report)


def test_the_key_is_gone_and_none_is_made(home: Home, look: Look):
    (home.path / "id_ed25519").unlink()
    assert "the state knows 1 nodes" in said(look(), "key_missing")
    assert not (home.path / "id_ed25519").exists()


def test_the_public_half_is_another(home: Home, look: Look):
    (home.path / "id_ed25519.pub").write_text("ssh-ed25519 AAAA other\n")
    report = look()
    assert "not the key's other half" in said(report, "key_public_differs")
    assert report.ok


@pytest.mark.parametrize("text", ["", "{}", '{"cluster_id": ""}', "[1]", "nonsense", "null"])
def test_a_damaged_identity(home: Home, look: Look, text: str):
    (home.path / "identity.json").write_text(text)
    assert "is damaged" in said(look(), "identity_damaged")
    assert (home.path / "identity.json").read_text() == text


def test_the_identity_is_gone_and_none_is_made(home: Home, look: Look):
    (home.path / "identity.json").unlink()
    assert "takes a new identity" in said(look(), "identity_missing")
    assert not (home.path / "identity.json").exists()


def test_the_identity_of_another_state(home: Home, look: Look):
    (home.path / "identity.json").write_text('{"cluster_id": "c", "controller_id": "somebodyelse"}')
    assert "names controller somebody…" in said(look(), "identity_differs")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("10.0.0.3 ssh-ed25519\n", "is no known_hosts line"),
        ("10.0.0.3 ssh-ed25519 rubbish\n", "holds no key for 10.0.0.3"),
    ],
)
def test_damaged_pins(home: Home, look: Look, line: str, words: str):
    with home.known_hosts.open("a") as file:
        file.write(line)
    text = said(look(), "known_hosts_damaged")
    assert words in text
    assert "known_hosts:2" in text


def test_pins_that_are_no_text(home: Home, look: Look):
    home.known_hosts.write_bytes(b"\xff\xfe\x00")
    assert "known_hosts cannot be read: it is no text" in said(look(), "files_unusable")


def test_a_token_that_is_guessed(home: Home, look: Look):
    home.token.write_text("secret\n")
    assert "holds 6 characters" in said(look(), "token_weak")


def test_a_token_that_lets_everybody_in(home: Home, look: Look):
    home.token.write_text("\n")
    text = said(look(), "files_unusable")
    assert "whoever sends no token at all would be let in" in text
    subprocess.run(["sh", "-ec", text.split("`")[1]], check=True)
    assert look().ok


def test_files_that_others_may_use(home: Home, look: Look):
    home.token.chmod(0o644)
    home.database.chmod(0o666)
    text = said(look(), "files_open")
    assert "admin.token (mode 0644) and state.db (mode 0666)" in text
    mend(text)
    assert "files_open" not in codes(look())


def test_a_link_where_the_state_should_be(home: Home, look: Look, tmp_path: Path):
    home.database.rename(tmp_path / "elsewhere.db")
    home.database.symlink_to(tmp_path / "elsewhere.db")
    assert "state.db in" in said(look(), "files_linked")


# ---- certificates ----


def certificate(folder: Path, days: int, *, begins: int = -1) -> tuple[Path, Path]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "llm.example")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now + datetime.timedelta(days=begins))
        .not_valid_after(now + datetime.timedelta(days=days))
        .sign(key, hashes.SHA256())
    )
    folder.mkdir(exist_ok=True)
    cert, private = folder / "cert.pem", folder / "key.pem"
    cert.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    private.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    private.chmod(0o600)
    return cert, private


def configure(home: Home, cert: Path, key: Path, more: str = "") -> None:
    home.config.write_text(f"listen: 0.0.0.0:0\nadmin_listen: null\ntls: {{cert: {cert}, key: {key}{more}}}\n")


def test_a_good_certificate(home: Home, look: Look, tmp_path: Path):
    configure(home, *certificate(tmp_path / "tls", 90))
    report = look()
    assert not {code for code in codes(report) if code.startswith(("tls", "listen"))}


def test_certificates_and_their_time(home: Home, look: Look, tmp_path: Path):
    configure(home, *certificate(tmp_path / "tls", 5))
    assert "expires in 4 d 23 h" in said(look(), "tls_expires")
    configure(home, *certificate(tmp_path / "tls", -1, begins=-10))
    report = look()
    assert "expired 1 d ago" in said(report, "tls_expired")
    assert "tls_expires" not in codes(report)
    configure(home, *certificate(tmp_path / "tls", 50, begins=2))
    assert "is the clock right?" in said(look(), "tls_expired")


def test_a_key_of_another_certificate(home: Home, look: Look, tmp_path: Path):
    configure(home, certificate(tmp_path / "one", 90)[0], certificate(tmp_path / "other", 90)[1])
    assert "does not belong to the certificate" in said(look(), "tls_unusable")


def test_certificates_that_cannot_be_used(home: Home, look: Look, tmp_path: Path):
    cert, key = certificate(tmp_path / "tls", 90)
    configure(home, tmp_path / "none.pem", key)
    assert "none.pem cannot be read" in said(look(), "tls_unusable")
    (tmp_path / "text.pem").write_text("hello")
    configure(home, tmp_path / "text.pem", key)
    assert "cannot be used" in said(look(), "tls_unusable")
    configure(home, cert, key, f", client_ca: {tmp_path}/text.pem")
    assert "client_ca" in said(look(), "tls_unusable")


def test_an_encrypted_key_asks_nobody(home: Home, look: Look, tmp_path: Path):
    cert, key = certificate(tmp_path / "tls", 90)
    locked = tmp_path / "locked.pem"
    subprocess.run(["openssl", "ec", "-in", key, "-aes128", "-passout", "pass:x", "-out", locked], check=True)
    configure(home, cert, locked)
    assert "is encrypted" in said(look(), "tls_unusable")


def test_a_certificate_key_that_everybody_reads(home: Home, look: Look, tmp_path: Path):
    cert, key = certificate(tmp_path / "tls", 90)
    key.chmod(0o644)
    configure(home, cert, key)
    text = said(look(), "tls_key_open")
    mend(text)
    assert os.stat(key).st_mode & 0o777 == 0o600
