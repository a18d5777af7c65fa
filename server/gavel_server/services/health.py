"""grpc.health.v1: the health of the process and its services, and of each bus as `gavel.v1.ArbitrationService/BUS`.

A bus is SERVING while this server accepts writes to it. A check never opens a bus: one without events is NOT_FOUND, or SERVICE_UNKNOWN
for Watch. A bus that has events and is not in memory is read again, as for any other read: whether it can be written depends on its log.

The health of process and services is open to everybody. With authentication the health of a bus needs credentials and the right to read
the bus; without credentials the answer is the same whether the bus exists or not.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Any, Final

import grpc
from gavel.v1 import error_pb2
from gavel_rules.identity.principal import Principal
from grpc_health.v1 import health
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

from gavel_server.bus.registry import BusRegistry
from gavel_server.errors import ServiceError
from gavel_server.identity.errors import unauthenticated
from gavel_server.rpc.identity.access import AccessControl
from gavel_server.rpc.service_descriptors import ARBITRATION, PROJECTION

# Before the name of a bus.
BUS_PREFIX: Final = f"{ARBITRATION.full_name}/"
# The RPC whose right opens the health of a bus.
_READ: Final = f"{PROJECTION.full_name}/GetStatus"
# How often the status of a watched bus is looked at.
WATCH_INTERVAL_SECONDS: Final = 0.5

_UNKNOWN: Final = frozenset({error_pb2.ERROR_REASON_BUS_NOT_FOUND, error_pb2.ERROR_REASON_INVALID_REQUEST})

_Context = grpc.aio.ServicerContext[Any, Any]


async def check_health_access(request: Any, principal: Principal, access: AccessControl, *, is_required: bool) -> None:
    """Check that a caller may ask for this health. Raises ServiceError if not. `is_required`: callers need credentials."""
    name = getattr(request, "service", "")
    if not is_required or not name.startswith(BUS_PREFIX):
        return
    if principal.is_anonymous:
        raise unauthenticated("the health of a bus needs credentials; without them, ask for the health of the server")
    if not access.is_bound(_READ, principal):
        return
    try:
        await access.check(_READ, name.removeprefix(BUS_PREFIX), principal)
    except ServiceError as error:
        if error.reason not in _UNKNOWN:
            raise


class HealthServicer(health.aio.HealthServicer):
    """Serves grpc.health.v1. The names other than those of buses are set by `set`."""

    def __init__(self, buses: BusRegistry) -> None:
        super().__init__()
        self._buses: Final = buses
        self._is_stopping: Final = asyncio.Event()

    async def Check(self, request: HealthCheckRequest, context: _Context) -> HealthCheckResponse:
        """Return the status of a name; NOT_FOUND if it is unknown."""
        if not request.service.startswith(BUS_PREFIX):
            return await super().Check(request, context)
        status = await self._bus_status(request.service)
        if status == HealthCheckResponse.SERVICE_UNKNOWN:
            await context.abort(grpc.StatusCode.NOT_FOUND)
        return HealthCheckResponse(status=status)

    async def Watch(  # type: ignore[override]  # a generator may take the place of a coroutine that writes
        self, request: HealthCheckRequest, context: _Context
    ) -> AsyncGenerator[HealthCheckResponse | None, None]:
        """Stream the status of a name: now, and whenever it changes. None precedes each look at a bus: the caller's right is checked."""
        if not request.service.startswith(BUS_PREFIX):
            await super().Watch(request, context)
            return
        last: int | None = None
        while True:
            yield None
            status = await self._bus_status(request.service)
            if status != last:
                last = status
                yield HealthCheckResponse(status=status)
            if self._is_stopping.is_set():
                await asyncio.sleep(WATCH_INTERVAL_SECONDS)
                continue
            with suppress(TimeoutError):
                await asyncio.wait_for(self._is_stopping.wait(), WATCH_INTERVAL_SECONDS)

    async def enter_graceful_shutdown(self) -> None:
        """Report NOT_SERVING for all names from now on."""
        self._is_stopping.set()
        await super().enter_graceful_shutdown()

    async def _bus_status(self, service: str) -> int:
        bus = service.removeprefix(BUS_PREFIX)
        if not bus:
            return HealthCheckResponse.SERVICE_UNKNOWN
        if self._is_stopping.is_set():
            return HealthCheckResponse.NOT_SERVING
        try:
            sequencer = await self._buses.existing(bus)
        except ServiceError as error:
            return HealthCheckResponse.SERVICE_UNKNOWN if error.reason in _UNKNOWN else HealthCheckResponse.NOT_SERVING
        return HealthCheckResponse.SERVING if sequencer.write_error() is None else HealthCheckResponse.NOT_SERVING
