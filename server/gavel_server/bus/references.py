"""Resolves what a batch refers to before it is decided: causes, citations, repeated requests and ended decisions.

Most of it is in memory. The rest is looked up in the log here, so that deciding never waits. Other callers wait meanwhile, so the requests
of a batch begin their lookups within LOOKUP_SECONDS_MAX. A request for which no time is left is resolved with a later batch. One that has
begun ends its lookups, which are few, except that it may read its citations over several batches.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Final, NamedTuple, Protocol

from gavel.v1 import error_pb2
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.fact_pb2 import REVIEW_VERDICT_APPROVE
from gavel_rules.commands import Command, PublishEvent, References, ResolveReview, SubmitProposal, command_envelope, decision_id_of
from gavel_rules.events.citation import CitedEvent
from gavel_rules.events.proposal_view import ProposalView
from gavel_rules.execution.faults import coming_end_reason
from gavel_rules.execution.review import releases_trace
from gavel_rules.state.state import State

from gavel_server.bus.idempotency.repeated_requests import RepeatedRequests
from gavel_server.bus.recent_events import CITED_READ_MAX, EventLocation
from gavel_server.bus.replica import Replica
from gavel_server.bus.request import Request
from gavel_server.bus.trace_owners import TraceParty, trace_refusal
from gavel_server.errors import ServiceError
from gavel_server.log import ArchiveUnavailableError

# A lookup takes a round trip to the log, which is usually less than a millisecond, or the time to load a segment of the archive.
LOOKUP_SECONDS_MAX: Final = 0.03

# docs/performance.md#isinstance-tuples
_WITHOUT_DECISION: Final = (SubmitProposal, PublishEvent)


class ResolvedBatch(NamedTuple):
    """The part of a batch that can be decided now."""

    ready: list[Request]
    # For a later batch: repeats of an event_id of this batch or of the append under way, and requests whose lookups had no time left.
    deferred: list[Request]
    is_behind: bool  # whether the state must read on first: the batch refers to events that another server has just written


class UnderWay(Protocol):
    """The append under way, if any; `Committer` has it."""

    @property
    def is_appending(self) -> bool:
        """Whether an append is under way."""

    def idempotency_keys(self) -> Collection[str]:
        """Return the idempotency keys of the append under way."""


class _OutOfTime(Exception):  # noqa: N818  # control flow, not an error
    """A batch has no time left for another request's lookups."""


class _BatchContext:
    """What the resolution of one batch knows: its earlier requests, and what lookups in the log have found."""

    def __init__(self, opened: dict[str, TraceParty], monotonic: Callable[[], float]) -> None:
        self.keys: set[str] = set()
        self.envelope_of_key: dict[str, Envelope] = {}
        self.opened = opened  # traces that the batch opens, or the append under way, and their owners
        self.is_behind = False
        self.locations: dict[str, EventLocation] = {}
        self.recorded_ids: set[str] = set()
        # Also those in memory: a commit while the batch is decided may push them out.
        self.cited: dict[int, CitedEvent] = {}
        self.references = References(cited_events=self.cited)
        self.callers_with_lookup: set[str] = set()
        self._monotonic = monotonic
        self._lookups_end_at = 0.0
        self._request_with_lookup: Request | None = None  # the last one

    def begin_lookups(self, request: Request) -> None:
        """Note that a request needs a lookup. Raises _OutOfTime if it is its first one, unless it is also the first one of the batch."""
        if request is self._request_with_lookup:
            return
        if self._request_with_lookup is None:
            self._lookups_end_at = self._monotonic() + LOOKUP_SECONDS_MAX
        else:
            self.require_time()
        self._request_with_lookup = request
        self.callers_with_lookup.add(request.caller)

    def require_time(self) -> None:
        """Raises _OutOfTime if the time for lookups is over."""
        if self._monotonic() >= self._lookups_end_at:
            raise _OutOfTime


