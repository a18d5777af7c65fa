"""The server's own gRPC server, which is built again on its address when it does not answer.

Some bytes end grpc.aio's loop for ever, such as a `:path` that is not UTF-8; others could make it hang. The listener therefore calls the
health service at its own address every second. Calls under way on the old server keep their answers for the grace of a stop.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Any, Final

import grpc
import structlog
from grpc_health.v1 import health_pb2
from prometheus_client import Counter

from gavel_server.rpc.transport import STOP_GRACE_SECONDS, make_server, own_address

PROBE_INTERVAL_SECONDS: Final = 1.0
PROBE_SECONDS_MAX: Final = 2.0
# Probes without an answer in a row after which the server is built again. A loop that is busy for long misses few probes, since it sends
# none meanwhile.
UNANSWERED_PROBES_MAX: Final = 5
# The pause before a new server binds the address: the old one releases it, and removes the path of a Unix socket, in a thread of its own.
REBIND_PAUSE_SECONDS: Final = 0.1
# The pause before another try at an address that is still taken.
RETRY_PAUSE_SECONDS: Final = 0.5

REBUILDS: Final = Counter("gavel_listener_rebuilds", "How often the server's own gRPC server had to be built again.")

_CHECK: Final = "/grpc.health.v1.Health/Check"
_NO_ANSWER: Final = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED})
_PROBE_OPTIONS: Final = (
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
)

_LOG: Final = structlog.get_logger("gavel.server")

Bind = Callable[[grpc.aio.Server], object]
"""Binds a new server to the listener's address. Raises OSError."""


class Listener:
    """The gRPC server at one address. Add all handlers, then call `bind`, `start`, and at the end `stop`."""

    def __init__(self, *, behind_front: bool = False) -> None:
        """`behind_front`: the address is private, and callers reach the native front."""
        self.probe_metadata: tuple[tuple[str, str], ...] = ()
        self._behind_front: Final = behind_front
        self._handlers: list[grpc.GenericRpcHandler] = []
        self._server = make_server(behind_front=behind_front)
        self._bind_again: Bind = lambda _: None
        self._address = ""
        self._problem = ""
        self._stopping: set[asyncio.Task[None]] = set()
        self.on_rebuild: Callable[[], None] = lambda: None

    def add_generic_rpc_handlers(self, handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        """Serve the methods of these handlers."""
        self._handlers.extend(handlers)
        self._server.add_generic_rpc_handlers(tuple(handlers))

    def bind(self, address: str, bind: Bind) -> None:
        """Take the address that the current server is bound to, without encryption, and the function that binds the next server."""
        self._address = own_address(address)
        self._bind_again = bind

    @property
    def server(self) -> grpc.aio.Server:
        """The current server."""
        return self._server

    @property
    def problem(self) -> str:
        """Why callers are not answered now, or ""."""
        return self._problem

    async def start(self) -> None:
        """Let the server answer calls."""
        await self._server.start()

    async def watch_forever(self) -> None:
        """Build the server again whenever it has ended or does not answer."""
        while True:
            self._problem = await self._wait_for_problem()
            _LOG.error("listener.failed", address=self._address, problem=self._problem, consequence="it is built again")
            REBUILDS.inc()
            await self._rebuild()
            _LOG.warning("listener.rebuilt", address=self._address)
            self._problem = ""

    async def stop(self, grace_seconds: float) -> None:
        """Take no more calls; let those under way end."""
        await asyncio.gather(self._server.stop(grace_seconds), *self._stopping)

    async def _wait_for_problem(self) -> str:
        """Return why the server has to be built again, once it has to."""
        unanswered = 0
        async with grpc.aio.insecure_channel(self._address, options=_PROBE_OPTIONS) as channel:
            check: Any = channel.unary_unary(_CHECK)
            while True:
                try:
                    # Raises the exception that ended grpc.aio's loop.
                    await self._server.wait_for_termination(PROBE_INTERVAL_SECONDS)
                except Exception as error:  # noqa: BLE001  # after any exception, nobody is served
                    return f"grpc.aio ended with {type(error).__name__}"
                try:
                    await check(
                        health_pb2.HealthCheckRequest().SerializeToString(), timeout=PROBE_SECONDS_MAX, metadata=self.probe_metadata
                    )
                    unanswered = 0
                except grpc.aio.AioRpcError as error:
                    unanswered = unanswered + 1 if error.code() in _NO_ANSWER else 0
                    if unanswered == UNANSWERED_PROBES_MAX:
                        return f"{unanswered} health checks in a row got no answer: {error.code().name}"

    async def _rebuild(self) -> None:
        """Replace the server by a new one on the same address."""
        old, self._server = self._server, make_server(behind_front=self._behind_front)
        # It gives up its address at once, and ends its calls within the grace.
        task = asyncio.create_task(_stop(old))
        self._stopping.add(task)
        task.add_done_callback(self._stopping.discard)
        self._server.add_generic_rpc_handlers(tuple(self._handlers))
        await asyncio.sleep(REBIND_PAUSE_SECONDS)
        while True:
            try:
                self._bind_again(self._server)
                break
            except OSError as error:
                _LOG.error("listener.not_bound", address=self._address, problem=str(error))
                await asyncio.sleep(RETRY_PAUSE_SECONDS)
        await self._server.start()
        self.on_rebuild()


async def _stop(server: grpc.aio.Server) -> None:
    with contextlib.suppress(Exception):  # it may have failed already
        await server.stop(STOP_GRACE_SECONDS)
