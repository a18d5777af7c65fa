"""The regular expressions of schemas: what their searches may cost, and which texts are not searched."""

from __future__ import annotations

from typing import Any

import pytest
from gavel_rules.language.cel.cost import DECISION_STEPS_MAX
from gavel_rules.language.document.fact_schema import compile_fact_schema
from gavel_rules.language.document.params_schema import ParamsSchema, compile_schema
from gavel_rules.limits import MESSAGE_BYTES_MAX, TEXT_BYTES_MAX

# The library takes 26 ms, 197 ms, 0.2 s and 1.1 s to search 64 KiB; then ranges that end in an escape, repetitions of `^`, and `.` that
# reads a carriage return, with 307 ms, 333 ms and 103 ms.
COSTLY = [
    "(a|b)*a(a|b){20}x",
    ".{0,200}foo.{0,200}bar",
    "(a|b)*a(a|b){200}x",
    "1[01]{4000}x",
    "a[ -\\~]{900}\n",
    "a" + "[ab]^{0}" * 900 + "x",
    "\r.{110}\n",
    "1[01]{ 4000 }x",
]
ORDINARY = [
    r"^[A-Z]{3}$",
    r"^[a-z0-9-]{1,64}$",
    r"^[a-z]{1,500}$",
    r"^\S+@\S+\.\S+$",
    r"^[^@\s]+@[^@\s]+\.[^@\s]+$",
    r"^[a-zA-Z0-9._%+-]+@[a-zA-Z0-9.-]+\.[a-zA-Z]{2,}$",
    r"^[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}$",
    r"^sha256:[0-9a-f]{64}$",
    r"^(\d{1,3}\.){3}\d{1,3}$",
    r"^(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?$",
    r"^/([a-z0-9_-]+/)*[a-z0-9_-]+\.(txt|md|csv)$",
    r"^\p{L}[\p{L} '-]{0,100}$",
    r"^[^\x00-\x1f]*$",
    r"\.pdf$",
    r"EUR|USD",
    r"\r\n",
    r"^[^\n]+\n.*$",
    r"^",
]


def compiled(**properties: Any) -> ParamsSchema:
    """Return the compiled schema of params with these properties."""
    mistakes: list[object] = []
    schema = compile_schema({"type": "object", "properties": properties}, lambda *mistake: mistakes.append(mistake))
    assert ([], True) == (mistakes, schema is not None)
    assert schema is not None
    return schema


def steps_of(schema: ParamsSchema) -> int:
    """Return the cost of all patterns of a schema."""
    return sum(cost.steps for cost in schema.pattern_costs)


@pytest.mark.parametrize("pattern", COSTLY)
def test_costly_patterns_need_a_length(pattern: str) -> None:
    """A pattern that takes long on texts of 64 KiB costs more than a decision, and less with a maxLength beside it."""
    assert steps_of(compiled(t={"type": "string", "pattern": pattern})) > DECISION_STEPS_MAX
    assert steps_of(compiled(t={"type": "string", "pattern": pattern, "maxLength": 8})) < DECISION_STEPS_MAX


@pytest.mark.parametrize("pattern", ORDINARY)
def test_ordinary_patterns_need_no_length(pattern: str) -> None:
    """Ordinary patterns stay far below the limit of a decision for texts of any length."""
    assert steps_of(compiled(t={"type": "string", "pattern": pattern})) < DECISION_STEPS_MAX / 8


@pytest.mark.parametrize(
    "pattern",
    [
        r"^[^\s@]{1,64}@[^\s@]+\.[a-z]+$",
        r"^\S{1,100}( \S{1,100})*$",
        r"^Заказ №\d+$",
        "(Größe|Änderung|Öl|Übung)",
        r"^.{0,1000}$",
        r"^[\w -]{1,999}$",
    ],
)
def test_characters_of_several_bytes_do_not_multiply_the_states_kept(pattern: str) -> None:
    """Patterns of characters beyond ASCII whose states fit into the library's cache do not count as building one for each byte."""
    assert steps_of(compiled(t={"type": "string", "pattern": pattern})) < DECISION_STEPS_MAX


def test_the_analysis_is_bounded() -> None:
    """The analysis gives up on a short pattern for which it would copy large states for each of a thousand symbols.

    The pattern has 125 states, and would cost 13 million steps. It counts as one that builds a state for each byte.
    """
    every = "".join(f"\\{chr(code)}" if not chr(code).isalnum() else chr(code) for code in range(32, 127))
    pattern = "(?:$?){500}a{20}" + every + "[é][ü][ß][ñ]"
    assert steps_of(compiled(t={"type": "string", "pattern": pattern})) >= 1_000_000_000


