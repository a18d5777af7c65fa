"""What the scenario files cover: every reason code of Gavel's own, and every gate of the minimum that must close (seeds 002 §11)."""

from __future__ import annotations

from collections.abc import Iterator

from gavel_rules import reasons
from pydantic import BaseModel

from tests.scenarios.reading import all_scenarios
from tests.scenarios.steps import Appended, OfDecision, OfStart

SCENARIOS_MIN = 60


def test_there_are_enough() -> None:
    """There are at least sixty scenarios."""
    assert len(all_scenarios()) >= SCENARIOS_MIN


def test_every_reason_code_has_a_scenario() -> None:
    """No code that Gavel gives is left without a scenario that expects it, and no other code of Gavel's is expected.

    NOT_JUDGED comes of a bug alone, which no scenario can hold; tests of the core break an engine for it.
    """
    expected = {code for scenario in all_scenarios() for step in scenario.steps for code in _codes(step)}
    assert set(reasons.RESERVED) - {reasons.NOT_JUDGED} == expected & reasons.RESERVED


def test_every_gate_has_a_scenario() -> None:
    """Versions of facts, feedback, the entry, the projection, and derivation are each shown by a scenario at least."""
    assert {1, 2, 3, 4, 5} == {scenario.gate for scenario in all_scenarios() if scenario.gate}


def test_sentences_are_unique() -> None:
    """No two scenarios say that the same must hold."""
    sentences = [scenario.must for scenario in all_scenarios()]
    assert sorted(set(sentences)) == sorted(sentences)


def _codes(part: BaseModel) -> Iterator[str]:
    """Yield every reason code that is expected somewhere in a step."""
    if isinstance(part, OfDecision | Appended) and part.reason_code:
        yield part.reason_code
    if isinstance(part, OfStart) and part.refused:
        yield part.refused
    for name in type(part).model_fields:
        value = getattr(part, name)
        for inner in value if isinstance(value, list) else [value]:
            if isinstance(inner, BaseModel):
                yield from _codes(inner)
