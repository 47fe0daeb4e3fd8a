"""What a certificate file says of itself: whom it is for and how long it holds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.x509.oid import ExtensionOID

from llmgw.config.files import LARGE, read_plain
from llmgw.errors import UsageError


@dataclass(frozen=True)
class Certificate:
    names: tuple[str, ...]
    """The DNS names and addresses it is for."""
    begins: float
    ends: float
    """Unix seconds."""


def read(path: Path) -> Certificate:
    """The first certificate of a PEM file. Raises UsageError when there is none, OSError."""
    try:
        found = x509.load_pem_x509_certificate(read_plain(path, LARGE))
    except ValueError:
        raise UsageError(f"{path} holds no certificate in PEM form.") from None
    return Certificate(_names(found), found.not_valid_before_utc.timestamp(), found.not_valid_after_utc.timestamp())


def _names(found: x509.Certificate) -> tuple[str, ...]:
    try:
        value = found.extensions.get_extension_for_oid(ExtensionOID.SUBJECT_ALTERNATIVE_NAME).value
    except (x509.ExtensionNotFound, ValueError):
        return ()
    assert isinstance(value, x509.SubjectAlternativeName)
    return tuple(str(each.value) for each in value if isinstance(each, (x509.DNSName, x509.IPAddress)))
