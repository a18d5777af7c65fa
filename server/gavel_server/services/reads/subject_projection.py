"""The projection of one subject, in parts (constitution §10).

A subject may have tens of thousands of facts, and a fact a value of 1 MiB. Finding the items of a page takes one turn of the event loop,
in which the state does not change. Building their messages takes many, since the records of the state never change.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from heapq import nsmallest
from itertools import islice
from typing import Any, Final, NamedTuple, TypeVar

from gavel.v1 import execution_pb2
from gavel.v1.common_pb2 import TRUST_TIER_1_SYSTEM_FACT, EventReference, Producer
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.projection_service_pb2 import PendingExecution, PendingProposal, ProjectedFact, ProjectedObservation, Projection
from gavel_rules.events.kinds import FACT
from gavel_rules.events.recorded_event import RecordedEvent
from gavel_rules.events.timestamps import set_timestamp
from gavel_rules.state.records import EXECUTING, UNDER_REVIEW, Candidate, LiveDecision
from gavel_rules.state.state import State
from gavel_rules.values import python_to_value
from google.protobuf.message import Message
from google.protobuf.struct_pb2 import Value

from gavel_server.services.reads.views import pending_decision

_Numbered = TypeVar("_Numbered", LiveDecision, RecordedEvent)

# What an item costs beside its value, in units of about a microsecond; a part of a value costs one.
ITEM_UNITS: Final = 10


EVIDENCE, DECISIONS, EXECUTIONS, PROPOSALS = range(4)


class Place(NamedTuple):
    """The place of an item among all items of its subject. `number` is a candidate's rank under its key, else the sequence number."""

    section: int
    key: str
    number: int


class SubjectItem(NamedTuple):
    """One item of a subject's projection. Its record never changes."""

    place: Place
    record: Candidate | LiveDecision | Envelope


# Before the first item.
START: Final = Place(EVIDENCE, "", -1)


def count_items(state: State, subject: str) -> int:
    """Return how many keys, live decisions and open proposals a subject has."""
    of_subject = state.evidence_of(subject), state.decisions_by_subject.get(subject, {}), state.open_proposals_by_subject.get(subject, {})
    return sum(map(len, of_subject))


def subject_items(state: State, subject: str, items_max: int, after: Place = START) -> list[SubjectItem]:
    """Return the first items of a subject's projection after a place: evidence by key, newest first, then work in progress by age."""
    return list(islice(_subject_items(state, subject, items_max, after), items_max))


def _subject_items(state: State, subject: str, items_max: int, after: Place) -> Iterator[SubjectItem]:
    section, key, number = after
    if section == EVIDENCE:
        of_key = state.evidence_of(subject)
        # A subject may have many keys: those of this page are found without sorting all.
        for name in nsmallest(items_max + 1, (name for name in of_key if name >= key)):
            newest_first = sorted(of_key[name], key=lambda candidate: (-candidate.stated_at_ms, -candidate.sequence_number))
            for rank, candidate in enumerate(newest_first):
                if name != key or rank > number:
                    yield SubjectItem(Place(EVIDENCE, name, rank), candidate)
    live = [state.decisions[decision_id] for decision_id in state.decisions_by_subject.get(subject, {})]
    waiting = [state.open_proposals[proposal_id] for proposal_id in state.open_proposals_by_subject.get(subject, {})]
    # A subject may have many of these, too.
    for one in _oldest(live, DECISIONS, after, items_max):
        yield SubjectItem(Place(DECISIONS, "", one.sequence_number), one)
    for one in _oldest(filter(_is_executing, live), EXECUTIONS, after, items_max):
        yield SubjectItem(Place(EXECUTIONS, "", one.sequence_number), one)
    for event in _oldest(waiting, PROPOSALS, after, items_max):
        yield SubjectItem(Place(PROPOSALS, "", event.sequence_number), event.envelope)


def _oldest(records: Iterable[_Numbered], section: int, after: Place, items_max: int) -> list[_Numbered]:
    """Return the first records of a section after a place, by age."""
    return nsmallest(
        items_max, (one for one in records if (section, one.sequence_number) > (after.section, after.number)), key=_sequence_number
    )


def fill_projection(answer: Projection, items: Iterable[SubjectItem], bytes_max: int) -> Generator[int, None, int]:
    """Add items to a projection until it has `bytes_max` bytes, but at least one; return how many.

    Yields units of work of about a microsecond each, after which other tasks may run: the records stay as they are.
    """
    count = size_bytes = 0
    for item in items:
        added, part = yield from _add(answer, item)
        size_bytes += part.ByteSize()
        if count and size_bytes > bytes_max:
            del added[-1]
            break
        count += 1
    return count


