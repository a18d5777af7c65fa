"""Certificates to try out TLS: an authority, a server and clients, valid for a month. Production has an authority of its own."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from gavel_server.process.private_files import make_directory, open_private

VALID_DAYS: Final = 30
HOSTS_DEFAULT: Final = ("localhost", "127.0.0.1", "::1")
# Clocks of other machines may be behind.
_CLOCK_SKEW: Final = timedelta(minutes=5)
_CRITICAL: Final = True


class Authority:
    """A certificate authority with its key."""

    def __init__(self, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
        self.certificate: Final = certificate
        self._key: Final = key

    @staticmethod
    def create(name: str = "Gavel development CA") -> Authority:
        """Return a new authority."""
        key = ec.generate_private_key(ec.SECP256R1())
        usage = x509.KeyUsage(
            False, False, False, False, False, key_cert_sign=True, crl_sign=True, encipher_only=False, decipher_only=False
        )
        builder = (
            _builder(name, _name(name), key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=_CRITICAL)
            .add_extension(usage, critical=_CRITICAL)
        )
        return Authority(builder.sign(key, SHA256()), key)

    @staticmethod
    def load(certificate: Path, key: Path) -> Authority:
        """Return the authority of two files. Raises OSError, ValueError."""
        private = load_pem_private_key(key.read_bytes(), password=None)
        if not isinstance(private, ec.EllipticCurvePrivateKey):
            raise ValueError(f"{key} was not made by gavel certs dev; give another directory")
        return Authority(x509.load_pem_x509_certificate(certificate.read_bytes()), private)

    def save(self, certificate: Path, key: Path) -> None:
        """Write both files. Raises OSError."""
        _write(certificate, key, self.certificate, self._key)

    def issue(
        self,
        certificate: Path,
        key: Path,
        name: str,
        names: Sequence[x509.GeneralName] = (),
        *,
        for_server: bool = False,
        valid_from: datetime | None = None,
        valid_days: float = VALID_DAYS,
    ) -> None:
        """Write a new certificate and its key. `names` are its subject alternative names. Raises OSError."""
        private = ec.generate_private_key(ec.SECP256R1())
        purpose = ExtendedKeyUsageOID.SERVER_AUTH if for_server else ExtendedKeyUsageOID.CLIENT_AUTH
        builder = (
            _builder(name, self.certificate.subject, private.public_key(), valid_from, valid_days)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=_CRITICAL)
            .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        _write(certificate, key, builder.sign(self._key, SHA256()), private)


def make_certificates(directory: Path, hosts: Sequence[str], clients: Sequence[str]) -> list[Path]:
    """Make the certificates that are missing in a directory, and return the files that were written. Raises OSError, ValueError."""
    make_directory(directory)
    written: list[Path] = []
    ca, ca_key = _pair(directory, "ca")
    if ca.exists() and ca_key.exists():
        authority = Authority.load(ca, ca_key)
    else:
        authority = Authority.create()
        authority.save(ca, ca_key)
        written += [ca, ca_key]
    server = _pair(directory, "server")
    if not server[0].exists():
        authority.issue(*server, hosts[0], [host_name(host) for host in hosts], for_server=True)
        written += server
    for client in clients:
        if not client or client in ("ca", "server", ".", "..") or "/" in client or client.endswith("-key"):
            raise ValueError(f"{client!r} cannot be the name of a client's files; use letters, digits and hyphens")
        files = _pair(directory, client)
        if not files[0].exists():
            authority.issue(*files, client)
            written += files
    return written


def host_name(host: str) -> x509.GeneralName:
    """Return a host as a subject alternative name: an IP address or a DNS name."""
    try:
        return x509.IPAddress(ipaddress.ip_address(host.strip("[]")))
    except ValueError:
        return x509.DNSName(host)


def _pair(directory: Path, name: str) -> tuple[Path, Path]:
    return directory / f"{name}.pem", directory / f"{name}-key.pem"


def _name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _builder(
    subject: str,
    issuer: x509.Name,
    public: ec.EllipticCurvePublicKey,
    valid_from: datetime | None = None,
    valid_days: float = VALID_DAYS,
) -> x509.CertificateBuilder:
    start = valid_from or datetime.now(UTC) - _CLOCK_SKEW
    return (
        x509.CertificateBuilder()
        .subject_name(_name(subject))
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(start + timedelta(days=valid_days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    )


def _write(certificate_file: Path, key_file: Path, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
    """Write both files, each whole or not at all. The key's file is private from the start."""
    for path, content in (
        (key_file, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())),
        (certificate_file, certificate.public_bytes(Encoding.PEM)),
    ):
        new = path.with_name(path.name + ".new")
        with open(new, "wb", opener=open_private) as file:
            file.write(content)
        if path is certificate_file:
            new.chmod(0o644)
        os.replace(new, path)
