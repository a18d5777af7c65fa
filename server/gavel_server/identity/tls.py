"""The server's certificate and the authorities of its clients: read from files, checked, and read again when the files change."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

from gavel_server.identity.errors import IdentityFileError
from gavel_server.identity.mtls import load_certificates
from gavel_server.identity.settings import ClientCertificate, IdentitySettings


class TlsMaterial(NamedTuple):
    """The certificate, key and authorities of a TLS server, in PEM. Its text form shows no key."""

    certificate: bytes
    key: bytes
    client_ca: bytes
    """b"": clients need no certificate."""
    client_certificate: ClientCertificate
    authorities: tuple[x509.Certificate, ...]
    expires_at: datetime

    def __repr__(self) -> str:
        return f"TlsMaterial(expires_at={self.expires_at:%Y-%m-%dT%H:%M:%SZ})"


def load_tls(settings: IdentitySettings) -> TlsMaterial | None:
    """Return the material of the configured files; None: no TLS. Raises IdentityFileError."""
    if settings.tls_cert is None or settings.tls_key is None:
        return None
    chain = _certificates(settings.tls_cert, "tls_cert")
    key = _read(settings.tls_key, "tls_key")
    try:
        public = load_pem_private_key(key, password=None).public_key()
    except (ValueError, TypeError):
        raise IdentityFileError(f"tls_key {settings.tls_key} is not an unencrypted private key in PEM") from None
    form = Encoding.DER, PublicFormat.SubjectPublicKeyInfo
    if public.public_bytes(*form) != chain[0].public_key().public_bytes(*form):
        raise IdentityFileError(f"tls_key {settings.tls_key} is not the key of the first certificate in tls_cert {settings.tls_cert}")
    if chain[0].not_valid_after_utc <= datetime.now(UTC):
        raise IdentityFileError(f"tls_cert {settings.tls_cert} has expired at {chain[0].not_valid_after_utc:%Y-%m-%d %H:%M:%S} UTC")
    authorities: tuple[x509.Certificate, ...] = ()
    if settings.tls_client_ca is not None:
        authorities = tuple(_certificates(settings.tls_client_ca, "tls_client_ca"))
    return TlsMaterial(
        certificate=_pem(chain),
        key=key,
        client_ca=_pem(authorities),
        client_certificate=settings.tls_client_certificate,
        authorities=authorities,
        expires_at=chain[0].not_valid_after_utc,
    )


def _pem(certificates: list[x509.Certificate] | tuple[x509.Certificate, ...]) -> bytes:
    return b"".join(certificate.public_bytes(Encoding.PEM) for certificate in certificates)


def _certificates(path: Path, setting: str) -> list[x509.Certificate]:
    try:
        return load_certificates(path)
    except OSError as error:
        raise IdentityFileError(f"{setting} {path} cannot be read: {error.strerror}") from None
    except ValueError:
        raise IdentityFileError(f"{setting} {path} holds no certificate in PEM") from None


def _read(path: Path, setting: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise IdentityFileError(f"{setting} {path} cannot be read: {error.strerror}") from None
