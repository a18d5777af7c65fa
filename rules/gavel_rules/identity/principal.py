"""A principal: the authenticated identity of a caller, as grants, attestations and limits use it.

The server makes it from verified credentials (`gavel_server.identity`). It never holds a credential: `credential_id` only identifies one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Method = Literal["mtls", "jwt", "token", "unix", "anonymous"]
"""How the principal was authenticated; "anonymous": it was not."""

_SERVER_NAME: Final = "gavel:server"


@dataclass(frozen=True, slots=True)
class Principal:
    """A caller's identity. The name is unique for a method and issuer, not among all of them."""

    name: str
    method: Method
    issuer: str = ""
    """Who vouches for the name: the `iss` of a JWT, the subject of the certificate's issuer; "" for the other methods."""
    groups: tuple[str, ...] = ()
    actors: tuple[str, ...] = ()
    """The chain of delegation (RFC 8693 `act`), nearest first: who acts for `name`."""
    credential_id: str = ""
    """The `jti` of a JWT, the SHA-256 fingerprint of a certificate, or the id of a token's entry; never the credential itself."""

    def __hash__(self) -> int:
        # Each call of the hot path looks its attestation up by the caller. The hash of all fields takes ten times as long.
        return hash((self.name, self.credential_id))

    @property
    def is_anonymous(self) -> bool:
        """Whether the caller was not authenticated."""
        return self.method == "anonymous"

    @property
    def is_server(self) -> bool:
        """Whether the caller is SERVER."""
        return self.name == _SERVER_NAME and self.method == "unix"


ANONYMOUS: Final = Principal("anonymous", "anonymous")
"""The principal of every caller of a server without authentication."""

SERVER: Final = Principal(_SERVER_NAME, "unix")
"""The server's own parts, such as its fact derivation reactor, which call over its private socket. No credential gives a name that begins
with "gavel:"."""


def binds_anonymous(method: str) -> bool:
    """Return whether grants bind callers without credentials, by how the caller that deployed them was authenticated.

    Grants that were deployed without authentication do not: the same caller could deploy others. "": the event has no attestation.
    """
    return method not in ("", ANONYMOUS.method)
