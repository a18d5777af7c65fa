"""Authenticates the callers of the native front: their credentials become handles, and a secret admits the calls that it forwards.

`rpc.identity.authentication` does so for calls over grpc.aio; both ask `identity.authenticator`.
"""

from __future__ import annotations

import base64
import json
import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from gavel_server.front.frames import HANDLE, NO_EXPIRY
from gavel_server.identity.credentials import Credentials
from gavel_server.identity.handles import UNKNOWN, Handles
from gavel_server.identity.sessions import Session, session_that_is_over

if TYPE_CHECKING:
    # For the types only: they load the libraries of keys and certificates, which a server without authentication does not need.
    from gavel_server.identity.authenticator import Authenticator
    from gavel_server.identity.tls import TlsMaterial

_UNKNOWN_SESSION: Final = session_that_is_over(UNKNOWN)


def _ignore(_: str) -> None:
    """The default of `on_refused`."""


class FrontAuthentication:
    """The authentication of the callers of a front. Without an authenticator they need no credentials."""

    def __init__(
        self,
        authenticator: Authenticator | None = None,
        *,
        secret: str = "",
        handles: Handles | None = None,
        tls: TlsMaterial | None = None,
        on_refused: Callable[[str], None] = _ignore,
    ) -> None:
        """`secret` admits calls on the server's private socket; each start has its own.

        `tls` encrypts new connections; None: they are not encrypted. `on_refused` is called with the method of each call that the front
        refuses because its caller has no valid credentials.
        """
        self._authenticator: Final = authenticator
        self._handles: Final = Handles() if handles is None else handles
        self.secret: Final = secret
        self.tls = tls
        self.on_refused: Final = on_refused

    @property
    def is_required(self) -> bool:
        """Whether callers need credentials."""
        return self._authenticator is not None

    def session(self, handle: int) -> Session | None:
        """Return the session of a caller; None: it needs none. An unknown handle has a session that refuses every call."""
        if self._authenticator is None:
            return None
        return self._handles.get(handle) or _UNKNOWN_SESSION

    async def authenticate(self, content: bytes, revoke: Callable[[int, str], None]) -> bytes:
        """Return the answer to AUTHENTICATE. Raises ServiceError UNAUTHENTICATED. `revoke` takes a handle that is revoked, and why."""
        assert self._authenticator is not None  # noqa: S101  # the front asks only if credentials are required
        session = await self._authenticator.authenticate(decode_credentials(json.loads(content)))

        def notify(handle: int) -> None:
            error = session.error()
            revoke(handle, "" if error is None else error.message)

        remaining_ms = NO_EXPIRY
        if not math.isinf(session.expires_at):
            remaining_ms = min(max(0, int((session.expires_at - time.time()) * 1000)), NO_EXPIRY)
        return HANDLE.pack(self._handles.open(session, notify), remaining_ms)

    def forget(self, handle: int) -> None:
        """Close a handle that the front needs no more."""
        self._handles.forget(handle)


def decode_credentials(fields: dict[str, Any]) -> Credentials:
    """Return the credentials in an AUTHENTICATE frame."""
    return Credentials(
        peer=fields["peer"],
        is_encrypted=fields["encrypted"],
        certificates=tuple(base64.b64decode(data) for data in fields["certificates"] or ()),
        authorizations=tuple(fields["authorizations"] or ()),
        user_id=fields["user_id"],
    )
