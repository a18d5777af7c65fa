"""Client certificates: verified against the configured authorities, and named by SPIFFE id, DNS name or common name.

The TLS library verifies a certificate once, in the handshake. It is verified here again with the authorities of now, because a connection
may outlive the authority that vouched for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from cryptography.x509.verification import Criticality, ExtensionPolicy, Policy, PolicyBuilder, Store, VerificationError
from gavel_rules.identity.principal import Principal

from gavel_server.identity.errors import unauthenticated
from gavel_server.identity.names import checked_name
from gavel_server.identity.sessions import Session, Source
from gavel_server.identity.settings import MtlsName

_SPIFFE: Final = "spiffe://"
CHAIN_MAX: Final = 8


class CertificateAuthenticator:
    """Makes sessions of verified client certificates. `use` replaces the authorities."""

    def __init__(self, names: Sequence[MtlsName], authorities: Sequence[x509.Certificate]) -> None:
        """`names` are the kinds of names that are accepted; the first kind that a certificate has gives the name."""
        self._names: Final = tuple(names)
        self._authorities = tuple(authorities)

    def use(self, authorities: Sequence[x509.Certificate]) -> None:
        """Take the authorities that certificates are verified against from now on."""
        self._authorities = tuple(authorities)

    def session(self, certificates: tuple[bytes, ...]) -> Session:
        """Return the session of a client's certificates, its own first. Raises ServiceError UNAUTHENTICATED."""
        if len(certificates) > CHAIN_MAX:
            raise unauthenticated(f"the client sent more than {CHAIN_MAX} certificates")
        try:
            own, *others = [x509.load_der_x509_certificate(data) for data in certificates]
        except ValueError:
            raise unauthenticated("the client certificate cannot be read") from None
        chain = self._chain(own, others)
        if isinstance(chain, str):
            raise unauthenticated(chain)
        principal = Principal(
            name=self._name(own),
            method="mtls",
            issuer=own.issuer.rfc4514_string(),
            credential_id=own.fingerprint(SHA256()).hex(),
        )
        # An authority that expires before its clients ends their sessions: a new connection would be refused, too.
        expires_at = min(certificate.not_valid_after_utc for certificate in chain).timestamp()
        return Session(principal, expires_at, Source(certificates=certificates))

    def problem(self, certificates: tuple[bytes, ...]) -> str:
        """Return why certificates that were accepted are accepted no longer, or ""."""
        own, *others = [x509.load_der_x509_certificate(data) for data in certificates]
        chain = self._chain(own, others)
        return chain if isinstance(chain, str) else ""

    def _chain(self, own: x509.Certificate, others: list[x509.Certificate]) -> list[x509.Certificate] | str:
        """Return the certificates from the client's own up to the authority, or why there is no such chain."""
        now = datetime.now(UTC)
        if now < own.not_valid_before_utc:
            return "the client certificate is not valid yet"
        if now >= own.not_valid_after_utc:
            return "the client certificate has expired"
        if not self._authorities:
            return "client certificates are not accepted: the server has no tls_client_ca"
        builder = PolicyBuilder().store(Store(list(self._authorities))).time(now.replace(tzinfo=None))
        builder = builder.extension_policies(ca_policy=_authority_policy(), ee_policy=_client_policy())
        try:
            return builder.build_client_verifier().verify(own, others).chain
        except VerificationError:
            return "the client certificate is not signed by an authority of tls_client_ca, or not for client authentication"

    def _name(self, certificate: x509.Certificate) -> str:
        try:
            names: x509.SubjectAlternativeName | None = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        except x509.ExtensionNotFound:
            names = None
        for kind in self._names:
            subjects = _names_of(kind, certificate, names)
            if len(subjects) > 1 and kind == "spiffe":
                raise unauthenticated("the client certificate has several SPIFFE ids; it must have one")
            if subjects and kind != "spiffe" and subjects[0].startswith(_SPIFFE):
                raise unauthenticated(f"the client certificate's {kind} has the form of a SPIFFE id, which only a URI name may have")
            if subjects:
                return checked_name(subjects[0], "the name in the client certificate")
        raise unauthenticated(f"the client certificate has no name of the kinds that the server accepts: {', '.join(self._names)}")


def load_certificates(path: Path) -> list[x509.Certificate]:
    """Return the certificates of a PEM file. Raises OSError, ValueError."""
    return x509.load_pem_x509_certificates(path.read_bytes())


def _names_of(kind: MtlsName, certificate: x509.Certificate, names: x509.SubjectAlternativeName | None) -> list[str]:
    match kind:
        case "spiffe":
            uris = [] if names is None else names.get_values_for_type(x509.UniformResourceIdentifier)
            return [uri for uri in uris if uri.startswith(_SPIFFE)]
        case "dns":
            return [] if names is None else names.get_values_for_type(x509.DNSName)
        case "cn":
            return [str(attribute.value) for attribute in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]


def _client_policy() -> ExtensionPolicy:
    """The extensions of a client's own certificate: any kind of name will do; if it says for whom it is, it must be for clients."""

    def is_for_clients(_: Policy, certificate: x509.Certificate, usage: x509.ExtendedKeyUsage | None) -> None:
        if usage is not None and not {ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE} & {*usage}:
            raise ValueError("not for client authentication")

    def is_no_authority(_: Policy, certificate: x509.Certificate, constraints: x509.BasicConstraints | None) -> None:
        if constraints is not None and constraints.ca:
            raise ValueError("an authority's certificate")

    return (
        ExtensionPolicy.permit_all()
        .may_be_present(x509.ExtendedKeyUsage, Criticality.AGNOSTIC, is_for_clients)
        .may_be_present(x509.BasicConstraints, Criticality.AGNOSTIC, is_no_authority)
    )


def _authority_policy() -> ExtensionPolicy:
    """The extensions of authorities: they must say that they are authorities, and that they may sign certificates if they say for what."""

    def is_authority(_: Policy, certificate: x509.Certificate, constraints: x509.BasicConstraints) -> None:
        if not constraints.ca:
            raise ValueError("not an authority's certificate")

    def may_sign(_: Policy, certificate: x509.Certificate, usage: x509.KeyUsage | None) -> None:
        if usage is not None and not usage.key_cert_sign:
            raise ValueError("may not sign certificates")

    return (
        ExtensionPolicy.permit_all()
        .require_present(x509.BasicConstraints, Criticality.AGNOSTIC, is_authority)
        .may_be_present(x509.KeyUsage, Criticality.AGNOSTIC, may_sign)
    )
