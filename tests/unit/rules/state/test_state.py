"""The state: applying a log, undoing it, and the digest."""

from __future__ import annotations

import random
from typing import Any

import pytest
from gavel.v1.envelope_pb2 import Envelope
from gavel_rules.commands import BeginExecution, Command, EventAnswer, PublishEvent, SubmitProposal, Tick
from gavel_rules.decider import handle
from gavel_rules.events.proposal_view import ProposalView
from gavel_rules.state.records import APPROVED, AWAITING_FACTS, EXECUTING, UNDER_REVIEW
from gavel_rules.state.state import State
from gavel_server.services.reads.views import pending_decision

from tests.support.driver import BUS, EXECUTOR, PARTIAL, SUCCESS, Core, document, fact_envelope, observation_envelope, proposal_envelope
from tests.support.histories.story import story


def rebuild(core: Core) -> State:
    """Return the state that the log alone gives."""
    state = State(BUS)
    for record in core.records:
        state.apply(Envelope.FromString(record.envelope))
        state.commit()
    return state


def shuffle_keys(value: Any, randomness: random.Random) -> Any:
    """Return a value with the keys of all its dicts in another order."""
    if isinstance(value, dict):
        keys = list(value)
        randomness.shuffle(keys)
        return {key: shuffle_keys(value[key], randomness) for key in keys}
    return value


def test_applying_the_log_gives_the_living_state() -> None:
    """A state rebuilt from the stored bytes equals the live one."""
    assert story().state.digest() == rebuild(story()).digest()


def test_every_prefix_of_the_log_has_a_digest_of_its_own() -> None:
    """No two prefixes of a log have the same digest."""
    state = State(BUS)
    digests = {state.digest()}
    for record in story().records:
        state.apply(Envelope.FromString(record.envelope))
        state.commit()
        digests.add(state.digest())
    assert len(story().records) + 1 == len(digests)


def test_undo_restores_each_mark() -> None:
    """Undoing to each mark, latest first, restores the digest of that mark."""
    state = State(BUS)
    marks = []
    for record in story().records:
        marks.append((state.mark(), state.digest()))
        state.apply(Envelope.FromString(record.envelope))
    for mark, digest in reversed(marks):
        state.undo(mark)
        assert digest == state.digest()


def test_undo_of_a_whole_log() -> None:
    """Undoing to a mark at the start removes the whole log, which can then be applied again."""
    state = State(BUS)
    empty = state.digest()
    mark = state.mark()
    for record in story().records:
        state.apply(Envelope.FromString(record.envelope))
    state.undo(mark)
    assert empty == state.digest()
    for record in story().records:
        state.apply(Envelope.FromString(record.envelope))
    assert story().state.digest() == state.digest()


@pytest.mark.parametrize("seed", range(3))
def test_the_order_of_keys_does_not_matter(seed: int) -> None:
    """The digest does not depend on the order of keys, which undoing may change."""
    state = rebuild(story())
    randomness = random.Random(seed)
    store = state.store
    names = "evidence decisions decisions_by_subject conflict_keys reviews traces tool_calls active_rule_sets rule_sets"
    for table in (*(getattr(store, name) for name in names.split()), store.tool_result_tables.tool_results):
        shuffled = shuffle_keys(table, randomness)
        table.clear()
        table.update(shuffled)
    assert story().state.digest() == state.digest()


def incomplete_commands(core: Core) -> list[Command]:
    """Return commands whose envelopes the decider completes."""
    approval = core.approve()
    attempt = core.start(approval)
    return [
        PublishEvent(core.admit(fact_envelope("k.value", 1))),
        PublishEvent(core.admit(observation_envelope("k.value", 1, evidence=core.tool_result()))),
        SubmitProposal(ProposalView(core.admit(proposal_envelope(trace_id="t9")))),
        core.report_command(attempt, SUCCESS),
    ]


@pytest.mark.parametrize("index", range(4))
def test_an_undone_command_can_be_decided_again_later(index: int) -> None:
    """An undone command can be handled again: its events have the new time and number only."""
    core, control = Core(document()), Core(document())
    command, control_command = incomplete_commands(core)[index], incomplete_commands(control)[index]
    references = core.references(command)
    mark, digest = core.state.mark(), core.state.digest()
    assert handle(core.state, command, references, core.now_ms).envelopes
    core.state.undo(mark)
    assert digest == core.state.digest()
    for bus in (core, control):
        bus.pass_time(777)
        bus.fact("k.other", 1, trace_id="another-server")
    assert isinstance(core.run(command), EventAnswer)
    assert isinstance(control.run(control_command), EventAnswer)
    assert [record.envelope for record in control.records] == [record.envelope for record in core.records]
    core.prove()


