"""Memory beside the evidence: counts of candidates, ids of tool calls, and versions of traces."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from gavel.v1.common_pb2 import VersionBinding
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.tool_pb2 import ToolCall
from gavel_rules.commands import EventAnswer, UpgradeBus
from gavel_rules.limits import TRACE_VERSIONS_MAX
from gavel_rules.state.versions import TraceVersions
from hypothesis import HealthCheck, given, settings

from tests.support.driver import Core
from tests.support.histories.plays import STEPS, Step, open_bus, play, take


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(STEPS)
def test_counts_and_ids_follow_from_the_other_tables(steps: Sequence[Step]) -> None:
    """After any log, candidates are counted by their tool results, readings exist only for those, and call ids name their traces."""
    assert_counts_follow(play(steps))


@pytest.mark.long
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(STEPS, STEPS)
def test_counts_and_ids_follow_after_an_upgrade(before: Sequence[Step], after: Sequence[Step]) -> None:
    """After any log of version 2, an upgrade to version 3 and further events, the same holds."""
    core = open_bus(before, 2)
    take(core, before)
    answer = core.run(UpgradeBus(core.new_id(), 2, 3, "ada", "counts"))
    assert isinstance(answer, EventAnswer), answer
    assert_counts_follow(core)
    take(core, after)
    assert_counts_follow(core)


def assert_counts_follow(core: Core) -> None:
    """Assert that candidates are counted by their tool results, and so on."""
    store = core.state.store
    candidates = [one for keys in store.evidence.values() for row in keys.values() for one in row]
    tables = store.tool_result_tables
    remembered = {event_id for results in tables.tool_results.values() for event_id in results}
    outliving = {event_id: result for event_id, result in tables.outliving_results.changes.items() if result.candidate_count}
    counts = Counter(one.evidence_ref for one in candidates if one.evidence_ref in remembered or one.evidence_ref in outliving)
    assert counts == {**tables.candidate_counts, **{event_id: result.candidate_count for event_id, result in outliving.items()}}
    assert tables.readings.keys() == remembered
    assert outliving.keys().isdisjoint(remembered)
    assert {name: trace_id for trace_id, calls in store.tool_calls.items() for name in calls} == store.trace_of_execution


@pytest.mark.parametrize("count", [1, TRACE_VERSIONS_MAX, TRACE_VERSIONS_MAX + 5])
def test_the_last_versions_of_a_trace_are_remembered(count: int) -> None:
    """Of each kind the last TRACE_VERSIONS_MAX different ones are remembered; the bound versions never change."""
    versions = TraceVersions(1)
    for number in range(count + 1):
        call = ToolCall(tool_name="t", request_schema_hash=f"sha256:{number:064x}")
        binding = VersionBinding(planner_version=str(number))
        for repeated in range(2):
            envelope = Envelope(sequence_number=2 * number + repeated + 1, version_binding=binding, tool_call=call)
            versions = versions.with_event(envelope, "tool_call")
    assert [("planner_version", "0", 1)] == [tuple(bound) for bound in versions.bound]
    assert min(count, TRACE_VERSIONS_MAX) == len(versions.mismatches)
    assert str(count) == versions.mismatches[-1].version
    assert min(count + 1, TRACE_VERSIONS_MAX) == len(versions.tools)
