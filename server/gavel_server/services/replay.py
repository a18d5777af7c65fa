"""ReplayService: recomputes the decisions of a log while the server goes on with its work (constitution §8).

A replay occupies a processor as long as it runs. Therefore only a few run at once, simulations of rule sets included
(`fairness/work_slots`).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING, Protocol

from gavel.v1 import decision_pb2
from gavel.v1.decision_pb2 import Engine
from gavel.v1.replay_service_pb2 import VerifyReplayRequest, VerifyReplayResponse

from gavel_server.errors import invalid
from gavel_server.fairness.work_slots import Slots
from gavel_server.history.replay import ReplayRangeError, verify
from gavel_server.rpc.call_context import CallContext
from gavel_server.services.reads.log_reader import range_beyond_log, range_violations

if TYPE_CHECKING:
    from gavel_server.bus.registry import BusRegistry
    from gavel_server.history.snapshot_files import SnapshotFiles
    from gavel_server.log import EventLog


class Verify(Protocol):
    """Replays a log: `history.replay.verify` in this process, `ReplayProcesses.verify` in one of its own."""

    def __call__(
        self,
        log: EventLog,
        *,
        engine: Engine.ValueType,
        from_sequence_number: int,
        to_sequence_number: int,
        snapshots: SnapshotFiles | None,
    ) -> AsyncGenerator[VerifyReplayResponse, None]:
        """Yield progress, and last the verdict."""


class ReplayServicer:
    """Serves ReplayService on the buses of this server."""

    def __init__(self, buses: BusRegistry, replay_slots: Slots, verify: Verify = verify) -> None:
        self._buses = buses
        self._replay_slots = replay_slots
        self._verify = verify

    async def VerifyReplay(self, request: VerifyReplayRequest, context: CallContext) -> AsyncGenerator[VerifyReplayResponse, None]:
        """Recompute the log; stream progress, then the verdict."""
        first, last = request.from_sequence_number, request.to_sequence_number
        violations = range_violations(from_sequence_number=first, to_sequence_number=last)
        if request.engine not in decision_pb2.Engine.values():
            violations.append(("engine", "is not RETE or REFERENCE"))
        if violations:
            raise invalid(violations)
        sequencer = await self._buses.existing(request.bus, context.bus_incarnation)
        async with self._replay_slots.occupy(context.address):
            try:
                snapshots = sequencer.replica.snapshots
                responses = self._verify(
                    sequencer.log,
                    engine=request.engine,
                    from_sequence_number=first,
                    to_sequence_number=last,
                    snapshots=None if snapshots is None else snapshots.files,
                )
                async with aclosing(responses) as items:
                    async for item in items:
                        yield item
            except ReplayRangeError as error:
                raise range_beyond_log(last, error) from error
