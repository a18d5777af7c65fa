"""Counters kept event by event, against counting the whole log again: over random histories both give the same."""

from __future__ import annotations

import pytest
from gavel.v1 import execution_pb2, fact_pb2
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.counted_plays import AMOUNTS, CUSTOMERS, PAUSES_MS, STATUSES, VERDICTS, WINDOW_MS, WITH, Step, compare, play
from tests.support.driver import Core

STEP = st.one_of(
    st.tuples(st.just("propose"), st.sampled_from(CUSTOMERS), st.sampled_from(AMOUNTS)),
    st.tuples(st.just("report"), st.integers(0, 30), st.sampled_from(STATUSES)),
    st.tuples(st.just("undo"), st.integers(0, 30), st.sampled_from(STATUSES)),
    st.tuples(st.just("start"), st.integers(0, 30), st.none()),
    st.tuples(st.just("late"), st.integers(0, 30), st.sampled_from(STATUSES)),
    st.tuples(st.just("resolve"), st.integers(0, 30), st.sampled_from(VERDICTS)),
    st.tuples(st.just("revoke"), st.integers(0, 30), st.none()),
    st.tuples(st.just("pass"), st.sampled_from(PAUSES_MS), st.none()),
    st.tuples(st.just("reactivate"), st.integers(0, 1), st.none()),
)


@pytest.mark.long
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(STEP, max_size=40))
def test_counters_are_those_of_a_recount(steps: list[Step]) -> None:
    """After every step of a random history, each counter gives in each group what counting the whole log again gives."""
    core = Core(WITH[0])
    for number, step in enumerate(steps):
        play(core, step, number)
        compare(core)


@pytest.mark.long
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(STEP, min_size=20, max_size=80))
def test_longer_histories(steps: list[Step]) -> None:
    """Longer random histories agree with the recount at their end, and are proved by a replay."""
    core = Core(WITH[0])
    for number, step in enumerate(steps):
        play(core, step, number)
    compare(core)
    core.prove()


def test_a_compensation_withdraws_what_a_grant_settled() -> None:
    """If the attempt that a person granted is done in part, and undone, nothing of the approval counts any more."""
    core = Core(WITH[0])
    steps: list[Step] = [
        ("propose", "ann", 7.25),
        ("report", 0, execution_pb2.EXECUTION_STATUS_FAILED),
        ("pass", WINDOW_MS // 2, None),
        ("resolve", 0, fact_pb2.REVIEW_VERDICT_APPROVE),
        ("report", 0, execution_pb2.EXECUTION_STATUS_PARTIAL),
    ]
    for number, step in enumerate(steps):
        play(core, step, number)
    (reserved,) = [table for table in core.state.counters.values() if table.counter.name == "reserved"]
    assert reserved.entries
    play(core, ("undo", 0, execution_pb2.EXECUTION_STATUS_SUCCESS), len(steps))
    assert not reserved.entries
    compare(core)
    core.prove()
