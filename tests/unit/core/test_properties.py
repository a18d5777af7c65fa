"""What must hold whatever happens on a bus, in any order: properties of random plays."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import groupby

from gavel.v1.envelope_pb2 import Envelope
from gavel_rules.commands import Command
from gavel_rules.decider import handle
from gavel_rules.fingerprint import fingerprint
from gavel_rules.projection import State
from gavel_rules.proposed import Proposed
from gavel_server.bus.lookup import Lookup
from gavel_server.bus.planning import Pending, plan
from gavel_server.log import Record, empty_head
from gavel_server.log.memory import MemoryLog
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.simulation.invariants import holders
from tests.unit.core.citing import references_for
from tests.unit.core.driver import BUS, copied
from tests.unit.core.plays import STEPS, Step, command_of, opened, play
from tests.unit.core.test_state import rebuilt, shuffled

plays = settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


@plays
@given(STEPS)
def test_a_replay_proves_every_log(steps: Sequence[Step]) -> None:
    """A replay of any log proves it, and ends in the state that lived; so does applying the log's bytes."""
    core = play(steps)
    core.prove()
    assert core.state.digest() == rebuilt(core).digest()


@plays
@given(STEPS)
def test_undoing_any_command_leaves_no_trace(steps: Sequence[Step]) -> None:
    """Whatever a command does, undoing it restores the digest, and deciding it again gives the same events."""
    core = opened(steps)
    for step in steps:
        command = command_of(core, step)
        if command is None:
            continue
        digest, mark = core.state.digest(), core.state.mark()
        tentative = handle(core.state, command, core.references(command), core.now_ms)
        made = [event.SerializeToString() for event in tentative.events]
        core.state.undo(mark)
        assert digest == core.state.digest()
        before = len(core.records)
        core.run(command)
        assert made == [record.envelope for record in core.records[before:]]


@plays
@given(STEPS, st.integers(0, 2**32))
def test_undoing_many_commands_at_once(steps: Sequence[Step], seed: int) -> None:
    """A state that went through the rest of a log and back is the one before, whatever the order of its keys by then."""
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
    state.decisions = shuffled(state.decisions, random.Random(seed))
    state.evidence = shuffled(state.evidence, random.Random(seed))
    assert digest == state.digest()


@plays
@given(STEPS, st.integers(0, 2**32))
def test_batches_do_not_matter(steps: Sequence[Step], seed: int) -> None:
    """However commands of one moment are cut into batches, the log comes out the same, byte for byte and hash for hash."""
    core = play(steps)
    records = _decided_in_batches(core.commands, random.Random(seed))
    assert [record.envelope for record in core.records] == [record.envelope for record in records]
    assert core.records[-1] == records[-1]


def _decided_in_batches(commands: Sequence[tuple[Command, int]], randomness: random.Random) -> list[Record]:
    """Decide commands in batches of random sizes that do not reach beyond a moment, as the sequencer would."""
    state = State(BUS)
    head = empty_head(BUS)
    lookup = Lookup(MemoryLog(BUS, clock=lambda: 0))
    events: dict[str, Envelope] = {}
    records: list[Record] = []
    for now_ms, of_moment in groupby(commands, key=lambda sent: sent[1]):
        waiting = [copied(command) for command, _ in of_moment]
        while waiting:
            size = randomness.randint(1, 6)
            batch, waiting = waiting[:size], waiting[size:]
            pending = [
                Pending(command, lambda _: None, "", 0, references=references_for(command, state, lookup.cited, events))
                for command in batch
            ]
            decided = plan(state, lookup, head, pending, now_ms)
            state.commit()
            head = decided.head
            for envelope, entry in zip(decided.envelopes, decided.entries, strict=True):
                lookup.note(envelope)
                events[envelope.event_id] = envelope
                records.append(Record(entry.sequence_number, entry.envelope, entry.chain_hash))
    return records


@plays
@given(STEPS)
def test_laws_of_every_log(steps: Sequence[Step]) -> None:
    """Numbers are gapless; every proposal has one first decision, right after it or when its contest closes; a key has one holder."""
    core = play(steps)
    assert list(range(1, len(core.events) + 1)) == [event.sequence_number for event in core.events]
    for event in core.events:
        if event.HasField("proposal") and not event.proposal.HasField("contest"):
            answer = core.events[event.sequence_number]
            assert event.event_id == answer.decision.proposal_id
    firsts = [event.decision for event in core.events if event.HasField("decision") and not event.decision.previous_decision_id]
    assert len(firsts) == len({decision.proposal_id for decision in firsts})
    proposed = {event.event_id for event in core.events if event.HasField("proposal")}
    waiting = {proposal_id for contest in core.state.contests.values() for proposal_id in contest.candidates}
    assert proposed == waiting | {decision.proposal_id for decision in firsts}
    of_trace = [(event_id, trace_id, same) for trace_id, held in core.state.waiting_of_trace.items() for same, event_id in held.items()]
    proposals = [core.by_id[event_id] for event_id in waiting]
    assert sorted(
        (one.event_id, one.trace_id, f"{fingerprint(Proposed(one))} {one.proposal.contest.conflict_key}") for one in proposals
    ) == sorted(of_trace)
    for contest in core.state.contests.values():
        assert core.state.recorded_at_ms < contest.closes_at_ms
    held, problems = holders(core.events)
    assert [] == problems
    assert held == core.state.holds
