"""Drift reports of parts of a log: merged in order they are the report of the log."""

from __future__ import annotations

import pytest
from gavel.v1.envelope_pb2 import Envelope
from gavel_rules.replay import DriftReport
from gavel_rules.state.state import State

from tests.support.driver import BUS
from tests.support.histories.story import play_story

RECORDS = play_story().records


@pytest.mark.parametrize("cut", [0, 1, len(RECORDS) // 2, len(RECORDS)])
def test_merged_reports(cut: int) -> None:
    """Wherever a log is cut, the merged reports have the same drifts, with the same numbers of events."""
    whole, first, second = DriftReport(), DriftReport(), DriftReport()
    state = State(BUS)
    for record in RECORDS:
        state.apply(Envelope.FromString(record.envelope))
        for report in (whole, first if record.sequence_number <= cut else second):
            report.note(Envelope.FromString(record.envelope), state)
    first.merge(second.content)
    assert whole.content == first.content
    assert whole.drifts(State(BUS)) == first.drifts(State(BUS))
    assert any(whole.content)
