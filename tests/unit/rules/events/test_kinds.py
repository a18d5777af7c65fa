"""Fact keys of events."""

from __future__ import annotations

from gavel.v1.envelope_pb2 import Envelope
from gavel_rules.events.kinds import fact_keys

from tests.support.driver import fact_envelope, observation_envelope


def test_fact_keys() -> None:
    """A fact has one key, an observation the sorted keys of its fields, other events none."""
    observation = observation_envelope("b", 1)
    observation.observation.extracted_fields["a"].number_value = 2
    assert [("k",), ("a", "b"), ()] == [fact_keys(envelope) for envelope in (fact_envelope("k", 1), observation, Envelope())]