class ReferenceResolution:
    """Resolves the batches of one bus.

    `settle` waits for the append under way, if there is one. `under_way` tells of that append. `monotonic` (seconds) limits the time of
    lookups; no outcome depends on it.
    """

    def __init__(
        self,
        replica: Replica,
        repeated_requests: RepeatedRequests,
        settle: Callable[[], Awaitable[None]],
        under_way: UnderWay,
        monotonic: Callable[[], float],
    ) -> None:
        self._replica = replica
        self._repeated_requests = repeated_requests
        self._settle = settle
        self._under_way = under_way
        self._monotonic = monotonic
        self._opened: dict[str, TraceParty] = {}  # traces of the last batch's first proposals, and their owners
        # Callers that wait for their turn at lookups, the first in turn first, each with the last of its requests that was deferred.
        self._waiting: dict[str, Request] = {}

    async def resolve(self, batch: list[Request]) -> ResolvedBatch:
        """Return the requests that can be decided, with their references.

        Requests that the log has answered before are answered here, and so are those whose cause is unknown. A request that needs an
        archived event is answered if the archive cannot be read. Raises other LogErrors, and the exceptions of `settle`.
        """
        ready: list[Request] = []
        deferred: list[Request] = []
        opened_before = self._opened if self._under_way.is_appending else {}
        context = _BatchContext(dict(opened_before), self._monotonic)
        recent_events = self._replica.recent_events
        state = self._replica.state
        late: dict[str, Request] = {}  # callers with a request out of time, and their last requests; later ones stay behind it
        if self._waiting:
            turns = {caller: turn for turn, caller in enumerate(self._waiting)}
            batch = sorted(batch, key=lambda request: turns.get(request.caller, len(turns)))
        for request in batch:
            if late and request.caller in late:
                late[request.caller] = request
                deferred.append(request)
                continue
            key = request.idempotency_key
            try:
                if key:
                    if key in context.keys or key in self._under_way.idempotency_keys():
                        # The state may forbid by now what the first request did. The next batch answers from the log.
                        deferred.append(request)
                        continue
                    location = recent_events.location(key)
                    if (location is not None or request.is_repeated) and await self._answer_repeated(request, location, context):
                        continue
                request.named_in_batch = []
                proposal = _proposal_of(request.command, state)
                missing = self._find_cited(proposal, context) if proposal is not None else None
                trimmed = await self._read_citations(request, missing, context) if missing else None
                envelope = command_envelope(request.command)
                if envelope is not None:
                    cause_trace_id = ""
                    if envelope.causation_id:
                        resolved = await self._resolve_cause(request, envelope, context)
                        if resolved is None:
                            continue
                        cause_trace_id = resolved
                        envelope = command_envelope(request.command)
                    if not self._may_use_trace(request, cause_trace_id, context.opened):
                        continue
                    named = _events_of_transition(envelope)
                    if named and not await self._find_events(request, named, context):
                        continue
                if not isinstance(request.command, _WITHOUT_DECISION) and (decision_id := decision_id_of(request.command)):
                    await self._resolve_decision(request, decision_id, context)
                if trimmed and await self._refuse_trimmed(request, trimmed):
                    continue
                if proposal is not None:
                    self._cite(request, proposal, missing, context)
            except _OutOfTime:
                late[request.caller] = request
                deferred.append(request)
                continue
            except ArchiveUnavailableError as error:
                if not await self._repeated_requests.answer_known(request):
                    request.answer(ServiceError(error_pb2.ERROR_REASON_LOG_UNAVAILABLE, str(error)))
                continue
            if key:
                context.keys.add(key)
                if envelope is not None:
                    context.envelope_of_key[key] = envelope
            ready.append(request)
        self._opened = {trace_id: party for trace_id, party in context.opened.items() if trace_id not in opened_before}
        if self._waiting or late:
            self._note_turns(late, context.callers_with_lookup)
        return ResolvedBatch(ready, deferred, context.is_behind)

    def _note_turns(self, late: dict[str, Request], callers_with_lookup: set[str]) -> None:
        """Let the late callers wait for their turn at lookups, behind the others; let go those that have had it, or have left."""
        self._waiting = {
            caller: request
            for caller, request in {**self._waiting, **late}.items()
            if caller not in callers_with_lookup and not (request.is_answered or request.is_cancelled)
        }

    async def _begin_lookup(self, request: Request, context: _BatchContext) -> None:
        """Begin a lookup for a request. Raises _OutOfTime, and the exceptions of `settle`.

        The append under way may have what is looked up, and its callers must not wait for the lookup. Its time does not count.
        """
        await self._settle()
        context.begin_lookups(request)

    async def _answer_repeated(self, request: Request, location: EventLocation | None, context: _BatchContext) -> bool:
        """Answer a request whose event_id is in memory, or was in the log's index; return False if the index has it no longer."""
        await self._begin_lookup(request, context)
        if location is None:
            return await self._repeated_requests.answer_known(request)
        await self._repeated_requests.answer(request, location)
        return True

    async def _resolve_cause(self, request: Request, envelope: Envelope, context: _BatchContext) -> str | None:
        """Let an event without a trace_id inherit that of its cause; return the cause's trace_id.

        Returns None after answering: an event of an unknown cause is refused, unless it repeats an event of the log.
        """
        replica = self._replica
        cause = context.envelope_of_key.get(envelope.causation_id)
        if cause is not None:
            request.named_in_batch.append(envelope.causation_id)
            trace_id = cause.trace_id
            if not trace_id and cause.HasField("execution"):
                # A report gets the trace of its decision when it is decided.
                live = replica.state.live_decision(cause.execution.decision_id)
                trace_id = live.decision.trace_id if live is not None else ""
        else:
            location = await self._find_location(request, envelope.causation_id, context)
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

    async def _find_location(self, request: Request, event_id: str, context: _BatchContext) -> EventLocation | None:
        """Return the location of an event, from memory, an earlier lookup or the log."""
        replica = self._replica
        location = replica.recent_events.location(event_id) or context.locations.get(event_id)
        if location is not None:
            return location
        await self._begin_lookup(request, context)
        location = await replica.recent_events.find_location(event_id, replica.now_ms())
        if location is not None:
            context.locations[event_id] = location
        return location

    async def _find_events(self, request: Request, event_ids: Sequence[str], context: _BatchContext) -> bool:
        """Return whether all events are in the log or earlier in the batch; answer the request otherwise."""
        replica = self._replica
        in_batch = context.envelope_of_key
        request.named_in_batch += [event_id for event_id in event_ids if event_id in in_batch]
        others = [event_id for event_id in event_ids if event_id not in in_batch and event_id not in context.recorded_ids]
        unknown = [event_id for event_id in others if replica.recent_events.location(event_id) is None]
        if unknown:
            await self._begin_lookup(request, context)
            unknown = await replica.recent_events.find_unknown(unknown, replica.now_ms())
        if unknown:
            if not await self._repeated_requests.answer_known(request):
                message = f"graph_transition names {unknown[0]}, which is no event of bus {replica.bus} within the idempotency window"
                request.answer(ServiceError(error_pb2.ERROR_REASON_EVENT_NOT_FOUND, message))
            return False
        context.recorded_ids.update(others)
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

    async def _resolve_decision(self, request: Request, decision_id: str, context: _BatchContext) -> None:
        """Look up the decision that a command names; if it is not live, also how it ended.

        The state must read on first if another server has just made the decision.
        """
        replica = self._replica
        live = replica.state.live_decision(decision_id)
        if live is not None:
            # Timers and events of the batch precede the command, and may end the decision.
            request.references = References(decision=live.decision, end_reason=coming_end_reason(live))
            return
        # Only the log tells how a decision ended.
        await self._begin_lookup(request, context)
        now_ms = replica.now_ms()
        recent_events = replica.recent_events
        event = await recent_events.find_event(decision_id, now_ms)
        if event is None or not event.HasField("decision"):
            request.references = References()
            return
        approval = await recent_events.find_approval(event, now_ms)
        request.references = References(decision=approval, end_reason=await recent_events.find_end_reason(approval, now_ms))
        context.is_behind = context.is_behind or event.sequence_number > replica.head.sequence_number

    def _find_cited(self, proposal: ProposalView, context: _BatchContext) -> list[int]:
        """Add the events that a proposal cites to the context, as far as they are in memory; return the numbers of the others."""
        citable = self._replica.recent_events.citable
        cited = context.cited
        missing: list[int] = []
        for number, _ in proposal.citations:
            event = citable.get(number)
            if event is not None:
                cited[number] = event
            elif number not in cited:
                missing.append(number)
        return missing

    async def _read_citations(self, request: Request, missing: list[int], context: _BatchContext) -> list[int]:
        """Read the events with these numbers; return the numbers of trimmed events that neither the log nor an archive has.

        Events after the state's head are not read: the state must read on first, and until then a failover may lose them.
        A proposal may cite many large events, or events of many segments of the archive, so what was read is kept for a later batch.
        """
        replica = self._replica
        recent_events = replica.recent_events
        cited = context.cited
        head = replica.state.head
        numbers = sorted({number for number in missing if 0 < number <= head})  # neighbours are in one segment
        if request.partial_citations is not None and request.partial_citations[0] is recent_events:
            partial = request.partial_citations[1]
            cited |= {number: partial[number] for number in numbers if number in partial}
        unread = [number for number in numbers if number not in cited]
        try:
            for first in range(0, len(unread), CITED_READ_MAX):
                if first:
                    context.require_time()
                else:
                    await self._begin_lookup(request, context)
                cited |= await recent_events.read_citable(unread[first : first + CITED_READ_MAX])
        except ArchiveUnavailableError:
            if _decides_proposal(request.command, replica.state):
                raise
        finally:
            request.partial_citations = recent_events, {number: cited[number] for number in numbers if number in cited}
        return [number for number in numbers if number not in cited]

    def _cite(self, request: Request, proposal: ProposalView, missing: list[int] | None, context: _BatchContext) -> None:
        """Give a request the events that its proposal cites. If the proposal refers to later events, the state must read on first."""
        head = self._replica.state.head
        version = proposal.projection_version
        references = context.references
        if version is not None and version > head:
            context.is_behind = True
        if missing and max(missing) > head:
            context.is_behind = True
            # An event of this very batch is in memory once it is decided.
            references = References(cited_events=ChainMap(context.cited, self._replica.recent_events.citable))
        request.references = _with_decision(references, request)

    async def _refuse_trimmed(self, request: Request, trimmed: list[int]) -> bool:
        """Answer a command that may approve a proposal that cites trimmed events, with its answer in the log if there is one.

        Returns False for other commands. UNKNOWN_EVENT would be wrong, since a replay across the archive finds the event.
        """
        replica = self._replica
        if not _decides_proposal(request.command, replica.state):
            return False
        if not await self._repeated_requests.answer_known(request):
            message = f"event {trimmed[0]}, which the proposal cites, is no more in the log of bus {replica.bus}"
            remedy = "start the server with the archive of the log (--archive)"
            request.answer(ServiceError(error_pb2.ERROR_REASON_LOG_UNAVAILABLE, f"{message}; {remedy}"))
        return True


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
    """Return the events that a GraphTransition names, each once; none for other events."""
    if envelope is None or not envelope.HasField("agent_diagnostic"):
        return []
    transition = envelope.agent_diagnostic.graph_transition
    return list(dict.fromkeys([*transition.input_event_ids, *transition.output_event_ids]))
