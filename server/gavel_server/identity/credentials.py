"""The credentials of one call, as a transport hands them over. Nothing in them is verified except the TLS handshake itself."""

from __future__ import annotations

import hashlib
import ipaddress
from typing import Final, NamedTuple

from gavel_server.identity.errors import unauthenticated

# Of an `authorization` header.
AUTHORIZATION_BYTES_MAX: Final = 8 * 1024
_BEARER: Final = "bearer"


class Credentials(NamedTuple):
    """The credentials that a caller has presented. `peer` is "HOST:PORT" or "unix:"."""

    peer: str
    is_encrypted: bool = False
    """Whether the connection uses TLS."""
    certificates: tuple[bytes, ...] = ()
    """The client's certificates in DER, its own first; () without one."""
    authorizations: tuple[str, ...] = ()
    """The values of the metadata key `authorization`."""
    user_id: int | None = None
    """The user at the other end of a Unix socket; None: not a Unix socket, or unknown."""

    @property
    def is_protected(self) -> bool:
        """Whether nobody on a network can read what the caller sends: TLS, loopback or a Unix socket."""
        return self.is_encrypted or self.peer.startswith("unix:") or _is_loopback(self.peer)

    def digest(self) -> bytes:
        """Return a key under which verified credentials may be kept: it tells nothing about them."""
        digest = hashlib.sha256()
        for part in (b"1" if self.is_protected else b"0", str(self.user_id).encode(), *self.certificates):
            digest.update(len(part).to_bytes(4, "big") + part)
        for text in self.authorizations:
            part = text.encode(errors="surrogatepass")
            digest.update(b"a" + len(part).to_bytes(4, "big") + part)
        return digest.digest()

    def bearer(self) -> str | None:
        """Return the token of the `authorization` header; None: there is no such header. Raises ServiceError UNAUTHENTICATED."""
        if not self.authorizations:
            return None
        if len(self.authorizations) > 1:
            raise unauthenticated("the call has several authorization headers; send one")
        header = self.authorizations[0]
        if len(header) > AUTHORIZATION_BYTES_MAX:
            raise unauthenticated(f"the authorization header is larger than {AUTHORIZATION_BYTES_MAX} bytes")
        scheme, _, token = header.partition(" ")
        token = token.strip(" ")
        if scheme.lower() != _BEARER or not token:
            raise unauthenticated("the authorization header is not of the form: Bearer TOKEN")
        return token


def _is_loopback(peer: str) -> bool:
    try:
        return ipaddress.ip_address(peer.rpartition(":")[0].strip("[]").partition("%")[0]).is_loopback
    except ValueError:
        return False
