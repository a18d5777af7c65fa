"""What is remembered of the recent past, and what is read from the log beyond that."""

from __future__ import annotations

import pytest
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.fact_pb2 import REVIEW_VERDICT_APPROVE
from gavel_rules.evidence import cited
from gavel_server.bus.lookup import Known, Lookup
from gavel_server.log import Entry, Head, empty_head
from gavel_server.log.memory import MemoryLog

from tests.unit.core.driver import BUS, FAILED, START_MS, SUCCESS, Core, document, event_id
from tests.unit.core.story import told


async def log_of(core: Core) -> MemoryLog:
    """A log that holds a bus's events."""
    log = MemoryLog(BUS, lambda: core.now_ms)
    head = empty_head(BUS)
    decided_by = {event.decision.proposal_id: event.sequence_number for event in reversed(core.events) if event.HasField("decision")}
    for record, event in zip(core.records, core.events, strict=True):
        entry = Entry(record.sequence_number, record.envelope, record.chain_hash, event.event_id, "", decided_by.get(event.event_id, 0))
        await log.append(head, [entry], event.recorded_at.ToMilliseconds(), [])
        head = Head(record.sequence_number, record.chain_hash)
    return log


def place(known: Known | None) -> tuple[int, int, str] | None:
    """What is known of an event."""
    return None if known is None else (known.sequence_number, known.decision_sequence_number, known.trace_id)


@pytest.mark.parametrize("remembered", [True, False])
async def test_events_are_found_from_memory_and_from_the_log(remembered: bool) -> None:
    """An event_id is found with its number, its first decision and its trace, whether it is remembered or not."""
    core = told()
    lookup = Lookup(await log_of(core))
    if remembered:
        for event in core.events:
            lookup.note(event)
    proposal = core.named("ProposalSubmitted")[0]
    expected = (proposal.sequence_number, proposal.sequence_number + 1, proposal.trace_id)
    assert expected == place(await lookup.find(proposal.event_id, core.now_ms))
    assert (expected if remembered else None) == place(lookup.known(proposal.event_id))
    assert None is await lookup.find(event_id(999_999), core.now_ms)
    fact = core.named("FactRecorded")[0]
    assert (fact.sequence_number, 0, fact.trace_id) == place(await lookup.find(fact.event_id, core.now_ms))


async def test_only_the_first_decision_of_a_proposal_is_its_answer() -> None:
    """A later decision that ends an approval does not become the answer to its proposal."""
    core = Core(document())
    approval = core.approve()
    core.tick(10_000)
    lookup = Lookup(await log_of(core))
    for event in core.events:
        lookup.note(event)
    known = lookup.known(approval.decision.proposal_id)
    assert known is not None
    assert approval.sequence_number == known.decision_sequence_number


async def test_a_grant_is_about_its_approval() -> None:
    """A person's grant of one more attempt leads to the approval; whatever else was decided is what it is about itself."""
    core = Core(document(retry={"max_attempts": 1}))
    approval = core.approve()
    core.report(core.start(approval), FAILED)
    review = core.events[-1]
    grant = core.resolve(review, REVIEW_VERDICT_APPROVE)
    asked = core.propose(
        [core.observe("order.score", 0.95, evidence=core.tool_result("t2"), trace_id="t2", subject="order/2")], subject="order/2"
    )
    lookup = Lookup(await log_of(core))
    for decision, expected in ((grant, approval), (approval, approval), (review, review), (asked, asked)):
        assert expected.event_id == (await lookup.approval(decision, core.now_ms)).event_id


async def test_what_may_be_cited() -> None:
    """Facts and observations are remembered for citing; what is not remembered is read from the log, and other events cite nothing."""
    core = told()
    log = await log_of(core)
    lookup = Lookup(log)
    for event in core.events:
        lookup.note(event)
    expected = {event.sequence_number: cited(event) for event in core.events if event.HasField("fact") or event.HasField("observation")}
    assert expected == lookup.cited
    numbers = [event.sequence_number for event in core.events]
    fetched = await Lookup(log).fetch_cited([*numbers, 10_000])
    assert numbers == list(fetched)
    assert expected == {number: citation for number, citation in fetched.items() if citation.keys}


async def test_memory_is_bounded() -> None:
    """The oldest are forgotten first, and found in the log; of event_ids half as many as may be are always remembered."""
    core = told()
    lookup = Lookup(await log_of(core), cited_max=3, known_max=6)
    for number, event in enumerate(core.events, 1):
        lookup.note(event)
        remembered = [lookup.known(noted.event_id) is not None for noted in core.events[:number]]
        count = sum(remembered)
        assert min(number, 3) <= count <= 6
        assert [False] * (number - count) + [True] * count == remembered
    citable = [event.sequence_number for event in core.events if event.HasField("fact") or event.HasField("observation")]
    assert citable[-3:] == list(lookup.cited)
    assert None is not await lookup.find(core.events[0].event_id, core.now_ms)


async def test_how_a_decision_ended() -> None:
    """A decision that is not alive any more is read from the log, with how it ended."""
    core = Core(document())
    expired, finished, revoked = core.approve(), core.approve("order/2"), core.approve("order/3")
    core.revoke(revoked)
    core.derive(core.report(core.start(finished), SUCCESS))
    core.tick(10_000)
    lookup = Lookup(await log_of(core))
    assert expired == await lookup.event(expired.event_id, core.now_ms)
    endings = [await lookup.ending(decision, core.now_ms) for decision in (expired, finished, revoked)]
    assert ["EXPIRED", "", "REVOKED"] == endings
    assert None is await lookup.event(event_id(999_999), START_MS)
    assert isinstance(await lookup.event(core.events[0].event_id, core.now_ms), Envelope)
