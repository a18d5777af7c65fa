"""The fact derivation reactors that run inside the server (`--no-fdr` leaves them to `gavel fdr`).

Each is a client of the server like any other, with no access to the buses. The server only wakes it after a recorded execution, which
spares the reactor a blocking read of its queue.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from gavel_client.consumers.fact_derivation import FactDerivationReactor
from gavel_client.consumers.redis_urls import parse_target
from gavel_client.consumers.work_queue import connection_pool
from gavel_client.rpc.client import GavelClient
from gavel_client.supervision import Supervisor
from redis.asyncio import ConnectionPool

from gavel_server.rpc.identity.authentication import SECRET_KEY

TASK: Final = "fact derivation"
# To Redis, shared by the reactors of all buses. They wait for the server, not for Redis, so each needs one for a moment only.
CONNECTIONS_MAX: Final = 16


class Reactors:
    """One reactor for each open bus, with its work queue in the Redis at `redis_url`; "": the work comes from the server over gRPC.

    Set `target`, the server's address, first.
    """

    def __init__(self, redis_url: str, supervisor: Supervisor) -> None:
        self._redis_url = redis_url
        self._supervisor = supervisor
        self.target = ""
        self.secret = ""  # of the server's private socket, if that is the target
        self._running: dict[Callable[[], None], tuple[_Reactor, asyncio.Task[None]]] = {}  # by what wakes them
        # Each bus of a cluster may be on another node, so its reactor opens its own connections there.
        is_shared = redis_url != "" and parse_target(redis_url).kind != "cluster"
        self._connections = connection_pool(redis_url, connections_max=CONNECTIONS_MAX) if is_shared else None

    def start(self, bus: str, has_pending: Callable[[], bool]) -> Callable[[], None]:
        """Start the reactor of a bus; return the function to call after each recorded execution.

        `has_pending` reports whether the bus has live decisions. Without one the reactor makes no calls, so that an idle bus is closed.
        """
        reactor = _Reactor(self.target, self.secret, bus, self._redis_url, self._connections, has_pending)
        wake = reactor.wakeup.set
        self._running[wake] = reactor, self._supervisor.start(TASK, reactor.run, bus=bus, problem=reactor.problem)
        return wake

    async def stop_one(self, wake: Callable[[], None]) -> None:
        """Stop the reactor that `start` returned `wake` for, after its current work. A bus that was opened again has another one."""
        running = self._running.pop(wake, None)
        if running is not None:
            reactor, task = running
            reactor.stop(task)
            await asyncio.gather(task, return_exceptions=True)

    async def stop(self) -> None:
        """Stop the reactors after their current work."""
        await asyncio.gather(*map(self.stop_one, list(self._running)))
        if self._connections is not None:
            await self._connections.disconnect()


class _OwnClient(GavelClient):
    """A client of the server's private socket."""

    def __init__(self, target: str, secret: str, bus: str) -> None:
        super().__init__(target, bus=bus)
        self._secret = ((SECRET_KEY, secret),) if secret else ()

    def _own_metadata(self) -> tuple[tuple[str, str], ...]:
        return self._secret


class _Reactor:
    """The reactor of one bus, which may be run again after a failure."""

    def __init__(
        self, target: str, secret: str, bus: str, redis_url: str, connections: ConnectionPool | None, has_pending: Callable[[], bool]
    ) -> None:
        self.wakeup = asyncio.Event()
        self._has_pending = has_pending
        self._target = target
        self._secret = secret
        self._bus = bus
        self._redis_url = redis_url
        self._connections = connections
        self._current: FactDerivationReactor | None = None
        self._stopping = False

    async def run(self) -> None:
        """Derive facts until `stop`."""
        if self._stopping:
            return
        async with _OwnClient(self._target, self._secret, self._bus) as client:
            self._current = FactDerivationReactor(
                client, redis_url=self._redis_url, wakeup=self.wakeup, connections=self._connections, has_pending=self._has_pending
            )
            try:
                await self._current.run()
            finally:
                self._current = None

    def problem(self) -> str:
        """The reason why the reactor cannot work now, or ""."""
        return self._current.problem if self._current is not None else ""

    def stop(self, task: asyncio.Task[None]) -> None:
        """Let the reactor end after its current work; end the pause before it runs again."""
        self._stopping = True
        if self._current is not None:
            self._current.stop()
        else:
            task.cancel()