def test_commit_forgets_how_to_undo() -> None:
    """Committed changes cannot be undone."""
    state = rebuild(story())
    digest = state.digest()
    state.commit()
    state.undo(0)
    assert digest == state.digest()


# Reading


def test_phases_of_a_decision() -> None:
    """A decision is approved, executing, awaiting facts, then removed; or under review."""
    core = Core(document())
    approval = core.approve()

    def phase() -> int:
        return core.state.decisions[approval.event_id].phase

    assert APPROVED == phase()
    attempt = core.start(approval)
    assert EXECUTING == phase()
    report = core.report(attempt, SUCCESS)
    assert AWAITING_FACTS == phase()
    core.derive(report)
    assert approval.event_id not in core.state.decisions
    partial = core.approve("order/2")
    core.report(core.start(partial), PARTIAL)
    assert UNDER_REVIEW == core.state.decisions[partial.event_id].phase


def test_pending_decisions_and_reviews_come_oldest_first() -> None:
    """Pending decisions and reviews are listed in the order of the log."""
    core = Core(document(retry={"max_attempts": 1}))
    approvals = [core.approve(f"order/{number}", trace_id=f"t{number}") for number in (3, 1, 2)]
    assert [approval.event_id for approval in approvals] == [live.decision_id for live in core.state.pending_decisions()]
    for approval in reversed(approvals):
        core.report(core.start(approval), PARTIAL)
    reviewed = [review.approved_decision_id for review in core.state.pending_reviews()]
    assert [approval.event_id for approval in reversed(approvals)] == reviewed


def test_waiting_approvals_stay_packed() -> None:
    """An approval and its proposal stay serialized, also after a read, until an attempt starts."""
    core = Core(document())
    approval = core.approve()
    live = core.state.decisions[approval.event_id]
    before = core.state.digest()
    assert approval.decision.proposal_id == pending_decision(live).proposal_id
    assert live.stored_decision.is_packed
    assert live.stored_proposal.is_packed
    assert approval == live.stored_decision.read()
    assert core.by_id[approval.decision.proposal_id] == live.stored_proposal.read()
    assert before == core.state.digest()
    core.start(approval)
    assert not core.state.decisions[approval.event_id].stored_decision.is_packed


def test_several_decisions_of_one_subject() -> None:
    """A subject may have several live decisions with different keys; each is listed until it ends."""
    core = Core(document(conflict_key="string(params.amount)"))
    first, second = core.approve(amount=1, trace_id="a"), core.approve(amount=2, trace_id="b")
    of_subject = core.state.decisions_by_subject["order/1"]
    assert [first.event_id, second.event_id] == list(of_subject)
    third = core.approve(amount=3, trace_id="c")
    # Changed in place: a copy of many thousands for each approval would hold up every caller.
    assert of_subject is core.state.decisions_by_subject["order/1"]
    assert [first.event_id, second.event_id, third.event_id] == list(of_subject)
    core.tick(10_000)
    assert {} == core.state.decisions_by_subject
    core.prove()


def test_next_timer() -> None:
    """The next timer is the earliest one, and is due at its millisecond."""
    core = Core(document())
    assert None is core.state.next_timer_ms()
    core.approve()
    due_ms = core.now_ms + 10_000
    assert due_ms == core.state.next_timer_ms()
    assert (None, 0) == (core.state.next_due(due_ms - 1), core.state.due_count(due_ms - 1))
    assert 1 == core.state.due_count(due_ms)


def test_refused_command_leaves_the_state_unchanged() -> None:
    """A fault or a refused start changes nothing except by timers."""
    core = Core(document())
    approval = core.approve()
    core.start(approval, lease_ms=60_000)
    digest = core.state.digest()
    for command in (BeginExecution(approval.event_id, EXECUTOR, 1_000), Tick(10), core.proposal(projection_version=10_000)):
        handle(core.state, command, now_ms=core.now_ms)
        assert digest == core.state.digest()
