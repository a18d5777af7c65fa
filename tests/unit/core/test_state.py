"""The state: undone without a trace, rebuilt by applying, compared by a digest that no order of keys can change."""

from __future__ import annotations

import random
from typing import Any

import pytest
from gavel.v1.envelope_pb2 import Envelope
from gavel_rules.commands import BeginExecution, Command, PublishEvent, Recorded, SubmitProposal, Tick
from gavel_rules.decider import handle
from gavel_rules.projection import State
from gavel_rules.records import APPROVED, AWAITING_FACTS, EXECUTING, UNDER_REVIEW
from gavel_server.views import pending_decision

from tests.unit.core.driver import (
    BUS,
    EXECUTOR,
    PARTIAL,
    SUCCESS,
    Core,
    document,
    fact_envelope,
    observation_envelope,
    proposal_envelope,
)
from tests.unit.core.story import told


def rebuilt(core: Core) -> State:
    """The state as the log alone makes it."""
    state = State(BUS)
    for record in core.records:
        state.apply(Envelope.FromString(record.envelope))
        state.commit()
    return state


def shuffled(value: Any, randomness: random.Random) -> Any:
    """The same dicts with their keys in another order."""
    if isinstance(value, dict):
        keys = list(value)
        randomness.shuffle(keys)
        return {key: shuffled(value[key], randomness) for key in keys}
    return value


def test_applying_the_log_gives_the_living_state() -> None:
    """A state rebuilt from the stored bytes equals the one that decided."""
    assert told().state.digest() == rebuilt(told()).digest()


def test_every_prefix_of_the_log_has_a_digest_of_its_own() -> None:
    """States that differ have digests that differ: no two prefixes of a log have the same."""
    state = State(BUS)
    digests = {state.digest()}
    for record in told().records:
        state.apply(Envelope.FromString(record.envelope))
        state.commit()
        digests.add(state.digest())
    assert len(told().records) + 1 == len(digests)


def test_undoing_takes_back_event_by_event() -> None:
    """Undoing to each of many marks, latest first, passes through the same digests backwards."""
    state = State(BUS)
    marks = []
    for record in told().records:
        marks.append((state.mark(), state.digest()))
        state.apply(Envelope.FromString(record.envelope))
    for mark, digest in reversed(marks):
        state.undo(mark)
        assert digest == state.digest()


def test_undoing_all_at_once() -> None:
    """One mark at the start takes back a whole log, and the state can go through it again."""
    state = State(BUS)
    empty = state.digest()
    mark = state.mark()
    for record in told().records:
        state.apply(Envelope.FromString(record.envelope))
    state.undo(mark)
    assert empty == state.digest()
    for record in told().records:
        state.apply(Envelope.FromString(record.envelope))
    assert told().state.digest() == state.digest()


@pytest.mark.parametrize("seed", range(3))
def test_the_order_of_keys_does_not_matter(seed: int) -> None:
    """A digest is of the content: dicts filled in another order, as undoing may leave them, have the same."""
    state = rebuilt(told())
    randomness = random.Random(seed)
    tables = "evidence decisions decisions_of_subject holds reviews traces tool_calls tool_results active rule_sets"
    for name in tables.split():
        setattr(state, name, shuffled(getattr(state, name), randomness))
    assert told().state.digest() == state.digest()


def commands_that_fill_in(core: Core) -> list[Command]:
    """Commands whose envelopes the decider completes."""
    approval = core.approve()
    started = core.start(approval)
    return [
        PublishEvent(core.admitted(fact_envelope("k.value", 1))),
        PublishEvent(core.admitted(observation_envelope("k.value", 1, evidence=core.tool_result()))),
        SubmitProposal(core.admitted(proposal_envelope(trace_id="t9"))),
        core.reporting(started, SUCCESS),
    ]


