"""What a batch needs from the log before it is decided: causes, citations, earlier answers, ended decisions.

Most of it is in memory; what is not is read here, so that the decider itself never waits.
"""

from __future__ import annotations

import uuid
from collections import ChainMap
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

import structlog
from gavel.v1 import error_pb2
from gavel.v1.envelope_pb2 import Envelope
from gavel_rules import reasons
from gavel_rules.commands import Command, PublishEvent, References, ResolveReview, SubmitProposal, command_envelope, decision_id_of
from gavel_rules.projection import State
from gavel_rules.proposed import Proposed
from gavel_rules.records import APPROVED

from gavel_server.admission import admit_proposal
from gavel_server.bus.earlier_answers import EarlierAnswers
from gavel_server.bus.planning import Pending
from gavel_server.bus.replica import Replica
from gavel_server.errors import ServiceError, internal

# A tuple: a union would be made anew at every look.
_OF_NO_DECISION: Final = (SubmitProposal, PublishEvent)

_LOG: Final = structlog.get_logger(__name__)


class Prepared(NamedTuple):
    """A batch as far as it can be decided now."""

    ready: list[Pending]
    later: list[Pending]  # what repeats an event_id of the same batch: for the next one
    behind: bool  # whether the state should first read on: another server has just written what this batch speaks of


class Preparation:
    """What prepares one bus's batches. `land` waits for the append under way and says whether there was one."""

    def __init__(self, replica: Replica, earlier: EarlierAnswers, land: Callable[[], Awaitable[bool]]) -> None:
        self._replica = replica
        self._earlier = earlier
        self._land = land

    async def prepare(self, batch: list[Pending]) -> Prepared:
        """Return which commands can be decided.

        Those that repeat an event_id of the log are answered here, and so are those that may not be decided or have an unknown cause.
        Raises LogError, and what `land` raises.
        """
        ready: list[Pending] = []
        later: list[Pending] = []
        in_batch: dict[str, Envelope] = {}
        behind = False
        lookup = self._replica.lookup
        for pending in batch:
            command = pending.command
            if pending.unchecked and isinstance(command, SubmitProposal) and not _admitted(self._replica.bus, pending, command):
                continue
            envelope = command_envelope(command)
            if pending.check_id:
                if pending.check_id in in_batch:
                    later.append(pending)
                    continue
                known = lookup.known(pending.check_id)
                if known is not None:
                    await self._earlier.give(pending, known)
                    continue
            if envelope is not None:
                if envelope.causation_id and not await self._find_cause(pending, envelope, in_batch):
                    continue
                if pending.check_id:
                    in_batch[pending.check_id] = envelope
            if not isinstance(command, _OF_NO_DECISION):
                decision_id = decision_id_of(command)
                if decision_id:
                    behind = await self._find_decision(pending, decision_id) or behind
            ready.append(pending)
        behind = await self._find_citations(ready) or behind
        return Prepared(ready, later, behind)

    async def _find_cause(self, pending: Pending, envelope: Envelope, in_batch: dict[str, Envelope]) -> bool:
        """Give an event the trace of its cause where it has none; refuse it if the cause is not in the log."""
        cause = in_batch.get(envelope.causation_id)
        if cause is not None:
            pending.cause_in_batch = envelope.causation_id
            trace_id = cause.trace_id
            if not trace_id and cause.HasField("execution"):
                # A report gets its decision's trace when it is decided.
                live = self._replica.state.live(cause.execution.decision_id)
                trace_id = live.decision.trace_id if live is not None else ""
        else:
            pending.cause_in_batch = ""
            known = await self._replica.lookup.find(envelope.causation_id, self._replica.now_ms())
            if known is None and await self._land():
                # It may have been on its way into the log.
                known = await self._replica.lookup.find(envelope.causation_id, self._replica.now_ms())
            if known is None:
                message = f"causation_id {envelope.causation_id} names no event of bus {self._replica.bus} within the idempotency window"
                pending.answer(ServiceError(error_pb2.ERROR_REASON_EVENT_NOT_FOUND, message))
                return False
            trace_id = known.trace_id
        if not envelope.trace_id and not envelope.HasField("execution"):
            envelope.trace_id = trace_id
            command = pending.command
            if isinstance(command, SubmitProposal):
                command.asked.header.trace_id = trace_id
        return True

    async def _find_decision(self, pending: Pending, decision_id: str) -> bool:
        """Look up a decision that is not alive here, so that the decider can say how it ended.

        Returns whether the state should first read on: another server made the decision just now.
        """
        live = self._replica.state.live(decision_id)
        if live is not None:
            # Timers speak before the command, and so may a person: nobody else ends an approval before it is started.
            pending.references = References(decision=live.decision, ending=reasons.EXPIRED if live.phase == APPROVED else "")
            return False
        # What ended it may be on its way into the log, and only the log says how it ended.
        await self._land()
        now_ms = self._replica.now_ms()
        event = await self._replica.lookup.event(decision_id, now_ms)
        if event is None or not event.HasField("decision"):
            pending.references = References()
            return False
        approval = await self._replica.lookup.approval(event, now_ms)
        pending.references = References(decision=approval, ending=await self._replica.lookup.ending(approval, now_ms))
        return event.sequence_number > self._replica.head.sequence_number

    async def _find_citations(self, batch: list[Pending]) -> bool:
        """Give every proposal what it cites. Returns whether the state should first read on: what it speaks of is not there yet.

        The last thing before the batch is decided: whatever is committed in between may push a cited event out of memory.
        """
        lookup = self._replica.lookup
        state = self._replica.state
        cited = lookup.cited
        head = state.head
        references = References(cited=cited)
        uncached: list[int] = []
        behind = False
        for pending in batch:
            command = pending.command
            asked = _asked(command, state)
            if asked is not None:
                missing = lookup.missing(asked.citations)
                if missing:
                    uncached += missing
                    behind = behind or max(missing) > head
                version = asked.projection_version
                behind = behind or (version is not None and version > head)
                pending.references = _citing(pending, references)
        if uncached:
            fetched = await lookup.fetch_cited(uncached)
            references = References(cited=ChainMap(fetched, cited))
            for pending in batch:
                if _asked(pending.command, state) is not None:
                    pending.references = _citing(pending, references)
        return behind


def _admitted(bus: str, pending: Pending, command: SubmitProposal) -> bool:
    """Check a proposal as it was sent; one that may not be decided is answered."""
    try:
        asked, chosen = admit_proposal(command.envelope, bus, pending.size_bytes)
    except ServiceError as error:
        pending.answer(error)
        return False
    except Exception:  # noqa: BLE001  # a bug: it costs one proposal, not those that wait with it
        error_id = uuid.uuid4().hex
        _LOG.exception("admission.failed", bus=bus, error_id=error_id)
        pending.answer(internal(error_id))
        return False
    command.asked = asked
    if chosen:
        pending.check_id = asked.header.event_id
    pending.unchecked = False
    return True


def _asked(command: Command, state: State) -> Proposed | None:
    """Return the proposal that a command has judged: the one that it submits, or that of the review which it resolves."""
    if isinstance(command, SubmitProposal):
        return command.asked
    if isinstance(command, ResolveReview):
        review = state.reviews.get(command.envelope.fact.review_resolved.decision_id)
        return None if review is None else Proposed(review.proposal)
    return None


def _citing(pending: Pending, references: References) -> References:
    """Return references to what is cited, with the decision that was looked up already."""
    decision = pending.references.decision
    if decision is None or isinstance(pending.command, SubmitProposal):
        return references
    return References(references.cited, decision, pending.references.ending)
