"""WaitDecision: a long poll until a decision has reached a phase. It reads only; the client calls it again to wait longer."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final

from gavel.v1 import error_pb2
from gavel.v1.arbitration_service_pb2 import DECISION_PHASE_DECIDED, DecisionPhase, WaitDecisionRequest, WaitDecisionResponse
from gavel_rules.events.ids import is_uuid
from gavel_rules.state.state import State

from gavel_server.bus.registry import BusRegistry
from gavel_server.errors import ServiceError, invalid
from gavel_server.fairness.work_slots import scan_slots
from gavel_server.rpc.call_context import CallContext
from gavel_server.rpc.decoding import RequestDecoder
from gavel_server.rpc.service_descriptors import ARBITRATION
from gavel_server.services.waits.commit_waits import CommitWaits
from gavel_server.services.waits.decision_history import DecisionHistory

WAIT_MS_MAX: Final = 60_000
# The answer is sent before the call's deadline by a tenth of the time, and by at most this.
ANSWER_MS_MAX: Final = 500

_REQUEST: Final = RequestDecoder(f"{ARBITRATION.full_name}/WaitDecision", WaitDecisionRequest)


class WaitDecision:
    """The method WaitDecision of ArbitrationService."""

    def __init__(self, buses: BusRegistry, waits: CommitWaits | None = None) -> None:
        self._buses = buses
        self._waits = waits or CommitWaits()
        self._scans = scan_slots()

    async def wait_decision(self, data: bytes, context: CallContext) -> bytes:
        """Answer a WaitDecisionRequest. Raises ServiceError, LogError."""
        request = _REQUEST.decode(data)
        _check(request)
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + _wait_ms(request, context.remaining_ms()) / 1000
        sequencer = await self._buses.existing(request.bus, context.bus_incarnation)
        state = sequencer.replica.state
        target = request.phase or DECISION_PHASE_DECIDED
        with self._waits.place(context.caller):
            scan_slot = partial(self._scans.occupy, context.address)
            history = await DecisionHistory.find(sequencer, request.decision_id, context.caller, scan_slot)
            phase = await history.phase()
            while phase < target:
                seconds = ends_at - loop.time()
                if seconds <= 0:
                    break
                await self._waits.wait(sequencer, partial(_has_reached, history, target), seconds)
                phase = await history.phase()
            await history.complete()
        events = [event for event in (history.decision, history.execution) if event is not None]
        if events:
            await sequencer.confirm(max(event.sequence_number for event in events))
            if sequencer.replica.state is not state:
                message = "a failover has lost events that were not confirmed, and the answer may rest on them; try again"
                raise ServiceError(error_pb2.ERROR_REASON_LOG_UNAVAILABLE, message)
        return WaitDecisionResponse(decision=history.decision, phase=phase, execution=history.execution).SerializeToString()


def _has_reached(history: DecisionHistory, target: DecisionPhase.ValueType, state: State) -> bool:
    """Return whether a decision has reached a phase, or its history has to be read."""
    phase = history.phase_in(state)
    return phase is None or phase >= target


def _check(request: WaitDecisionRequest) -> None:
    violations: list[tuple[str, str]] = []
    if not is_uuid(request.decision_id):
        violations.append(("decision_id", "is not a UUID in canonical form"))
    if request.phase not in DecisionPhase.values():
        violations.append(("phase", "is not a phase of decisions"))
    if not 0 <= _timeout_ms(request) <= WAIT_MS_MAX:
        violations.append(("timeout", f"is not between 0 and {WAIT_MS_MAX // 1000} s"))
    if violations:
        raise invalid(violations)


def _timeout_ms(request: WaitDecisionRequest) -> int:
    # Not ToMilliseconds(), which refuses values out of range with an exception.
    return request.timeout.seconds * 1000 + request.timeout.nanos // 1_000_000


def _wait_ms(request: WaitDecisionRequest, remaining_ms: int | None) -> int:
    """Return how long to wait, so that the answer reaches the caller before its deadline."""
    wait_ms = _timeout_ms(request) if request.HasField("timeout") else WAIT_MS_MAX
    if remaining_ms is not None:
        wait_ms = min(wait_ms, remaining_ms - min(remaining_ms // 10, ANSWER_MS_MAX))
    return wait_ms
