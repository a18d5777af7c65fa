"""Properties of every log, checked on random plays."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import groupby

from gavel.v1.envelope_pb2 import Envelope
from gavel_rules.commands import Command
from gavel_rules.decider import handle
from gavel_rules.events.proposal_view import ProposalView
from gavel_rules.state.keys import duplicate_key
from gavel_rules.state.state import State
from gavel_server.bus.batch.decision import decide_batch
from gavel_server.bus.recent_events import RecentEvents
from gavel_server.bus.request import Request
from gavel_server.log import Record, empty_head
from gavel_server.log.memory import MemoryLog
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.simulation.invariants import holders
from tests.support.citations import references_for
from tests.support.driver import BUS, copy_command
from tests.support.histories.plays import STEPS, Step, command_of, open_bus, play
from tests.unit.rules.state.test_state import rebuild, shuffle_keys

plays = settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


@plays
@given(STEPS)
def test_a_replay_proves_every_log(steps: Sequence[Step]) -> None:
    """A replay of any log succeeds and ends in the live state, as does applying the log's bytes."""
    core = play(steps)
    core.prove()
    assert core.state.digest() == rebuild(core).digest()


@plays
@given(STEPS)
def test_undoing_any_command_leaves_no_trace(steps: Sequence[Step]) -> None:
    """Undoing any command restores the digest, and handling it again gives the same events."""
    core = open_bus(steps)
    for step in steps:
        command = command_of(core, step)
        if command is None:
            continue
        digest, mark = core.state.digest(), core.state.mark()
        tentative = handle(core.state, command, core.references(command), core.now_ms)
        events = [event.SerializeToString() for event in tentative.envelopes]
        core.state.undo(mark)
        assert digest == core.state.digest()
        before = len(core.records)
        core.run(command)
        assert events == [record.envelope for record in core.records[before:]]


@plays
@given(STEPS, st.integers(0, 2**32))
def test_undoing_many_commands_at_once(steps: Sequence[Step], seed: int) -> None:
    """Undoing the rest of a log restores the digest, whatever the order of the keys."""
    core = play(steps)
    state = State(BUS)
    split = random.Random(seed).randrange(len(core.records))
    for record in core.records[:split]:
        state.apply(Envelope.FromString(record.envelope))
    digest, mark = state.digest(), state.mark()
    for record in core.records[split:]:
        state.apply(Envelope.FromString(record.envelope))
    assert core.state.digest() == state.digest()
    state.undo(mark)
    assert digest == state.digest()
    state.store.decisions = shuffle_keys(state.decisions, random.Random(seed))
    evidence = shuffle_keys(state.store.evidence, random.Random(seed))
    state.store.evidence.clear()
    state.store.evidence.update(evidence)
    assert digest == state.digest()


@plays
@given(STEPS, st.integers(0, 2**32))
def test_batches_do_not_matter(steps: Sequence[Step], seed: int) -> None:
    """However the commands of one moment are split into batches, the log has the same bytes and hashes."""
    core = play(steps)
    records = _decide_in_batches(core.commands, random.Random(seed))
    assert [record.envelope for record in core.records] == [record.envelope for record in records]
    assert core.records[-1] == records[-1]


def _decide_in_batches(commands: Sequence[tuple[Command, int]], randomness: random.Random) -> list[Record]:
    """Decide commands in batches of random sizes, each within one moment, as the sequencer does."""
    state = State(BUS)
    head = empty_head(BUS)
    lookup = RecentEvents(MemoryLog(BUS, clock=lambda: 0))
    events: dict[str, Envelope] = {}
    records: list[Record] = []
    for now_ms, of_moment in groupby(commands, key=lambda sent: sent[1]):
        queue = [copy_command(command) for command, _ in of_moment]
        while queue:
            size = randomness.randint(1, 6)
            batch, queue = queue[:size], queue[size:]
            pending = [
                Request(command, lambda _: None, "", 0, references=references_for(command, state, lookup.citable, events))
                for command in batch
            ]
            decision = decide_batch(state, lookup, head, pending, now_ms)
            state.commit()
            head = decision.head
            for envelope, entry in zip(decision.envelopes, decision.entries, strict=True):
                lookup.add(envelope)
                events[envelope.event_id] = envelope
                records.append(Record(entry.sequence_number, entry.envelope, entry.chain_hash))
    return records


@plays
@given(STEPS)
def test_laws_of_every_log(steps: Sequence[Step]) -> None:
    """Numbers are gapless; a proposal has one first decision, right after it or when its contest closes; a key has one holder."""
    core = play(steps)
    core.tick()  # the timers that a tick with a limit has left
    assert list(range(1, len(core.events) + 1)) == [event.sequence_number for event in core.events]
    for event in core.events:
        if event.HasField("proposal") and not event.proposal.HasField("contest"):
            answer = core.events[event.sequence_number]
            assert event.event_id == answer.decision.proposal_id
    first_decisions = [event.decision for event in core.events if event.HasField("decision") and not event.decision.previous_decision_id]
    assert len(first_decisions) == len({decision.proposal_id for decision in first_decisions})
    proposed = {event.event_id for event in core.events if event.HasField("proposal")}
    queue = {proposal_id for contest in core.state.contests.values() for proposal_id in contest.candidates}
    assert proposed == queue | {decision.proposal_id for decision in first_decisions}
    of_trace = [
        (event_id, trace_id, same) for trace_id, keys in core.state.open_proposals_by_trace.items() for same, event_id in keys.items()
    ]
    proposals = [core.by_id[event_id] for event_id in queue]
    assert sorted(
        (one.event_id, one.trace_id, duplicate_key(ProposalView(one), core.state.semantics, one.proposal.contest.conflict_key))
        for one in proposals
    ) == sorted(of_trace)
    for contest in core.state.contests.values():
        assert core.state.recorded_at_ms < contest.closes_at_ms
    keys, problems = holders(core.events)
    assert [] == problems
    assert keys == core.state.conflict_keys
