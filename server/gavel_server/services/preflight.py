"""Preflight and BatchPreflight: complete and validate the proposals, gather what they cite, and ask the core.

Nothing is recorded; the decision is made by `gavel_rules.preflight`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from gavel.v1 import error_pb2
from gavel.v1.arbitration_service_pb2 import (
    BatchPreflightRequest,
    BatchPreflightResponse,
    PreflightRequest,
    PreflightResponse,
    PreflightResult,
)
from gavel.v1.decision_pb2 import Decision
from gavel.v1.envelope_pb2 import Envelope
from gavel_rules.authorization import is_allowed
from gavel_rules.codec.fields import Field
from gavel_rules.commands import Fault
from gavel_rules.events.citation import CitedEvent
from gavel_rules.events.proposal_view import ProposalView
from gavel_rules.identity.access import Access
from gavel_rules.identity.principal import Principal
from gavel_rules.preflight import actions_with, preflight, read_cases
from gavel_rules.state.state import State

from gavel_server.bus.registry import BUS_DEFAULT, BusRegistry
from gavel_server.bus.sequencer import Sequencer
from gavel_server.bus.trace_owners import TraceParty, trace_refusal
from gavel_server.compile.compiler import Compiler
from gavel_server.errors import ServiceError, of_fault
from gavel_server.fairness.turns import call_slice, take_turn
from gavel_server.intake.admission import admit_proposal
from gavel_server.process.time_slice import TimeSlice
from gavel_server.rpc.call_context import CallContext
from gavel_server.rpc.decoding import RequestDecoder
from gavel_server.rpc.errors import refuse
from gavel_server.rpc.limits import BATCH_ANSWER_BYTES_MAX
from gavel_server.rpc.service_descriptors import ARBITRATION
from gavel_server.services.batches.commands import check_batch

_SINGLE: Final = RequestDecoder(f"{ARBITRATION.full_name}/Preflight", PreflightRequest)
_BATCH: Final = RequestDecoder(f"{ARBITRATION.full_name}/BatchPreflight", BatchPreflightRequest)
# The fields of the answer to a batch that hold a result, and its decision.
_RESULT: Final = Field(BatchPreflightResponse, "results")
_DECISION: Final = Field(PreflightResult, "decision")
# Proposals of a batch that are admitted before the first of them is decided: docs/performance.md#slices.
PART_PROPOSALS: Final = 16
# Proposals that are admitted or decided before other tasks get a turn; fewer if a time slice ends first.
SLICE_PROPOSALS: Final = 128
# Terms that are explained before other tasks get a turn.
SLICE_TERMS: Final = 16
# The most due timers, and candidates of due contests, that one preflight fires. If more are due, it waits until the sequencer has
# recorded them.
DUE_TIMERS_MAX: Final = 16
DUE_SECONDS_MAX: Final = 1.0
DUE_PAUSE_SECONDS: Final = 0.01


class Preflight:
    """The preflight methods of ArbitrationService: coroutines from the request's bytes to the response's."""

    def __init__(
        self,
        buses: BusRegistry,
        compiler: Compiler,
        *,
        due_timers_max: int = DUE_TIMERS_MAX,
        answer_bytes_max: int = BATCH_ANSWER_BYTES_MAX,
    ) -> None:
        self._buses = buses
        self._compiler = compiler
        self._due_timers_max = due_timers_max
        self._answer_bytes_max = answer_bytes_max

    async def preflight(self, data: bytes, context: CallContext) -> bytes:
        """Answer a PreflightRequest with the decision that the proposal would get now. Raises ServiceError, LogError."""
        request = _SINGLE.decode(data)
        sequencer = await self._sequencer(request.bus, context)
        if request.explain or request.rule_set_override:
            _check_may_read(sequencer, context.principal)
        override = (
            await self._compiler.compile(request.rule_set_override, context.caller, "rule_set_override")
            if request.rule_set_override
            else None
        )
        envelope = request.envelope
        proposal = await _admit(sequencer, envelope, request.bus, len(data), context.principal)
        citations = await _citations(sequencer, [proposal])
        state = await self._state(sequencer)
        if override is not None:
            _check_may_read(sequencer, context.principal)  # the compilation may have waited for a minute
            if context.session is not None:
                context.session.check()
        actions = None if override is None else actions_with(state, override, envelope.proposal.action_type)
        if isinstance(actions, Fault):
            raise of_fault(actions)
        response = PreflightResponse(evaluated_at_sequence_number=state.head)
        now_ms = sequencer.now_ms()
        response.decision.CopyFrom(_decision(preflight(state, proposal, citations, now_ms, actions, context.principal)))
        if request.explain:
            # The conditions of a large rule set have ten thousands of terms, each of which is compiled.
            time_slice = call_slice(SLICE_TERMS, context.caller)
            governing = state.active_actions.get(proposal.action_type, ()) if actions is None else actions
            for action, case in read_cases(state, proposal, now_ms, governing):
                for part in action.explain_in_steps(case):
                    if part is None:
                        await time_slice.spend(1)
                    else:
                        response.explanations.append(part)
        return response.SerializeToString()

    async def batch_preflight(self, data: bytes, context: CallContext) -> bytes:
        """Answer a BatchPreflightRequest; each proposal as if it were the only one. Raises ServiceError, LogError."""
        request = await _BATCH.decode_in_turns(data, context)
        check_batch(len(request.envelopes))
        sequencer = await self._sequencer(request.bus, context)
        envelopes = request.envelopes[:]
        results: list[bytes] = []
        room_bytes = self._answer_bytes_max
        if len(envelopes) > PART_PROPOSALS:
            await take_turn(context.caller)
        time_slice = call_slice(SLICE_PROPOSALS, context.caller)
        for start in range(0, len(envelopes), PART_PROPOSALS):
            part = envelopes[start : start + PART_PROPOSALS]
            outcomes: Sequence[bytes | Exception] = [self._too_large()] * len(part)
            if room_bytes >= 0:
                outcomes = await self._decide(sequencer, part, request.bus, len(data), time_slice, context.principal)
            for outcome in outcomes:
                if isinstance(outcome, bytes):
                    room_bytes -= len(outcome)
                    if room_bytes >= 0:
                        results.append(_RESULT.content(_DECISION.content(outcome)))
                        continue
                error = refuse(context.method, self._too_large() if isinstance(outcome, bytes) else outcome)
                results.append(_RESULT.content(PreflightResult(error=error.status()).SerializeToString()))
        return b"".join(results)

    async def _decide(
        self, sequencer: Sequencer, envelopes: Sequence[Envelope], bus: str, size_bytes: int, time_slice: TimeSlice, principal: Principal
    ) -> list[bytes | Exception]:
        """Return for each proposal its encoded decision, or why it has none. Raises ServiceError, LogError."""
        proposals: list[ProposalView | ServiceError] = []
        for envelope in envelopes:
            await time_slice.spend(1)
            try:
                proposals.append(await _admit(sequencer, envelope, bus, size_bytes, principal))
            except ServiceError as error:
                proposals.append(error)
        citations = await _citations(sequencer, [proposal for proposal in proposals if isinstance(proposal, ProposalView)])
        state = await self._state(sequencer)
        now_ms = sequencer.now_ms()
        results: list[bytes | Exception] = []
        for proposal in proposals:
            if isinstance(proposal, ServiceError):
                results.append(proposal)
                continue
            if time_slice.is_over(1):
                # The bus goes on meanwhile: each decision has the state_version that it was made on.
                await time_slice.end()
                state = await self._state(sequencer)
                now_ms = sequencer.now_ms()
            try:
                results.append(_decision(preflight(state, proposal, citations, now_ms, None, principal)).SerializeToString())
            except Exception as error:  # noqa: BLE001  # a bug or a broken engine costs one proposal, not the others of its batch
                results.append(error)
        return results

    async def _state(self, sequencer: Sequencer) -> State:
        """Return the confirmed state once few timers are due. Each preflight fires those that are due, without recording them.

        Raises ServiceError: QUEUE_FULL, or why the bus refuses writes, if timers stay due.
        """
        ends_at = asyncio.get_running_loop().time() + DUE_SECONDS_MAX
        while True:
            state = await sequencer.confirmed_state()
            due = state.due_count(sequencer.now_ms())
            if due <= self._due_timers_max:
                return state
            if asyncio.get_running_loop().time() >= ends_at:
                error = sequencer.write_error()
                if error is not None:
                    raise error.copy()
                message = f"{due} timers of bus {sequencer.bus} are due and not recorded yet, more than {self._due_timers_max}; try again"
                raise ServiceError(error_pb2.ERROR_REASON_QUEUE_FULL, message, retry_after_ms=1_000)
            await asyncio.sleep(DUE_PAUSE_SECONDS)

    def _too_large(self) -> ServiceError:
        message = f"the decisions of this batch have more than {self._answer_bytes_max} bytes; send this proposal in a smaller batch"
        return ServiceError(error_pb2.ERROR_REASON_QUEUE_FULL, message)

    async def _sequencer(self, bus: str, context: CallContext) -> Sequencer:
        incarnation = context.bus_incarnation
        return self._buses.find_open(bus, incarnation) or await self._buses.existing(bus, incarnation)


def _check_may_read(sequencer: Sequencer, principal: Principal) -> None:
    """Check that the caller may read the bus: explanations show facts, and rules of the caller's own select which ones.

    Raises ServiceError RIGHT_LACKING.
    """
    if not is_allowed(sequencer.replica.state.grants_in_force, Access("read", sequencer.bus), principal):
        message = (
            f"explain and rule_set_override show facts of bus {sequencer.bus}, and {principal.name!r} may not read it; "
            "leave them out, or ask for the right read"
        )
        raise ServiceError(error_pb2.ERROR_REASON_RIGHT_LACKING, message)


async def _admit(sequencer: Sequencer, envelope: Envelope, bus: str, size_bytes: int, principal: Principal) -> ProposalView:
    """Complete and validate a proposal, and give it the trace of its cause. Raises ServiceError."""
    command, _ = admit_proposal(envelope, bus or BUS_DEFAULT, size_bytes)
    proposal = command.proposal
    causation_id = proposal.causation_id
    if not causation_id:
        return _check_trace(sequencer, proposal, "", principal)
    cause = await sequencer.recent_events.find_location(causation_id, sequencer.now_ms())
    trace_id = cause.trace_id if cause is not None else sequencer.replica.trace_of_pending(causation_id)
    if trace_id is None:
        message = f"causation_id {causation_id} names no event of bus {sequencer.bus} within the idempotency window"
        raise ServiceError(error_pb2.ERROR_REASON_EVENT_NOT_FOUND, message)
    return _check_trace(sequencer, proposal if proposal.trace_id else proposal.with_trace(trace_id), trace_id, principal)


def _check_trace(sequencer: Sequencer, proposal: ProposalView, cause_trace_id: str, principal: Principal) -> ProposalView:
    """Return the proposal if it may be in its trace. Raises ServiceError PRODUCER_NOT_ALLOWED, RIGHT_LACKING."""
    trace_id = proposal.trace_id
    owner = sequencer.replica.trace_owners.owner(trace_id, sequencer.now_ms)
    if owner is not None:
        party = TraceParty(proposal.producer_type, proposal.producer_id, principal)
        in_force = sequencer.replica.state.grants_in_force
        refusal = trace_refusal(trace_id, owner, party, cause_trace_id, None if in_force is None else in_force.grants)
        if refusal is not None:
            raise refusal
    return proposal


async def _citations(sequencer: Sequencer, proposals: Sequence[ProposalView]) -> dict[int, CitedEvent]:
    """Return the events that the proposals cite, by sequence number: from memory, or from the log if memory has dropped them.

    If a proposal cites an event that this server has not read yet, it first reads on, as it does before it decides. The result is a copy,
    since memory drops events while the caller waits for the state.
    """
    recent_events = sequencer.recent_events
    cited = [number for proposal in proposals for number, _ in proposal.citations]
    latest = max([0, *cited, *[proposal.projection_version or 0 for proposal in proposals]])
    if latest > sequencer.head.sequence_number:
        await sequencer.read_on()
    citations: dict[int, CitedEvent] = {}
    dropped: list[int] = []
    for number in cited:
        event = recent_events.citable.get(number)
        if event is None:
            dropped.append(number)
        else:
            citations[number] = event
    if dropped:
        citations.update(await recent_events.read_citable(dropped))
    return citations


def _decision(outcome: Decision | Fault) -> Decision:
    if isinstance(outcome, Fault):
        raise of_fault(outcome)
    return outcome
