"""Sessions: a principal with the end of its credential. Calls and streams hold one, and end with it."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Final, NamedTuple

from gavel_rules.identity.principal import ANONYMOUS, Principal

from gavel_server.errors import ServiceError
from gavel_server.identity.errors import unauthenticated
from gavel_server.identity.keys import Key

EXPIRED: Final = "the credentials have expired"


class Source(NamedTuple):
    """The origin of a session, by which a change of keys, certificates or tokens finds the sessions that it ends."""

    issuer: str = ""
    """Of a JWT."""
    key_id: str = ""
    """Of a JWT."""
    key: Key | None = None
    """Of a JWT."""
    certificates: tuple[bytes, ...] = ()
    token_digest: bytes = b""


class Session:
    """A principal until its credential expires or is revoked. `expires_at` is in seconds since the epoch."""

    __slots__ = ("__weakref__", "_error", "_watchers", "expires_at", "principal", "source")

    def __init__(self, principal: Principal, expires_at: float = math.inf, source: Source = Source()) -> None:  # noqa: B008  # immutable
        self.principal: Final = principal
        self.expires_at: Final = expires_at
        self.source: Final = source
        self._error: ServiceError | None = None
        self._watchers: dict[object, Callable[[], None]] = {}

    def error(self) -> ServiceError | None:
        """Return why the session is over, or None while it lasts."""
        if self._error is not None:
            return self._error.copy()
        return unauthenticated(EXPIRED) if time.time() >= self.expires_at else None

    def check(self) -> None:
        """Raise ServiceError UNAUTHENTICATED if the session is over."""
        error = self.error()
        if error is not None:
            raise error

    def end(self, reason: str) -> None:
        """Revoke the session: its next call is refused, and its streams end now."""
        if self._error is None:
            self._error = unauthenticated(reason)
            for notify in list(self._watchers.values()):
                notify()

    def watch(self, key: object, notify: Callable[[], None]) -> None:
        """Call a function if the session is revoked, until `unwatch` with the same key."""
        self._watchers[key] = notify

    def unwatch(self, key: object) -> None:
        """End a watch, if there is one."""
        self._watchers.pop(key, None)

    @asynccontextmanager
    async def scope(self) -> AsyncIterator[None]:
        """Run a block, such as a stream's, no longer than the session. Raises ServiceError UNAUTHENTICATED when it ends."""
        self.check()
        scope = asyncio.timeout(None if math.isinf(self.expires_at) else max(0.0, self.expires_at - time.time()))
        try:
            async with scope:
                self.watch(scope, partial(_end_now, scope))
                try:
                    yield
                finally:
                    self.unwatch(scope)
        except TimeoutError:
            if not scope.expired():
                raise
            raise (self.error() or unauthenticated(EXPIRED)) from None


def session_that_is_over(reason: str) -> Session:
    """Return a session that refuses every call."""
    session = Session(ANONYMOUS)
    session.end(reason)
    return session


def _end_now(scope: asyncio.Timeout) -> None:
    with suppress(RuntimeError):  # it has just expired
        scope.reschedule(asyncio.get_running_loop().time())
