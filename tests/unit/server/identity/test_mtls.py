"""Client certificates: which are accepted, for how long, and whom they name."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID
from gavel_server.errors import ServiceError
from gavel_server.identity.development_certificates import Authority
from gavel_server.identity.mtls import CHAIN_MAX, CertificateAuthenticator
from gavel_server.identity.settings import MtlsName

NAMES: tuple[MtlsName, ...] = ("spiffe", "dns", "cn")
SPIFFE = x509.UniformResourceIdentifier("spiffe://acme/orders-db")
DNS = x509.DNSName("orders.acme.example")


class Issuing:
    """An authority that issues to files of a directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.authority = Authority.create("clients")

    def issue(self, *names: x509.GeneralName, name: str = "caller", for_server: bool = False, valid_from: datetime | None = None) -> bytes:
        """Return a client's certificate in DER."""
        files = self._directory / "one.pem", self._directory / "one-key.pem"
        self.authority.issue(*files, name, names, for_server=for_server, valid_from=valid_from, valid_days=1)
        return x509.load_pem_x509_certificate(files[0].read_bytes()).public_bytes(Encoding.DER)


@pytest.fixture
def issuing(tmp_path: Path) -> Issuing:
    """The authority of a server's clients."""
    return Issuing(tmp_path)


def authenticator(issuing: Issuing, names: tuple[MtlsName, ...] = NAMES) -> CertificateAuthenticator:
    """Return the authenticator that accepts the authority."""
    return CertificateAuthenticator(names, [issuing.authority.certificate])


def refusal(verified: CertificateAuthenticator, *certificates: bytes) -> str:
    """Return the message with which certificates are refused."""
    with pytest.raises(ServiceError) as raised:
        verified.session(certificates)
    return str(raised.value)


@pytest.mark.parametrize(
    ("order", "names", "expected"),
    [
        (NAMES, (SPIFFE, DNS), "spiffe://acme/orders-db"),
        (("dns", "spiffe"), (SPIFFE, DNS), "orders.acme.example"),
        (("cn",), (SPIFFE, DNS), "caller"),
        (NAMES, (), "caller"),
        (("spiffe", "cn"), (DNS,), "caller"),
    ],
)
def test_names(issuing: Issuing, order: tuple[MtlsName, ...], names: tuple[x509.GeneralName, ...], expected: str) -> None:
    """The first kind of name that the certificate has, in the configured order, names the principal."""
    session = authenticator(issuing, order).session((issuing.issue(*names),))
    assert (expected, "mtls", "CN=clients") == (session.principal.name, session.principal.method, session.principal.issuer)


def test_names_that_are_refused(issuing: Issuing) -> None:
    """A certificate without a name of the configured kinds, with two SPIFFE ids, or with a reserved name is refused."""
    other = x509.UniformResourceIdentifier("spiffe://acme/payments")
    assert "has several SPIFFE ids" in refusal(authenticator(issuing), issuing.issue(SPIFFE, other))
    assert "has no name of the kinds" in refusal(authenticator(issuing, ("spiffe", "dns")), issuing.issue())
    for name in ("uid:0", "gavel:server", "anonymous", "group:admins"):
        assert "is reserved" in refusal(authenticator(issuing), issuing.issue(name=name))


def test_names_that_imitate_a_spiffe_id(issuing: Issuing) -> None:
    """A common name is no SPIFFE id: an authority that lets callers choose theirs would let them be anybody."""
    imitation = issuing.issue(name=SPIFFE.value)
    for order in (NAMES, ("cn",)):
        assert "has the form of a SPIFFE id" in refusal(authenticator(issuing, order), imitation)
    assert SPIFFE.value == authenticator(issuing).session((issuing.issue(SPIFFE, name=SPIFFE.value),)).principal.name


def test_lifetime(issuing: Issuing) -> None:
    """A session ends with its certificate; one that is not valid now is refused."""
    now = datetime.now(UTC)
    session = authenticator(issuing).session((issuing.issue(valid_from=now - timedelta(hours=1)),))
    assert abs(session.expires_at - (now + timedelta(hours=23)).timestamp()) < 2
    assert "has expired" in refusal(authenticator(issuing), issuing.issue(valid_from=now - timedelta(days=2)))
    assert "is not valid yet" in refusal(authenticator(issuing), issuing.issue(valid_from=now + timedelta(hours=1)))


def test_lifetime_of_the_chain(tmp_path: Path) -> None:
    """A session ends with the first certificate of its chain that expires, not only with the client's own."""
    now = datetime.now(UTC)
    root_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())

    def authority(name: str, public: ec.EllipticCurvePublicKey, hours: int) -> x509.Certificate:
        return (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
            .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "root")]))
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + timedelta(hours=hours))
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(root_key, SHA256())
        )

    for root_hours, middle_hours, expected in ((100, 2, 2), (3, 50, 3), (100, 50, 24)):
        root = authority("root", root_key.public_key(), root_hours)
        middle = authority("middle", key.public_key(), middle_hours)
        issuing = Issuing(tmp_path)
        issuing.authority = Authority(middle, key)
        chain = issuing.issue(), middle.public_bytes(Encoding.DER)
        session = CertificateAuthenticator(NAMES, [root]).session(chain)
        assert abs(session.expires_at - (now + timedelta(hours=expected)).timestamp()) < 600  # issued a little in the past


def test_certificates_that_are_refused(issuing: Issuing, tmp_path: Path) -> None:
    """A certificate of another authority, of a server, of an authority, or of no kind at all is refused."""
    verified = authenticator(issuing)
    stranger = Issuing(tmp_path)  # its authority has the same name
    assert "is not signed by an authority of tls_client_ca" in refusal(verified, stranger.issue())
    assert "is not signed by an authority of tls_client_ca" in refusal(verified, stranger.issue(), issuing.issue())
    assert "not for client authentication" in refusal(verified, issuing.issue(for_server=True))
    assert "is not signed by" in refusal(verified, issuing.authority.certificate.public_bytes(Encoding.DER))
    assert "cannot be read" in refusal(verified, b"no certificate")
    assert f"more than {CHAIN_MAX} certificates" in refusal(verified, *[issuing.issue()] * (CHAIN_MAX + 1))
    assert "the server has no tls_client_ca" in refusal(CertificateAuthenticator(NAMES, []), issuing.issue())


def test_client_that_signs(issuing: Issuing, tmp_path: Path) -> None:
    """A client cannot vouch for another one: its certificate is not an authority's."""
    own_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    own = x509.load_der_x509_certificate(issuing.issue(name="middle"))
    now = datetime.now(UTC)
    forged = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "admin")]))
        .issuer_name(own.subject)
        .public_key(own_key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .sign(key, SHA256())
    )
    assert "is not signed by" in refusal(authenticator(issuing), forged.public_bytes(Encoding.DER), own.public_bytes(Encoding.DER))


def test_replaced_authorities(issuing: Issuing, tmp_path: Path) -> None:
    """After a change of authorities the certificates of the old ones have a problem, and those of the new ones are accepted."""
    verified, new = authenticator(issuing), Issuing(tmp_path)
    session = verified.session((issuing.issue(),))
    assert "" == verified.problem(session.source.certificates)
    verified.use([issuing.authority.certificate, new.authority.certificate])
    assert "" == verified.problem(session.source.certificates)
    verified.session((new.issue(),))
    verified.use([new.authority.certificate])
    assert "is not signed by an authority of tls_client_ca" in verified.problem(session.source.certificates)
