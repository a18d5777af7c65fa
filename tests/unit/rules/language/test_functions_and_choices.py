"""String functions, choices and broken schemas: lowered, left to guards, or refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import pytest
from gavel_rules.language.engines.case import Case
from gavel_rules.language.engines.lowering import GUARD
from gavel_rules.language.rule_set import CompiledAction, DocumentError, compile_rule_set

from tests.unit.rules.conftest import PARAMS, rule_set_data

Action = Callable[..., CompiledAction]
Cases = Callable[..., Case]
Outcome = Callable[..., bool | str]


@pytest.mark.parametrize(
    "condition",
    [
        'params.name.lowerAscii() == "äbc d"',
        'params.name.upperAscii() == "äBC D"',
        'params.name.trim() == params.name && (" " + params.name).trim() == params.name',
        'params.name.charAt(1) == "b" && params.name.indexOf("B") == 1 || params.name.charAt(1) == "B"',
        'params.name.lastIndexOf("D") == 4',
        'params.name.substring(1, 3) == "BC"',
        'params.name.split(" ") == ["äBC", "D"]',
        'params.name.reverse() == "D CBä"',
    ],
)
def test_string_functions(outcome: Outcome, condition: str) -> None:
    """CEL's string functions whose results do not grow are guards, and both engines agree on them."""
    assert outcome(condition, {"name": "äBC D"}) is True
    assert outcome(f"!({condition})", {"name": "äBC D"}) is False


def test_substring_up_to_the_end(outcome: Outcome) -> None:
    """The library fails if an end equals the length of the text, as docs/rule-language.md says; without an end it does not."""
    assert outcome('params.name.substring(1, 3) == "BC"', {"name": "ABC"}) == "r0"
    assert outcome('params.name.substring(1) == "BC"', {"name": "ABC"}) is True


@pytest.mark.parametrize("function", ['replace("a", params.name)', "format([1])"])
def test_functions_that_may_grow_are_refused(codes: Callable[..., list[str]], function: str) -> None:
    """Functions that could build gigabytes from two texts are refused by name."""
    assert ["not-supported"] == codes(f'params.name.{function} == "b"')
    assert ["not-supported"] == codes('[params.name].join(params.name) == "b"')


@pytest.mark.parametrize(
    "condition",
    [
        "params.urgent ? params.amount > 5 : params.count > 5",
        "(params.urgent ? params.amount > 5 : params.count > 5) && facts.open",
        "has(params.limit) ? params.amount <= params.limit : params.amount <= 100",
        "params.urgent ? facts.open : params.count == 1 ? true : params.count == 2",
        "params.urgent ? (facts.open ? params.count == 0 : params.count == 1) : params.count == 2",
        '!(params.urgent ? facts.status == "a:b?" : facts.status in ["x", "y"])',
        "has(facts.flag) && (facts.flag ? params.urgent : !params.urgent)",
    ],
)
def test_choices_are_lowered(action: Action, case: Cases, condition: str) -> None:
    """A choice between conditions is lowered without a guard, and both engines agree on all its outcomes."""
    compiled = action(condition)
    atoms = [atom for conjunction in compiled._checked.lowered[0].formula for atom in conjunction]
    assert [] == [atom for atom in atoms if atom.left.kind == GUARD]
    params = ("urgent", (True, False)), ("count", (0, 1, 2, 7)), ("limit", (None, 5.0, 20.0))
    facts = ("open", (True, False)), ("flag", (None, True, False)), ("status", ("a:b?", "x"))
    assert {True, False} == {decided(compiled, of) for of in combined(case, params, facts)}


@pytest.mark.parametrize(
    "condition",
    [
        'params.urgent ? params.name.startsWith("b") : params.count > 5',
        '(params.name == "a" ? params.count : 7) == 3',
        'params.name.matches("^(a|b)?$") ? params.urgent : facts.open',
        "params.urgent ? {'a': true}[params.name] : [1, 2].exists(x, x == params.count)",
    ],
)
def test_choices_with_guards(action: Action, case: Cases, condition: str) -> None:
    """Both engines agree on a choice that needs CEL, errors included."""
    params = ("urgent", (True, False)), ("count", (1, 3, 7)), ("name", ("a", "b", "z"))
    compiled = action(condition)
    assert {True, False} <= {decided(compiled, of) for of in combined(case, params, ())}


Choices = tuple[tuple[str, tuple[Any, ...]], ...]


def combined(case: Cases, params: Choices, facts: Choices) -> Iterator[Case]:
    """A case for every combination of values."""
    names = [name for name, _ in (*params, *facts)]
    for values in product(*(values for _, values in (*params, *facts))):
        yield case(
            dict(zip(names[: len(params)], values, strict=False)), dict(zip(names[len(params) :], values[len(params) :], strict=True))
        )


def decided(compiled: CompiledAction, of: Case) -> bool | str:
    """Whether the only rule matches, in every mode alike, or that it fails."""
    verdicts = {compiled.evaluate(of, cross_check=True), compiled.evaluate(of, cross_check=False), compiled.evaluate_reference(of)}
    (verdict,) = verdicts
    assert verdict.disagreement is None
    return verdict.error or bool(verdict.matches)


def mistakes(params: dict[str, Any], *conditions: str) -> list[tuple[str, str]]:
    """Return (code, message) of every mistake of an action with this schema and these conditions."""
    try:
        compile_rule_set(json.dumps(rule_set_data(conditions, params=params)))
    except DocumentError as error:
        return [(message.code, message.message.partition(",")[0]) for message in error.messages]
    return []


def test_a_broken_schema_does_not_hide_mistakes_in_conditions() -> None:
    """The readable properties of a broken schema are enough to report unknown names and wrong types in the same run."""
    params = {**PARAMS, "properties": {**PARAMS["properties"], "amount": {"type": "number", "exclusiveMinimun": 0}}}
    actual = mistakes(params, "params.amont > 1", "params.name > 1", "params.note == 'x'", "params.tags.size() > 1 || params.open == 1")
    assert [
        "schema-keyword",
        "type-error",
        "unguarded-optional",
        "unguarded-optional",
        "unguarded-optional",
        "unknown-name",
    ] == sorted(code for code, _ in actual)
    assert ("unknown-name", "params has no field amont") in actual


def test_unreadable_properties_cause_no_mistakes_in_conditions() -> None:
    """If the properties cannot be read, or a type is broken, conditions on them are not reported."""
    schema = {**PARAMS, "properties": {**PARAMS["properties"], "amount": {"type": "numbr"}}}
    assert ["schema-invalid"] == [code for code, _ in mistakes(schema, "params.amount > 1", "params.amount", "params.amount * 2 > 1")]
    unreadable = {"type": "object", "propertis": PARAMS["properties"]}
    assert ["schema-keyword"] == [code for code, _ in mistakes(unreadable, "params.anything > 1", "params.some.thing")]