def _add(answer: Projection, item: SubjectItem) -> Generator[int, None, tuple[Any, Message]]:
    """Add an item; return the list that it was added to, and its message."""
    yield ITEM_UNITS
    match item.record:
        case Candidate() as candidate if candidate.category == FACT:
            fact = answer.facts.add()
            _fill_fact(fact, item.place.key, candidate)
            yield from _fill_value(fact.value, candidate.value)
            return answer.facts, fact
        case Candidate() as candidate:
            observation = answer.observations.add()
            _fill_observation(observation, item.place.key, candidate)
            yield from _fill_value(observation.value, candidate.value)
            return answer.observations, observation
        case LiveDecision() as live if item.place.section == DECISIONS:
            answer.pending_decisions.append(pending_decision(live))
            return answer.pending_decisions, answer.pending_decisions[-1]
        case LiveDecision() as live:
            answer.pending_executions.append(_pending_execution(live))
            return answer.pending_executions, answer.pending_executions[-1]
        case envelope:
            answer.pending_proposals.append(_pending_proposal(envelope))
            return answer.pending_proposals, answer.pending_proposals[-1]


def _fill_value(target: Value, value: object) -> Generator[int, None, None]:
    """Set a Value as `python_to_value` would, in place."""
    if isinstance(value, dict):
        target.struct_value.SetInParent()
        fields = target.struct_value.fields
        for name, item in value.items():
            yield from _fill_value(fields[name], item)
    elif isinstance(value, list):
        target.list_value.SetInParent()
        values = target.list_value.values
        for item in value:
            yield from _fill_value(values.add(), item)
    else:
        target.CopyFrom(python_to_value(value))
        yield 1


def _sequence_number(record: LiveDecision | RecordedEvent) -> int:
    return record.sequence_number


def _fill_fact(answer: ProjectedFact, key: str, candidate: Candidate) -> None:
    part = ProjectedFact(
        key=key,
        source_event=EventReference(event_id=candidate.event_id, sequence_number=candidate.sequence_number),
        producer=_producer(candidate),
        observed_from=candidate.observed_from,
        max_age_ms=candidate.max_age_ms,
        derivation_rule_id=candidate.derivation_rule_id,
        derivation_rule_version=candidate.derivation_rule_version,
    )
    if candidate.trust_tier > TRUST_TIER_1_SYSTEM_FACT:
        part.trust_tier = candidate.trust_tier  # type: ignore[assignment]  # an int of the closed enum
    set_timestamp(part.occurred_at, candidate.aged_from_ms)
    answer.CopyFrom(part)


def _fill_observation(answer: ProjectedObservation, key: str, candidate: Candidate) -> None:
    part = ProjectedObservation(
        key=key,
        source_event=EventReference(event_id=candidate.event_id, sequence_number=candidate.sequence_number),
        producer=_producer(candidate),
        source_tool=candidate.source,
        trust_tier=candidate.trust_tier,  # type: ignore[arg-type]  # an int of the closed enum
        confidence=candidate.confidence,
        evidence_ref=candidate.evidence_ref,
        evidence_hash=candidate.evidence_hash,
    )
    set_timestamp(part.observed_at, candidate.aged_from_ms)
    answer.CopyFrom(part)


def _producer(candidate: Candidate) -> Producer:
    return Producer(type=candidate.producer_type, id=candidate.producer_id, version=candidate.producer_version)


def _is_executing(live: LiveDecision) -> bool:
    """Return whether an attempt has started and not ended; also one whose lease lapsed, while its review is open."""
    return live.phase == EXECUTING or (live.phase == UNDER_REVIEW and live.status == execution_pb2.EXECUTION_STATUS_STARTED)


def _pending_execution(live: LiveDecision) -> PendingExecution:
    answer = PendingExecution(
        decision_id=live.decision_id,
        execution_id=live.execution_id,
        attempt=live.attempt,
        producer=Producer(type=live.executor_type, id=live.executor_id, version=live.executor_version),
        status=live.status,  # type: ignore[arg-type]  # an int of the closed enum
        source_event=EventReference(event_id=live.status_event_id, sequence_number=live.status_sequence_number),
    )
    set_timestamp(answer.lease_until, live.lease_until_ms)
    return answer


def _pending_proposal(envelope: Envelope) -> PendingProposal:
    proposal = envelope.proposal
    return PendingProposal(
        proposal_id=envelope.event_id,
        sequence_number=envelope.sequence_number,
        action_type=proposal.action_type,
        params=proposal.params,
        trace_id=envelope.trace_id,
        conflict_key=proposal.contest.conflict_key,
        opened_at=proposal.contest.opened_at,
        closes_at=proposal.contest.closes_at,
    )
