"""The one function that makes a session of a caller's credentials, on both transports.

The order: the `authorization` header, else the client certificate, else the user of a Unix socket. A credential that is present and
invalid is refused; no other one is tried in its place.
"""

from __future__ import annotations

import time
import weakref
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Final

from gavel_server.errors import ServiceError
from gavel_server.identity.credentials import Credentials
from gavel_server.identity.errors import unauthenticated
from gavel_server.identity.json_web_tokens import JwtAuthenticator, is_json_web_token
from gavel_server.identity.mtls import CertificateAuthenticator
from gavel_server.identity.sessions import EXPIRED, Session
from gavel_server.identity.tokens import TokenAuthenticator
from gavel_server.identity.unix_users import UserAuthenticator

# Sessions that are kept, so that a credential is verified once and not at each call.
SESSIONS_MAX: Final = 4096


class Authenticator:
    """Makes sessions, and ends those whose credentials are no longer accepted.

    A method of authentication that is None accepts no credential.
    """

    def __init__(
        self,
        certificates: CertificateAuthenticator | None = None,
        json_web_tokens: JwtAuthenticator | None = None,
        tokens: TokenAuthenticator | None = None,
        users: UserAuthenticator | None = None,
        *,
        take_turn: Callable[[str], Awaitable[None]] | None = None,
    ) -> None:
        """`take_turn` is awaited with the peer before credentials are verified, so that many of one peer do not hold up all calls."""
        self.certificates: Final = certificates
        self.json_web_tokens: Final = json_web_tokens
        self.tokens: Final = tokens
        self.users: Final = users
        self._take_turn: Final = take_turn
        self._kept: OrderedDict[bytes, Session] = OrderedDict()
        self._all: weakref.WeakSet[Session] = weakref.WeakSet()

    async def authenticate(self, credentials: Credentials) -> Session:
        """Return the session of a caller. Raises ServiceError UNAUTHENTICATED, which names the check that failed."""
        digest = credentials.digest()
        session = self._find(digest)
        if session is None and self._take_turn is not None:
            await self._take_turn(credentials.peer)
            session = self._find(digest)  # calls may come together
        if session is not None:
            return session
        session = await self._verify(credentials)
        self._kept[digest] = session
        self._all.add(session)
        if len(self._kept) > SESSIONS_MAX:
            self._kept.popitem(last=False)
        return session

    def end_revoked(self) -> int:
        """End the sessions whose credentials are accepted no longer, after a change of authorities, keys or tokens. Return how many."""
        ended = 0
        for session in list(self._all):
            problem = "" if session.error() is not None else self._problem(session)
            if problem:
                session.end(problem)
                ended += 1
        return ended

    def end_expired(self) -> None:
        """End the sessions whose credentials have expired by the wall clock.

        Their streams end by a timer, which does not notice that the wall clock was set or that the machine was suspended.
        """
        now = time.time()
        for session in list(self._all):
            if session.expires_at <= now:
                session.end(EXPIRED)

    def _find(self, digest: bytes) -> Session | None:
        """Return the session of credentials that were verified before, unless it is over."""
        session = self._kept.get(digest)
        if session is None:
            return None
        if session.error() is not None:
            del self._kept[digest]
            return None
        self._kept.move_to_end(digest)
        return session

    async def _verify(self, credentials: Credentials) -> Session:
        token = credentials.bearer()
        if token is not None:
            return await self._verify_token(token, credentials)
        if credentials.certificates and self.certificates is not None:
            return self.certificates.session(credentials.certificates)
        if credentials.user_id is not None and self.users is not None:
            return self.users.session(credentials.user_id)
        raise self._missing_credentials()

    async def _verify_token(self, token: str, credentials: Credentials) -> Session:
        if is_json_web_token(token):
            if self.json_web_tokens is None:
                raise unauthenticated("the server accepts no JSON Web Tokens: it has no issuers")
            return await self.json_web_tokens.session(token)
        if self.tokens is None:
            raise unauthenticated("the token is not a JSON Web Token, and the server has no token_file")
        if not credentials.is_protected:
            raise unauthenticated(
                "tokens of the token file are accepted over TLS, loopback and Unix sockets only; others may have read this one: replace it"
            )
        return self.tokens.session(token)

    def _problem(self, session: Session) -> str:
        match session.principal.method:
            case "mtls" if self.certificates is not None:
                return self.certificates.problem(session.source.certificates)
            case "jwt" if self.json_web_tokens is not None:
                return self.json_web_tokens.problem(session)
            case "token" if self.tokens is not None:
                return self.tokens.problem(session)
        return ""

    def _missing_credentials(self) -> ServiceError:
        accepted = [
            name
            for name, authenticator in (
                ("a client certificate", self.certificates),
                ("a JSON Web Token (authorization: Bearer TOKEN)", self.json_web_tokens),
                ("a token of gavel token create (authorization: Bearer TOKEN)", self.tokens),
            )
            if authenticator is not None
        ]
        return unauthenticated(f"the call has no credentials; give {', or '.join(accepted) or 'them over a Unix socket'}")
