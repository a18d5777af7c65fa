"""AuditService: what led to decisions, and whether they come out the same today and again (constitution 000, §8).

An audit finds its trace by the index, or by a scan of the log, and reads the log from its start to make decisions again. Both are done in
slices and chunks, so that other calls go on. An audit occupies a slot of replays, or of scans if it makes no decision again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Final

from gavel.v1 import error_pb2
from gavel.v1.audit_service_pb2 import Audit, AuditDecisionRequest, AuditDecisionResponse, AuditTraceRequest, AuditTraceResponse
from gavel.v1.envelope_pb2 import Envelope
from gavel_rules.arbitration.drift import rule_set_drifts, trace_drifts
from gavel_rules.events.ids import is_uuid
from gavel_rules.limits import TRACE_ID_LENGTH_MAX

from gavel_server.errors import ServiceError, invalid
from gavel_server.fairness.work_slots import Slots
from gavel_server.history.audit import findings
from gavel_server.history.audit.repetition import Repetition, repeat_decisions
from gavel_server.history.audit.trace_record import TraceRecord
from gavel_server.index.event_filter import EventFilter
from gavel_server.index.event_index import EventIndex
from gavel_server.process.threads import run_in_thread
from gavel_server.rpc.call_context import CallContext
from gavel_server.rpc.identity.access import AccessControl
from gavel_server.rpc.service_descriptors import REPLAY
from gavel_server.services.reads.event_numbers import number_of
from gavel_server.services.reads.log_reader import envelope_of, read_chunks
from gavel_server.services.reads.search import search
from gavel_server.services.reads.trace_reading import DRIFTS_MAX

if TYPE_CHECKING:
    from gavel_server.bus.registry import BusRegistry
    from gavel_server.bus.sequencer import Sequencer

# Its right is also needed to make decisions again.
_REPLAY: Final = f"{REPLAY.full_name}/VerifyReplay"
# Events with facts that are read at once.
FACTS_READ_MAX: Final = 64


class AuditServicer:
    """Serves AuditService on the buses of this server."""

    def __init__(
        self, buses: BusRegistry, replay_slots: Slots, scan_slots: Slots, access: AccessControl, index: EventIndex | None = None
    ) -> None:
        """Without `index` a trace is found by a scan of the log."""
        self._buses = buses
        self._index = index
        self._replay_slots = replay_slots
        self._scan_slots = scan_slots
        self._access = access

    async def AuditTrace(self, request: AuditTraceRequest, context: CallContext) -> AuditTraceResponse:
        """Audit a trace and all its decisions."""
        trace_id = request.trace_id
        if not (0 < len(trace_id) <= TRACE_ID_LENGTH_MAX and trace_id.isascii() and trace_id.isprintable()):
            raise invalid([("trace_id", f"is not 1 to {TRACE_ID_LENGTH_MAX} printable ASCII characters")])
        sequencer = await self._buses.existing(request.bus, context.bus_incarnation)
        repeats = not request.without_recomputation
        async with self._place(sequencer, context, repeats):
            record = await _record(sequencer, self._index, trace_id, context.caller)
            if not record.events:
                raise ServiceError(error_pb2.ERROR_REASON_EVENT_NOT_FOUND, f"bus {sequencer.bus} has no event of trace {trace_id}")
            decisions = [event for event in record.events if event.HasField("decision")]
            return AuditTraceResponse(audit=await _audit(sequencer, record, record.events, decisions, repeats))

    async def AuditDecision(self, request: AuditDecisionRequest, context: CallContext) -> AuditDecisionResponse:
        """Audit the decisions on one proposal, with what its trace held until the first of them."""
        if not is_uuid(request.decision_id):
            raise invalid([("decision_id", "is not a UUID in canonical form")])
        sequencer = await self._buses.existing(request.bus, context.bus_incarnation)
        repeats = not request.without_recomputation
        async with self._place(sequencer, context, repeats):
            decision = await _find_decision(sequencer, request.decision_id, context.caller)
            record = await _record(sequencer, self._index, decision.trace_id, context.caller)
            proposal_id = decision.decision.proposal_id
            decisions = [event for event in record.events if event.HasField("decision") and event.decision.proposal_id == proposal_id]
            ids = {event.event_id for event in decisions}
            first = min((event.sequence_number for event in decisions), default=decision.sequence_number)
            events = [event for event in record.events if event.sequence_number < first or event.execution.decision_id in ids]
            return AuditDecisionResponse(audit=await _audit(sequencer, record, events, decisions, repeats))

    @asynccontextmanager
    async def _place(self, sequencer: Sequencer, context: CallContext, repeats: bool) -> AsyncIterator[None]:
        """Occupy a slot for an audit. One that makes decisions again lasts no longer than the right to replay. Raises ServiceError."""
        if not repeats:
            async with self._scan_slots.occupy(context.address):
                yield
            return
        self._check_replay(sequencer, context)
        async with self._replay_slots.occupy(context.address), self._access.open_calls.watch(_REPLAY, context.principal) as call:
            if self._access.is_bound(_REPLAY, context.principal):
                call.begin(sequencer.bus)
            yield
        self._check_replay(sequencer, context)

    def _check_replay(self, sequencer: Sequencer, context: CallContext) -> None:
        if "replay" not in self._access.rights(context.principal, sequencer.replica.state):
            message = (
                f"{context.principal.name!r} may not replay on bus {sequencer.bus}, which makes the decisions of an audit again; "
                "set without_recomputation, or ask for the right replay"
            )
            raise ServiceError(error_pb2.ERROR_REASON_RIGHT_LACKING, message)


async def _record(sequencer: Sequencer, index: EventIndex | None, trace_id: str, caller: str) -> TraceRecord:
    """Read a trace. What people did about its decisions is part of it."""
    record = TraceRecord(trace_id)
    last = (await sequencer.log.head()).sequence_number
    await sequencer.confirm(last)
    async with aclosing(search(sequencer.log, index, EventFilter(trace_id=trace_id), 1, last, caller)) as history:
        async for result in history:
            if result.events:
                await run_in_thread(record.add, [event.content for event in result.events])
            if record.truncated:
                break
    return record


async def _find_decision(sequencer: Sequencer, decision_id: str, caller: str) -> Envelope:
    """Return a decision by its id, however old it is. Raises ServiceError DECISION_NOT_FOUND."""
    event = Envelope()
    try:
        number = await number_of(sequencer, decision_id)
    except ServiceError as error:
        if error.reason != error_pb2.ERROR_REASON_EVENT_NOT_FOUND:
            raise
        event = await _search(sequencer, decision_id, caller) or event  # the bus forgets ids after a week
    else:
        record = (await sequencer.log.read_many([number])).get(number)
        event = envelope_of(record) if record is not None else event
    if not event.HasField("decision"):
        raise ServiceError(error_pb2.ERROR_REASON_DECISION_NOT_FOUND, f"bus {sequencer.bus} has no decision {decision_id}")
    return event


async def _search(sequencer: Sequencer, event_id: str, caller: str) -> Envelope | None:
    """Return the event with an id, found in the log from its start."""
    last = (await sequencer.log.head()).sequence_number
    needle = event_id.encode()
    async with aclosing(read_chunks(sequencer.log, 1, last, caller)) as history:
        async for records in history:
            for record in records:
                if needle in record.envelope:
                    event = envelope_of(record)
                    if event.event_id == event_id:
                        return event
    return None


async def _audit(
    sequencer: Sequencer, record: TraceRecord, events: Sequence[Envelope], decisions: Sequence[Envelope], repeats: bool
) -> Audit:
    """Return the audit of some decisions of a trace. `events` led to them; `repeats`: the decisions are made again."""
    audit, versions = await run_in_thread(findings.collect, record, events, decisions)
    shown = decisions[: len(audit.decisions)]
    firsts = [one for one in shown if not one.decision.previous_decision_id and not one.decision.compensates_decision_id]
    state = await sequencer.confirmed_state()
    drifts = trace_drifts(state, versions)
    for first in firsts:
        drifts += rule_set_drifts(state, first.decision, first.sequence_number)
    audit.drifts.extend(drifts[:DRIFTS_MAX])
    audit.truncated = audit.truncated or len(drifts) > DRIFTS_MAX
    audit.head_sequence_number = state.head
    arbiter_version, actions = state.arbiter_version, dict(state.active_actions)
    repetition = Repetition()
    if repeats:
        proposals = [record.proposals[one.decision.proposal_id] for one in firsts if one.decision.proposal_id in record.proposals]
        repetition = await repeat_decisions(sequencer.log, arbiter_version, proposals, shown, actions)
        for one in audit.decisions:
            if one.sequence_number in repetition.today:
                one.today.CopyFrom(repetition.today[one.sequence_number])
            if one.sequence_number in repetition.recomputed:
                one.recomputation.CopyFrom(repetition.recomputed[one.sequence_number])
    has_all_facts = await _add_facts(sequencer, record, audit, shown, repetition)
    audit.truncated = audit.truncated or not has_all_facts
    return audit


async def _add_facts(
    sequencer: Sequencer, record: TraceRecord, audit: Audit, decisions: Sequence[Envelope], repetition: Repetition
) -> bool:
    """Add the facts of decisions, up to the limit; return whether none is left out."""
    room = findings.FACTS_MAX
    for one, event in zip(audit.decisions, decisions, strict=True):
        evidence = findings.evidence_of(event, repetition.evidence.get(event.sequence_number, ()))
        numbers = findings.fact_numbers(event, record, evidence)
        for first in range(0, len(numbers), FACTS_READ_MAX):
            if not room:
                return False
            records = await sequencer.log.read_many(numbers[first : first + FACTS_READ_MAX])
            uses = await run_in_thread(findings.fact_uses, event, evidence, records.values())  # an observation states several
            one.facts.extend(uses[:room])
            if len(uses) > room:
                return False
            room -= len(uses)
    return True
