"""A read that the compiler accepts as guarded never fails for an absent value."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import pytest
from gavel_rules.language.cel.checker import Environment
from gavel_rules.language.cel.vocabulary import BOOL, DOUBLE, STRING, Field, ValueType, condition_scope
from gavel_rules.language.engines.case import Case
from gavel_rules.language.rule_set import CompiledAction

VALUES = {"score": 0.5, "owner": "a", "flag": True}
LEAVES = [f"has(facts.{name})" for name in VALUES] * 2
LEAVES += [
    "facts.score > 0.4",
    "facts.score * 2.0 > 0.4",
    'facts.owner == "a"',
    'facts.owner.startsWith("a")',
    "facts.flag",
    "facts.open",
    "false",
]


def _condition(dice: random.Random, depth: int) -> str:
    if depth == 0 or dice.random() < 0.15:
        return dice.choice(LEAVES)
    left, right = _condition(dice, depth - 1), _condition(dice, depth - 1)
    match dice.randrange(8):
        case 0 | 1 | 2:
            return f"({left} && {right})"
        case 3 | 4 | 5:
            return f"({left} || {right})"
        case 6:
            return f"!{left}" if left.startswith("(") else f"!({left})"
    return f"({left} ? {right} : {_condition(dice, depth - 1)})"


@pytest.mark.long
def test_accepted_conditions_never_err(action: Callable[..., CompiledAction], case: Callable[..., Case]) -> None:
    """Random mixtures of reads and has() that compile give true or false in both engines, whatever is absent."""
    facts = {"score": Field(DOUBLE, required=False), "owner": Field(STRING, required=False), "flag": Field(BOOL, required=False)}
    environment = Environment(condition_scope(ValueType("object"), {**facts, "open": Field(BOOL)}))
    dice = random.Random(20)
    candidates = {_condition(dice, dice.randint(1, 4)) for _ in range(8000)}
    read = [text for text in sorted(candidates) if "facts.score " in text or "facts.owner." in text]
    accepted = [text for text in read if environment.check(text, lambda *_: None) is not None]
    assert len(accepted) > 200
    assert len(read) - len(accepted) > 200
    for start in range(0, len(accepted), 40):
        compiled = action(*accepted[start : start + 40])
        for present in itertools.product([True, False], repeat=3):
            of = case(facts={name: value if there else None for (name, value), there in zip(VALUES.items(), present, strict=True)})
            verdict = compiled.evaluate(of, cross_check=True)
            assert (verdict.error, verdict.disagreement) == ("", None)
            assert compiled.evaluate(of, cross_check=False) == verdict


def test_presence_in_an_element_of_a_list(action: Callable[..., CompiledAction], case: Callable[..., Case]) -> None:
    """has() sees into an element of a list by its index, and guards what is read there."""
    element = {"type": "object", "properties": {"rate": {"type": "integer"}}}
    schema = {"type": "object", "required": ["rows"], "properties": {"rows": {"type": "array", "items": element}}}
    compiled = action("has(params.rows[0].rate) && params.rows[0].rate > 1", params=schema, facts={})
    for row, expected in (({"rate": 2}, True), ({"rate": 1}, False), ({}, False)):
        verdict = compiled.evaluate(case(params={"rows": [row]}, facts={}), cross_check=True)
        assert ("", None, expected) == (verdict.error, verdict.disagreement, bool(verdict.matches))
        assert compiled.evaluate(case(params={"rows": [row]}, facts={}), cross_check=False) == verdict
