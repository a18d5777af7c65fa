"""Handles: small numbers by which the native front names the sessions of its callers in each frame and each forwarded call."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from gavel_server.identity.errors import unauthenticated
from gavel_server.identity.sessions import Session

# In place of a handle: the caller has presented nothing, because the server or the method asks for nothing.
NO_HANDLE: Final = 0
HANDLE_MAX: Final = 2**32 - 1
UNKNOWN: Final = "the call's credentials are unknown to the server; call again"
# The front opens one for each connection and credential, and forgets them with the connection.
HANDLES_MAX: Final = 65_536


class Handles:
    """The sessions that fronts have opened, by handle. A handle is never used again while the server runs, up to 2^32 of them."""

    def __init__(self) -> None:
        self._sessions: dict[int, Session] = {}
        self._last = NO_HANDLE

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self, session: Session, revoke: Callable[[int], None]) -> int:
        """Return a new handle of a session. `revoke` is called with it if the session is revoked.

        Raises ServiceError UNAUTHENTICATED if there are too many handles.
        """
        if len(self._sessions) >= HANDLES_MAX:
            raise unauthenticated(f"the connections of this server use more than {HANDLES_MAX} credentials; close some, then try again")
        while True:
            self._last = self._last % HANDLE_MAX + 1
            if self._last not in self._sessions:
                self._sessions[self._last] = session
                session.watch((self, self._last), partial(revoke, self._last))
                return self._last

    def get(self, handle: int) -> Session | None:
        """Return the session of a handle, which may be over; None: no such handle is open."""
        return self._sessions.get(handle)

    def forget(self, handle: int) -> None:
        """Close a handle, if it is open."""
        session = self._sessions.pop(handle, None)
        if session is not None:
            session.unwatch((self, handle))