@pytest.mark.parametrize("index", range(4))
def test_an_undone_command_can_be_decided_again_later(index: int) -> None:
    """After a failed append the same command is decided anew: its events carry the new time and number, and nothing of the first try."""
    core, control = Core(document()), Core(document())
    command, same = commands_that_fill_in(core)[index], commands_that_fill_in(control)[index]
    references = core.references(command)
    mark, digest = core.state.mark(), core.state.digest()
    assert handle(core.state, command, references, core.now_ms).events
    core.state.undo(mark)
    assert digest == core.state.digest()
    for bus in (core, control):
        bus.pass_time(777)
        bus.fact("k.other", 1, trace_id="another-server")
    assert isinstance(core.run(command), Recorded)
    assert isinstance(control.run(same), Recorded)
    assert [record.envelope for record in control.records] == [record.envelope for record in core.records]
    core.prove()


def test_commit_forgets_how_to_undo() -> None:
    """What is in the log cannot be undone."""
    state = rebuilt(told())
    digest = state.digest()
    state.commit()
    state.undo(0)
    assert digest == state.digest()


# Reading


def test_phases_of_a_decision() -> None:
    """A decision is approved, executing, awaiting facts, and gone; or under review."""
    core = Core(document())
    approval = core.approve()

    def phase() -> int:
        return core.state.decisions[approval.event_id].phase

    assert APPROVED == phase()
    started = core.start(approval)
    assert EXECUTING == phase()
    report = core.report(started, SUCCESS)
    assert AWAITING_FACTS == phase()
    core.derive(report)
    assert approval.event_id not in core.state.decisions
    half_done = core.approve("order/2")
    core.report(core.start(half_done), PARTIAL)
    assert UNDER_REVIEW == core.state.decisions[half_done.event_id].phase


def test_pending_decisions_and_reviews_come_oldest_first() -> None:
    """Lists of what is pending are in the order of the log."""
    core = Core(document(retry={"max_attempts": 1}))
    approvals = [core.approve(f"order/{number}", trace_id=f"t{number}") for number in (3, 1, 2)]
    assert [approval.event_id for approval in approvals] == [live.decision_id for live in core.state.pending_decisions()]
    for approval in reversed(approvals):
        core.report(core.start(approval), PARTIAL)
    reviewed = [review.approved_decision_id for review in core.state.pending_reviews()]
    assert [approval.event_id for approval in reversed(approvals)] == reviewed


def test_what_waits_is_kept_as_bytes() -> None:
    """An approval and its proposal wait as the log's bytes, also while somebody looks at them, until their work begins."""
    core = Core(document())
    approval = core.approve()
    waiting = core.state.decisions[approval.event_id]
    before = core.state.digest()
    assert approval.decision.proposal_id == pending_decision(waiting).proposal_id
    assert waiting.kept_decision.packed
    assert waiting.kept_proposal.packed
    assert approval == waiting.kept_decision.read()
    assert core.by_id[approval.decision.proposal_id] == waiting.kept_proposal.read()
    assert before == core.state.digest()
    core.start(approval)
    assert not core.state.decisions[approval.event_id].kept_decision.packed


def test_several_decisions_of_one_subject() -> None:
    """A subject may have several live decisions under different keys; each is listed until it ends."""
    core = Core(document(conflict_key="string(params.amount)"))
    first, second = core.approve(amount=1, trace_id="a"), core.approve(amount=2, trace_id="b")
    assert (first.event_id, second.event_id) == core.state.decisions_of_subject["order/1"]
    core.tick(10_000)
    assert {} == core.state.decisions_of_subject
    core.prove()


def test_next_timer() -> None:
    """The next timer is the earliest, and due from its very millisecond on."""
    core = Core(document())
    assert None is core.state.next_timer_ms()
    core.approve()
    due_ms = core.now_ms + 10_000
    assert due_ms == core.state.next_timer_ms()
    assert (None, 0) == (core.state.next_due(due_ms - 1), core.state.due_count(due_ms - 1))
    assert 1 == core.state.due_count(due_ms)


def test_a_refused_command_leaves_the_state_as_it_was() -> None:
    """A fault and a start that is not allowed change nothing but what timers say."""
    core = Core(document())
    approval = core.approve()
    core.start(approval, lease_ms=60_000)
    digest = core.state.digest()
    for command in (BeginExecution(approval.event_id, EXECUTOR, 1_000), Tick(10), core.proposal(projection_version=10_000)):
        handle(core.state, command, now_ms=core.now_ms)
        assert digest == core.state.digest()
