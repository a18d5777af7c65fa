"""The recent past in memory, and older events from the log."""

from __future__ import annotations

import pytest
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.fact_pb2 import REVIEW_VERDICT_APPROVE
from gavel_rules.events.citation import cited_event
from gavel_server.bus.recent_events import EventLocation, RecentEvents
from gavel_server.log import Entry, Head, empty_head
from gavel_server.log.memory import MemoryLog

from tests.support.driver import BUS, FAILED, START_MS, SUCCESS, Core, document, event_id, observation_envelope
from tests.support.histories.story import story


async def log_of(core: Core) -> MemoryLog:
    """Return a log that holds a bus's events."""
    log = MemoryLog(BUS, lambda: core.now_ms)
    head = empty_head(BUS)
    decided_by = {event.decision.proposal_id: event.sequence_number for event in reversed(core.events) if event.HasField("decision")}
    for record, event in zip(core.records, core.events, strict=True):
        entry = Entry(record.sequence_number, record.envelope, record.chain_hash, event.event_id, "", decided_by.get(event.event_id, 0))
        await log.append(head, [entry], event.recorded_at.ToMilliseconds(), [])
        head = Head(record.sequence_number, record.chain_hash)
    return log


def place(location: EventLocation | None) -> tuple[int, int, str] | None:
    """Return the values of a location, or None."""
    return None if location is None else (location.sequence_number, location.decision_sequence_number, location.trace_id)


def with_keys(count: int) -> Envelope:
    """Return an observation with so many fact keys of 200 characters."""
    envelope = observation_envelope("order.score", 0.5)
    for number in range(count - 1):
        envelope.observation.extracted_fields[f"order.x{number:0193}"].number_value = 1.0
    return envelope


@pytest.mark.parametrize("remembered", [True, False])
async def test_events_are_found_from_memory_and_from_the_log(remembered: bool) -> None:
    """An event_id is found with its number, first decision and trace, from memory or from the log."""
    core = story()
    recent_events = RecentEvents(await log_of(core))
    if remembered:
        for event in core.events:
            recent_events.add(event)
    proposal = core.events_named("ProposalSubmitted")[0]
    expected = (proposal.sequence_number, proposal.sequence_number + 1, proposal.trace_id)
    assert expected == place(await recent_events.find_location(proposal.event_id, core.now_ms))
    assert (expected if remembered else None) == place(recent_events.location(proposal.event_id))
    assert None is await recent_events.find_location(event_id(999_999), core.now_ms)
    fact = core.events_named("FactRecorded")[0]
    assert (fact.sequence_number, 0, fact.trace_id) == place(await recent_events.find_location(fact.event_id, core.now_ms))


async def test_only_the_first_decision_of_a_proposal_is_its_answer() -> None:
    """A later decision that ends an approval does not replace the answer to its proposal."""
    core = Core(document())
    approval = core.approve()
    core.tick(10_000)
    recent_events = RecentEvents(await log_of(core))
    for event in core.events:
        recent_events.add(event)
    location = recent_events.location(approval.decision.proposal_id)
    assert location is not None
    assert approval.sequence_number == location.decision_sequence_number


async def test_grant_resolves_to_its_approval() -> None:
    """A person's grant of another attempt leads to the approval; any other decision leads to itself."""
    core = Core(document(retry={"max_attempts": 1}))
    approval = core.approve()
    core.report(core.start(approval), FAILED)
    review = core.events[-1]
    grant = core.resolve(review, REVIEW_VERDICT_APPROVE)
    repetition = core.propose(
        [core.observe("order.score", 0.95, evidence=core.tool_result("t2"), trace_id="t2", subject="order/2")], subject="order/2"
    )
    recent_events = RecentEvents(await log_of(core))
    for decision, expected in ((grant, approval), (approval, approval), (review, review), (repetition, repetition)):
        assert expected.event_id == (await recent_events.find_approval(decision, core.now_ms)).event_id


async def test_citable_events() -> None:
    """Facts and observations can be cited, from memory or from the log; other events have nothing to cite."""
    core = story()
    log = await log_of(core)
    recent_events = RecentEvents(log)
    for event in core.events:
        recent_events.add(event)
    expected = {
        event.sequence_number: cited_event(event) for event in core.events if event.HasField("fact") or event.HasField("observation")
    }
    assert expected == recent_events.citable
    numbers = [event.sequence_number for event in core.events]
    fetched = await RecentEvents(log).read_citable([*numbers, 10_000])
    assert numbers == list(fetched)
    assert expected == {number: citation for number, citation in fetched.items() if citation.keys}


async def test_many_keys_are_not_kept() -> None:
    """An observation with many long fact keys is not kept, and is read from the log when it is cited; one with a few is kept."""
    core = Core(document())
    few, many = [core.publish(with_keys(count)) for count in (2, 64)]
    recent_events = RecentEvents(await log_of(core))
    for event in core.events:
        recent_events.add(event)
    assert few.sequence_number in recent_events.citable
    assert many.sequence_number not in recent_events.citable
    assert {many.sequence_number: cited_event(many)} == await recent_events.read_citable([many.sequence_number])


async def test_memory_is_bounded() -> None:
    """The oldest events are dropped first and found in the log; at least half the maximum of event_ids stays in memory."""
    core = story()
    recent_events = RecentEvents(await log_of(core), citable_max=3, locations_max=6)
    for number, event in enumerate(core.events, 1):
        recent_events.add(event)
        remembered = [recent_events.location(noted.event_id) is not None for noted in core.events[:number]]
        count = sum(remembered)
        assert min(number, 3) <= count <= 6
        assert [False] * (number - count) + [True] * count == remembered
    citable = [event.sequence_number for event in core.events if event.HasField("fact") or event.HasField("observation")]
    assert citable[-3:] == list(recent_events.citable)
    assert None is not await recent_events.find_location(core.events[0].event_id, core.now_ms)


async def test_end_of_a_decision() -> None:
    """A decision that is not live is read from the log with the reason of its end."""
    core = Core(document())
    expired, finished, revoked, aborted = [core.approve(f"order/{number}") for number in range(1, 5)]
    core.revoke(revoked)
    core.fact("order.status", "returned", subject="order/4")
    core.refuse_start(aborted)
    core.derive(core.events[-1])
    core.derive(core.report(core.start(finished), SUCCESS))
    core.tick(10_000)
    recent_events = RecentEvents(await log_of(core))
    assert expired == await recent_events.find_event(expired.event_id, core.now_ms)
    reasons = [await recent_events.find_end_reason(decision, core.now_ms) for decision in (expired, finished, revoked, aborted)]
    assert ["EXPIRED", "", "REVOKED", "FACT_SUPERSEDED"] == reasons
    assert None is await recent_events.find_event(event_id(999_999), START_MS)
    assert isinstance(await recent_events.find_event(core.events[0].event_id, core.now_ms), Envelope)
