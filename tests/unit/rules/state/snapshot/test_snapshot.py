"""Snapshots of states: what they restore is the state itself, in every table and in everything that follows."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence

import pytest
from gavel.internal.v1.state_snapshot_pb2 import StateSnapshot
from gavel.v1.common_pb2 import VersionBinding
from gavel.v1.diagnostic_pb2 import AgentDiagnostic, LlmInvocation
from gavel.v1.envelope_pb2 import Envelope
from gavel_rules.commands import DeployGrants
from gavel_rules.decider import handle
from gavel_rules.events.citation import CitedEvent, cited_event
from gavel_rules.identity.grants import compile_grants
from gavel_rules.identity.principal import Principal
from gavel_rules.identity.rights import RIGHTS
from gavel_rules.limits import TRACE_LAPSE_MS
from gavel_rules.state.snapshot.encoding import encode_position, encode_tables, state_sha256
from gavel_rules.state.state import State
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.citations import references_for
from tests.support.driver import AGENT, BUS, SUBJECT, Core, copy_command
from tests.support.hashes import sha256_of
from tests.support.histories.plays import STEPS, Step, play
from tests.support.histories.story import play_story
from tests.support.state.snapshots import page_out, restore, tables
from tests.unit.rules.tools.test_registry import binding, contract, provider, run

ADMIN = Principal("ada", "token", groups=("people",))
GRANTS = {"gavel": "v1", "name": "all", "version": 1, "grants": [{"to": ["*"], "may": [*RIGHTS]}]}


def apply_records(core: Core, count: int) -> State:
    """Return the state after the first events of a bus."""
    state = State(BUS)
    for record in core.records[:count]:
        state.apply(Envelope.FromString(record.envelope)).pack(record.envelope)
        state.commit()
    return state


@pytest.mark.parametrize("count", range(1, len(play_story().records) + 1, 7))
def test_every_table_is_restored(count: int) -> None:
    """After any part of a log with events of all kinds, each table of the restored state equals that of the state."""
    state = apply_records(play_story(), count)
    restored = restore(state)
    assert tables(state) == tables(restored)
    assert state.digest() == restored.digest()
    assert state_sha256(state.store) == state_sha256(restored.store)


def test_grants_and_tools_are_restored() -> None:
    """Grants in force, and contracts, aliases, providers and bindings of tools are part of a snapshot."""
    core = Core()
    core.principal = ADMIN
    text = json.dumps(GRANTS)
    core.run(DeployGrants(core.new_id(), compile_grants(text), text, ""))
    for command in (contract(aliases=["read"]), provider(), binding("workspace"), binding("workspace", "session-1")):
        run(core, command)
    assert core.state.grants_in_force is not None
    restored = restore(core.state)
    assert tables(core.state) == tables(restored)
    assert core.state.digest() == restored.digest()


def test_versions_and_outliving_readings_are_restored() -> None:
    """A snapshot holds the versions, schemas and models of traces, and the readings of a lapsed trace that are evidence."""
    core = Core()
    run(core, contract("fraud-tool"))
    evidence = core.tool_result()
    for value in (0.1, 0.2):
        core.observe("order.score", value, evidence=evidence)
    invocation = LlmInvocation(requested_model="m", llm_model="m", llm_provider="p", prompt_hash=sha256_of("prompt"))
    for version in "12":
        diagnostic = AgentDiagnostic(kind="LlmInvocationCommitted", llm_invocation=invocation)
        binding = VersionBinding(planner_version=version)
        core.publish(Envelope(subject=SUBJECT, trace_id="trace-1", producer=AGENT, version_binding=binding, agent_diagnostic=diagnostic))
    core.pass_time(TRACE_LAPSE_MS + 1)
    core.tool_result("trace-2")
    store = core.state.store
    of_results = store.tool_result_tables
    assert all([of_results.outliving_results.changes, store.trace_of_execution, store.trace_versions, store.answers])
    restored = restore(core.state)
    assert tables(core.state) == tables(restored)
    assert core.state.digest() == restored.digest()


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(STEPS, st.integers(0, 2**32))
def test_the_future_is_the_same(steps: Sequence[Step], choice: int) -> None:
    """From a restored state the rest of any log comes out with the same bytes, and ends in the same state."""
    core = play(steps)
    split = choice % (len(core.commands) + 1)
    check_commands(core, lambda number, state: restore(state) if number == split else state)


@pytest.mark.long
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(STEPS, st.randoms(use_true_random=False))
def test_paging_changes_nothing(steps: Sequence[Step], randomness: random.Random) -> None:
    """A state whose evidence is paged out at any moments, in any part, writes the bytes of one that holds all, also after undoing."""

    def page_out_some(number: int, state: State) -> State:
        if randomness.random() < 0.4:
            page_out(state, lambda: randomness.random() < 0.7)
        return state

    check_commands(play(steps), page_out_some, undoes=True)


def check_commands(core: Core, change: Callable[[int, State], State], *, undoes: bool = False) -> None:
    """Give the commands of a core to another state, which `change` may replace by an equal one before each: all events must be the same.

    `undoes`: each command is first handled, undone, and handled again.
    """
    state = State(BUS)
    known: dict[int, CitedEvent] = {}
    events: dict[str, Envelope] = {}
    written: list[bytes] = []
    for number, (command, now_ms) in enumerate(core.commands):
        before = tables(state)
        state = change(number, state)
        assert before == tables(state)
        if undoes:
            sent, mark = copy_command(command), state.mark()
            handle(state, sent, references_for(sent, state, known, events), now_ms)
            state.undo(mark)
            assert before == tables(state)
        sent = copy_command(command)
        handled = handle(state, sent, references_for(sent, state, known, events), now_ms)
        state.commit()
        for event in handled.events:
            content = event.envelope.SerializeToString(deterministic=True)
            event.pack(content)
            written.append(content)
            events[event.event_id] = event.envelope
            citation = cited_event(event.envelope)
            if citation.keys:
                known[event.sequence_number] = citation
    assert [record.envelope for record in core.records] == written
    assert core.state.digest() == state.digest()
    assert state_sha256(core.state.store) == state_sha256(state.store)


def test_equal_states_have_equal_bytes() -> None:
    """The parts do not depend on how a state came about: evidence that is still packed, and the order of keys."""
    core = play_story()
    restored = restore(core.state)
    restored.evidence_of("order/2")
    assert {} == restored.store.evidence
    assert b"".join(encode_tables(core.state.store)) == b"".join(encode_tables(restored.store))


def test_a_snapshot_is_one_message() -> None:
    """The parts of a snapshot, merged in order, are one StateSnapshot that names its position."""
    state = play_story().state
    merged = StateSnapshot()
    for part in (encode_position(state.store, b"\1" * 32, "first"), *encode_tables(state.store)):
        merged.MergeFromString(part)
    assert (state.head, BUS, b"\1" * 32, "first") == (merged.sequence_number, merged.bus, merged.chain_hash, merged.incarnation)
    assert sorted(state.store.evidence) == [row.subject for row in merged.evidence]
    assert len(state.store.timers) == len(merged.timers)
