"""Calls under way that end when their callers lose the right that the calls need.

A stream may be silent for hours, and an audit or a replay may run as long. So nothing waits for the next message: all open calls are
checked once a second. A check costs nothing while the grants of the bus have not changed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Final

from gavel_rules.identity.principal import Principal

from gavel_server.bus.registry import BusRegistry
from gavel_server.bus.sequencer import Sequencer
from gavel_server.errors import ServiceError

CHECK_SECONDS: Final = 1.0

Check = Callable[[str, str, Principal, Sequencer], ServiceError | None]
"""Returns why a call (RPC, bus, caller) is refused on an open bus, or None."""


class OpenCall:
    """A call under way."""

    def __init__(self, rpc: str, principal: Principal, scope: asyncio.Timeout) -> None:
        self.rpc: Final = rpc
        self.principal: Final = principal
        self.bus: str | None = None
        self.grants: object = self  # those of the last check; no grants are this object
        self.error: ServiceError | None = None
        self._scope: Final = scope

    def begin(self, bus: str) -> None:
        """Note the bus of the call: from now on its caller needs the right there."""
        self.bus = bus

    def end(self, error: ServiceError) -> None:
        """End the call with an error."""
        self.error = error
        with suppress(RuntimeError):  # it has just ended
            self._scope.reschedule(asyncio.get_running_loop().time())


class OpenCalls:
    """The calls under way whose callers need a right."""

    def __init__(self, buses: BusRegistry, check: Check) -> None:
        self._buses: Final = buses
        self._check: Final = check
        self._calls: Final[set[OpenCall]] = set()

    @asynccontextmanager
    async def watch(self, rpc: str, principal: Principal) -> AsyncIterator[OpenCall]:
        """Run a block no longer than the caller has the right of an RPC. Raises ServiceError RIGHT_LACKING when it loses the right."""
        scope = asyncio.timeout(None)
        call = OpenCall(rpc, principal, scope)
        try:
            async with scope:
                self._calls.add(call)
                try:
                    yield call
                finally:
                    self._calls.discard(call)
        except TimeoutError:
            if call.error is None or not scope.expired():
                raise
            raise call.error from None

    def end_refused(self) -> None:
        """End the calls whose callers have lost their right."""
        for call in list(self._calls):
            sequencer = None if call.bus is None else self._buses.peek(call.bus)
            if call.bus is None or sequencer is None:
                continue
            grants = sequencer.replica.state.grants_in_force
            if grants is call.grants:
                continue
            call.grants = grants
            error = self._check(call.rpc, call.bus, call.principal, sequencer)
            if error is not None:
                call.end(error)

    async def end_refused_forever(self) -> None:
        """End calls whose callers have lost their right, for ever."""
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            self.end_refused()
