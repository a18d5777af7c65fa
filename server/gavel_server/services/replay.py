"""ReplayService: the log proved against itself, beside the server's own work (seeds 002 §8).

A replay takes a processor for as long as it runs and lets others run between pages; so only a few run at once, simulations of
rule sets counted among them.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager
from typing import TYPE_CHECKING, Any, Final

import grpc
from gavel.v1 import decision_pb2, error_pb2, replay_service_pb2_grpc
from gavel.v1.replay_service_pb2 import VerifyReplayRequest, VerifyReplayResponse

from gavel_server.errors import ServiceError, invalid
from gavel_server.replaying import ReplayRangeError, verify
from gavel_server.services.reading import range_violations

if TYPE_CHECKING:
    from gavel_server.buses import Buses

REPLAYS_MAX: Final = 2
RETRY_AFTER_MS: Final = 5_000

_Context = grpc.aio.ServicerContext[Any, Any]


class Replays:
    """The passes over logs that run on a server, whichever call asked for them."""

    def __init__(self) -> None:
        self._running = 0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run one more. Raises ServiceError QUEUE_FULL."""
        if self._running >= REPLAYS_MAX:
            message = f"{REPLAYS_MAX} replays are running on this server; try again, or replay offline with gavel replay"
            raise ServiceError(error_pb2.ERROR_REASON_QUEUE_FULL, message, retry_after_ms=RETRY_AFTER_MS)
        self._running += 1
        try:
            yield
        finally:
            self._running -= 1


class ReplayServicer(replay_service_pb2_grpc.ReplayServiceServicer):
    """Serves ReplayService on the buses of this server."""

    def __init__(self, buses: Buses, replays: Replays) -> None:
        self._buses = buses
        self._replays = replays

    async def VerifyReplay(self, request: VerifyReplayRequest, context: _Context) -> AsyncGenerator[VerifyReplayResponse, None]:
        """Recompute the log; stream progress and last the verdict."""
        first, last = request.from_sequence_number, request.to_sequence_number
        violations = range_violations(from_sequence_number=first, to_sequence_number=last)
        if request.engine not in decision_pb2.Engine.values():
            violations.append(("engine", "is not RETE or REFERENCE"))
        if violations:
            raise invalid(violations)
        sequencer = await self._buses.get(request.bus)
        with self._replays.running():
            try:
                responses = verify(sequencer.log, engine=request.engine, from_sequence_number=first, to_sequence_number=last)
                async with aclosing(responses) as items:
                    async for item in items:
                        yield item
            except ReplayRangeError as error:
                raise invalid([("to_sequence_number", str(error))]) from error
