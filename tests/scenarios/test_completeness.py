"""The scenario files cover every reason code of Gavel's own and every gate of the minimum (constitution §11)."""

from __future__ import annotations

from collections.abc import Iterator

from gavel_rules import reason_codes
from pydantic import BaseModel

from tests.scenarios.reader import load_scenarios
from tests.scenarios.steps import AppendedEvent, DecisionExpectation, StartExpectation

SCENARIOS_MIN = 60


def test_number_of_scenarios() -> None:
    """There are at least sixty scenarios."""
    assert len(load_scenarios()) >= SCENARIOS_MIN


def test_every_reason_code_has_a_scenario() -> None:
    """Every code of Gavel's own is expected by a scenario.

    NOT_JUDGED is the exception: only a bug causes it, so tests of the core break an engine instead.
    """
    expected = {code for scenario in load_scenarios() for step in scenario.steps for code in _codes(step)}
    assert set(reason_codes.RESERVED_CODES) - {reason_codes.NOT_JUDGED} == expected & reason_codes.RESERVED_CODES


def test_every_gate_has_a_scenario() -> None:
    """Each of the five gates has at least one scenario."""
    assert {1, 2, 3, 4, 5} == {scenario.gate for scenario in load_scenarios() if scenario.gate}


def test_sentences_are_unique() -> None:
    """No two scenarios have the same sentence."""
    sentences = [scenario.must for scenario in load_scenarios()]
    assert sorted(set(sentences)) == sorted(sentences)


def _codes(part: BaseModel) -> Iterator[str]:
    """Yield every reason code that a step expects."""
    if isinstance(part, DecisionExpectation | AppendedEvent) and part.reason_code:
        yield part.reason_code
    if isinstance(part, StartExpectation) and part.refused:
        yield part.refused
    for name in type(part).model_fields:
        value = getattr(part, name)
        for inner in value if isinstance(value, list) else [value]:
            if isinstance(inner, BaseModel):
                yield from _codes(inner)
