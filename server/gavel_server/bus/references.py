"""Resolves what a batch refers to before it is decided: causes, citations, repeated requests and ended decisions.

Most of it is in memory. The rest is read from the log here, so that deciding never waits.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Final, NamedTuple, Protocol

from gavel.v1 import error_pb2
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.fact_pb2 import REVIEW_VERDICT_APPROVE
from gavel_rules import reason_codes
from gavel_rules.commands import Command, PublishEvent, References, ResolveReview, SubmitProposal, command_envelope, decision_id_of
from gavel_rules.events.citation import CitedEvent
from gavel_rules.events.proposal_view import ProposalView
from gavel_rules.execution.review import releases_trace
from gavel_rules.state.records import APPROVED
from gavel_rules.state.state import State

from gavel_server.bus.idempotency.repeated_requests import RepeatedRequests
from gavel_server.bus.replica import Replica
from gavel_server.bus.request import Request
from gavel_server.bus.trace_owners import TraceParty, trace_refusal
from gavel_server.errors import ServiceError

# docs/performance.md#isinstance-tuples
_WITHOUT_DECISION: Final = (SubmitProposal, PublishEvent)


class ResolvedBatch(NamedTuple):
    """The part of a batch that can be decided now."""

    ready: list[Request]
    deferred: list[Request]  # repeats of an event_id of the same batch, or of the append under way: for the next batch
    is_behind: bool  # whether the state must read on first: the batch refers to events that another server has just written


class UnderWay(Protocol):
    """The append under way, if any; `Committer` has it."""

    @property
    def is_appending(self) -> bool:
        """Whether an append is under way."""

    def idempotency_keys(self) -> Collection[str]:
        """Return the idempotency keys of the append under way."""


class ReferenceResolution:
    """Resolves the batches of one bus.

    `settle` waits for the append under way and returns whether there was one. `under_way` tells of that append.
    """

    def __init__(
        self,
        replica: Replica,
        repeated_requests: RepeatedRequests,
        settle: Callable[[], Awaitable[bool]],
        under_way: UnderWay,
    ) -> None:
        self._replica = replica
        self._repeated_requests = repeated_requests
        self._settle = settle
        self._under_way = under_way
        self._opened: dict[str, TraceParty] = {}  # traces of the last batch's first proposals, and their owners

    async def resolve(self, batch: list[Request]) -> ResolvedBatch:
        """Return the requests that can be decided, with their references.

        Requests that the log has answered before are answered here, and so are those whose cause is unknown.
        Raises LogError and the exceptions of `settle`.
        """
        ready: list[Request] = []
        deferred: list[Request] = []
        envelope_of_key: dict[str, Envelope] = {}
        keys: set[str] = set()
        is_behind = False
        # Traces that this batch opens, or the one that is being appended, and their owners.
        opened = dict(self._opened) if self._under_way.is_appending else {}
        before = frozenset(opened)
        recent_events = self._replica.recent_events
        for request in batch:
            command = request.command
            key = request.idempotency_key
            if key:
                if key in keys or key in self._under_way.idempotency_keys():
                    # The state may forbid by now what the first request did. The next batch answers from the log.
                    deferred.append(request)
                    continue
                location = recent_events.location(key)
                if location is not None:
                    await self._repeated_requests.answer(request, location)
                    continue
            envelope = command_envelope(command)
            request.named_in_batch = []
            if envelope is not None:
                cause_trace_id = ""
                if envelope.causation_id:
                    resolved = await self._resolve_cause(request, envelope, envelope_of_key)
                    if resolved is None:
                        continue
                    cause_trace_id = resolved
                    envelope = command_envelope(request.command)
                if not self._may_use_trace(request, cause_trace_id, opened):
                    continue
                named = _events_of_transition(envelope)
                if named and not await self._find_events(request, named, envelope_of_key):
                    continue
                if key and envelope is not None:
                    envelope_of_key[key] = envelope
            if key:
                keys.add(key)
            if not isinstance(command, _WITHOUT_DECISION):
                decision_id = decision_id_of(command)
                if decision_id:
                    is_behind = await self._resolve_decision(request, decision_id) or is_behind
            ready.append(request)
        self._opened = {trace_id: party for trace_id, party in opened.items() if trace_id not in before}
        is_behind = await self._resolve_citations(ready) or is_behind
        return ResolvedBatch([request for request in ready if not request.is_answered], deferred, is_behind)

    async def _resolve_cause(self, request: Request, envelope: Envelope, envelope_of_key: dict[str, Envelope]) -> str | None:
        """Let an event without a trace_id inherit that of its cause; return the cause's trace_id.

        Returns None after answering: an event of an unknown cause is refused, unless it repeats an event of the log.
        """
        replica = self._replica
        cause = envelope_of_key.get(envelope.causation_id)
        if cause is not None:
            request.named_in_batch.append(envelope.causation_id)
            trace_id = cause.trace_id
            if not trace_id and cause.HasField("execution"):
                # A report gets the trace of its decision when it is decided.
                live = replica.state.live_decision(cause.execution.decision_id)
                trace_id = live.decision.trace_id if live is not None else ""
        else:
            location = await replica.recent_events.find_location(envelope.causation_id, replica.now_ms())
            if location is None and await self._settle():
                # The cause may have been in the append under way.
                location = await replica.recent_events.find_location(envelope.causation_id, replica.now_ms())
            trace = location.trace_id if location is not None else replica.trace_of_pending(envelope.causation_id)
            if trace is None:
                if await self._repeated_requests.answer_known(request):
                    return None
                message = f"causation_id {envelope.causation_id} names no event of bus {replica.bus} within the idempotency window"
                request.answer(ServiceError(error_pb2.ERROR_REASON_EVENT_NOT_FOUND, message))
                return None
            trace_id = trace
        if trace_id and not envelope.trace_id and not envelope.HasField("execution"):
            command = request.command
            if isinstance(command, SubmitProposal):
                request.command = SubmitProposal(command.proposal.with_trace(trace_id))
            else:
                envelope.trace_id = trace_id
        return trace_id

    async def _find_events(self, request: Request, event_ids: list[str], envelope_of_key: Mapping[str, Envelope]) -> bool:
        """Return whether all events are in the log or earlier in the batch; answer the request otherwise."""
        replica = self._replica
        for event_id in event_ids:
            if event_id in envelope_of_key:
                request.named_in_batch.append(event_id)
                continue
            location = await replica.recent_events.find_location(event_id, replica.now_ms())
            if location is None and await self._settle():
                location = await replica.recent_events.find_location(event_id, replica.now_ms())
            if location is None:
                if not await self._repeated_requests.answer_known(request):
                    message = f"graph_transition names {event_id}, which is no event of bus {replica.bus} within the idempotency window"
                    request.answer(ServiceError(error_pb2.ERROR_REASON_EVENT_NOT_FOUND, message))
                return False
        return True

    def _may_use_trace(self, request: Request, cause_trace_id: str, opened: dict[str, TraceParty]) -> bool:
        """Return whether a proposal or observation may be in its trace; answer it otherwise. A proposal opens a trace without an owner."""
        command = request.command
        if isinstance(command, SubmitProposal):
            proposal = command.proposal
            trace_id = proposal.trace_id
            party = TraceParty(proposal.producer_type, proposal.producer_id, request.principal)
        elif isinstance(command, PublishEvent) and command.envelope.HasField("observation"):
            envelope = command.envelope
            trace_id = envelope.trace_id
            party = TraceParty(envelope.producer.type, envelope.producer.id, request.principal)
        else:
            return True
        replica = self._replica
        owner = replica.trace_owners.owner(trace_id, replica.now_ms) or opened.get(trace_id)
        in_force = replica.state.grants_in_force
        refusal = trace_refusal(trace_id, owner, party, cause_trace_id, None if in_force is None else in_force.grants)
        if refusal is not None:
            request.answer(refusal)
            return False
        if owner is None and isinstance(command, SubmitProposal):
            opened[trace_id] = party
        return True

    async def _resolve_decision(self, request: Request, decision_id: str) -> bool:
        """Look up the decision that a command names; if it is not live, also how it ended.

        Returns whether the state must read on first: another server has just made the decision.
        """
        replica = self._replica
        live = replica.state.live_decision(decision_id)
        if live is not None:
            # Due timers precede the command, so an approval that nobody has started can only expire.
            request.references = References(decision=live.decision, end_reason=reason_codes.EXPIRED if live.phase == APPROVED else "")
            return False
        # The event that ended the decision may be in the append under way, and only the log tells how a decision ended.
        await self._settle()
        now_ms = replica.now_ms()
        recent_events = replica.recent_events
        event = await recent_events.find_event(decision_id, now_ms)
        if event is None or not event.HasField("decision"):
            request.references = References()
            return False
        approval = await recent_events.find_approval(event, now_ms)
        request.references = References(decision=approval, end_reason=await recent_events.find_end_reason(approval, now_ms))
        return event.sequence_number > replica.head.sequence_number

    async def _resolve_citations(self, batch: list[Request]) -> bool:
        """Give every proposal the events that it cites. Returns whether the state must read on first.

        A proposal that cites a trimmed event is refused, and the approval of its review. UNKNOWN_EVENT would be wrong, since a replay
        across the archive finds the event.
        """
        recent_events = self._replica.recent_events
        state = self._replica.state
        citable = recent_events.citable
        head = state.head
        # What is in memory now: a commit while the batch is decided may push it out.
        cited: dict[int, CitedEvent] = {}
        missing: list[int] = []
        is_behind = False
        for request in batch:
            proposal = _proposal_of(request.command, state)
            if proposal is not None:
                for number, _ in proposal.citations:
                    event = citable.get(number)
                    if event is None:
                        missing.append(number)
                    else:
                        cited[number] = event
                version = proposal.projection_version
                is_behind = is_behind or (version is not None and version > head)
        trimmed: set[int] = set()
        if missing:
            from_log = await recent_events.read_citable(missing)
            cited |= from_log
            last = self._replica.head.sequence_number
            trimmed = {number for number in missing if 0 < number <= last and number not in from_log}
        is_ahead = bool(missing) and max(missing) > head
        # An event of this very batch is in memory once it is decided.
        references = References(cited_events=ChainMap(cited, citable) if is_ahead else cited)
        for request in batch:
            proposal = _proposal_of(request.command, state)
            if proposal is not None:
                request.references = _with_decision(references, request)
                if trimmed and _decides_proposal(request.command, state):
                    await self._refuse_trimmed(request, [number for number, _ in proposal.citations if number in trimmed])
        return is_behind or is_ahead

    async def _refuse_trimmed(self, request: Request, trimmed: list[int]) -> None:
        """Answer a command on a proposal that cites events that neither the log nor an archive has, unless the log has its answer."""
        if trimmed and not await self._repeated_requests.answer_known(request):
            message = f"event {trimmed[0]}, which the proposal cites, is no more in the log of bus {self._replica.bus}"
            remedy = "start the server with the archive of the log (--archive)"
            request.answer(ServiceError(error_pb2.ERROR_REASON_LOG_UNAVAILABLE, f"{message}; {remedy}"))


def _proposal_of(command: Command, state: State) -> ProposalView | None:
    """Return the proposal that a command submits, or that of the review that it resolves."""
    if isinstance(command, SubmitProposal):
        return command.proposal
    if isinstance(command, ResolveReview):
        review = state.reviews.get(command.envelope.fact.review_resolved.decision_id)
        return None if review is None else ProposalView(review.proposal)
    return None


def _decides_proposal(command: Command, state: State) -> bool:
    """Return whether a command that has a proposal may approve it: a verdict against it, or on its trace alone, needs no citations."""
    if not isinstance(command, ResolveReview):
        return True
    resolution = command.envelope.fact.review_resolved
    return resolution.verdict == REVIEW_VERDICT_APPROVE and not releases_trace(state.reviews[resolution.decision_id])


def _with_decision(references: References, request: Request) -> References:
    """Return the references with the decision that a request has resolved already, if any."""
    decision = request.references.decision
    if decision is None or isinstance(request.command, SubmitProposal):
        return references
    return References(references.cited_events, decision, request.references.end_reason)


def _events_of_transition(envelope: Envelope | None) -> list[str]:
    """Return the events that a GraphTransition names; none for other events."""
    if envelope is None or not envelope.HasField("agent_diagnostic"):
        return []
    transition = envelope.agent_diagnostic.graph_transition
    return [*transition.input_event_ids, *transition.output_event_ids]