@pytest.mark.parametrize("pattern", [r"(?i)^abc.*$", r"\bword\b", "((a|b)?c){900}", "(|a){2,}" * 40, "a" * 2000])
def test_unknown_patterns_count_as_costly(pattern: str) -> None:
    """A pattern whose syntax is not known, or that is too large to be measured, costs for each byte, so that a maxLength helps."""
    costs = [steps_of(compiled(t={"type": "string", "pattern": pattern, "maxLength": length})) for length in (5, 50, 5_000)]
    assert costs == sorted(costs)
    assert costs[0] < DECISION_STEPS_MAX


@pytest.mark.parametrize(
    ("properties", "path"),
    [
        ({"t": {"patternProperties": {COSTLY[0]: {}}}}, ("properties", "t", "patternProperties", COSTLY[0])),
        ({"t": {"propertyNames": {"pattern": COSTLY[0]}}}, ("properties", "t", "propertyNames", "pattern")),
        ({"t": {"anyOf": [{"pattern": COSTLY[0]}, {}]}}, ("properties", "t", "anyOf", 0, "pattern")),
        ({"t": {"items": {"pattern": COSTLY[0]}}}, ("properties", "t", "items", "pattern")),
        ({"t": {"prefixItems": [{"pattern": COSTLY[0]}]}}, ("properties", "t", "prefixItems", 0, "pattern")),
        ({"s": {"$ref": "#/properties/u/not"}, "u": {"not": {"pattern": COSTLY[0]}}}, ("properties", "s", "$ref", "pattern")),
    ],
)
def test_every_pattern_counts(properties: dict[str, Any], path: tuple[str | int, ...]) -> None:
    """Patterns count wherever they stand in a schema, behind a reference once more."""
    costs = {cost.path: cost.steps for cost in compiled(**properties).pattern_costs}
    assert costs[path] > DECISION_STEPS_MAX
    assert len(costs) == (2 if "s" in properties else 1)


def test_elements_multiply_the_cost() -> None:
    """The pattern of elements counts for as many as maxItems or maxProperties allow, or fit into a message, and for its texts in all."""
    text = {"type": "string", "pattern": "^[a-z]*$"}
    one = steps_of(compiled(t=text))
    few, many = (steps_of(compiled(t={"type": "array", "maxItems": count, "items": text})) for count in (10, 1_000))
    named = steps_of(compiled(t={"type": "object", "maxProperties": 10, "additionalProperties": text}))
    assert one < few < 11 * one
    assert few == named
    assert few < many < DECISION_STEPS_MAX
    assert steps_of(compiled(t={"type": "array", "items": text})) > DECISION_STEPS_MAX
    assert MESSAGE_BYTES_MAX < many < 2 * MESSAGE_BYTES_MAX + 1_000 * TEXT_BYTES_MAX


def test_repeated_evaluations_count() -> None:
    """A pattern that the library searches again for an unevaluated… keyword counts that often."""
    part = {"allOf": [{"properties": {"t": {"type": "string", "pattern": "^[a-z]+$"}}}]}
    once, again = (compiled(u={"type": "object", **part, **more}) for more in ({}, {"unevaluatedProperties": False}))
    assert 3 * steps_of(once) == steps_of(again)


def test_lists_are_searched_beyond_their_limit() -> None:
    """A list that is too long is searched while its violations are listed, which counts for costly patterns."""
    text = {"type": "string", "pattern": COSTLY[0], "maxLength": 10}
    assert steps_of(compiled(t=text)) < DECISION_STEPS_MAX
    assert steps_of(compiled(t={"type": "array", "maxItems": 2, "items": text})) > DECISION_STEPS_MAX


def test_texts_beyond_the_length_are_not_searched() -> None:
    """A pattern is not searched in a text that is longer than the maxLength beside it, unless a log of version 2 is recomputed."""
    beside = {"type": "string", "maxLength": 30, "allOf": [{"minLength": 1}]}
    schema = compiled(t={**beside, "pattern": COSTLY[2]}, u={**beside, "pattern": "^[a-z]*$"})
    long = "ab" * 500
    assert (("/t", "maxLength"), ("/u", "maxLength")) == schema.violations({"t": long, "u": long.upper()})
    assert (("/u", "maxLength"), ("/u", "pattern")) == schema.violations({"u": long.upper()}, searches_long_texts=True)
    assert (("/u", "pattern"),) == schema.violations({"u": "AB"})
    assert (("/t", "pattern"),) == schema.violations({"t": "ab"})
    assert (("/t", "minLength"), ("/t", "pattern")) == schema.violations({"t": ""})


def test_patterns_of_facts_count() -> None:
    """The patterns in the schema of a fact's values have the same costs, with paths in that schema."""
    schema = compile_fact_schema({"type": "object", "properties": {"t": {"pattern": COSTLY[0]}}}, lambda *_: None)
    assert schema is not None
    ((path, steps),) = schema.pattern_costs
    assert (("properties", "t", "pattern"), True) == (path, steps > DECISION_STEPS_MAX)
