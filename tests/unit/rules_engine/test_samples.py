"""Values to try, and above all texts that regular expressions match."""

from __future__ import annotations

import re

import pytest
from gavel_rules.authoring.cases import WORK_MAX
from gavel_rules.language.constraints import Budget
from gavel_rules.language.sample_hints import Hints, hints_of
from gavel_rules.language.samples import VALUE_SIZE_MAX, Sampler, matching
from gavel_rules.values import size_of


@pytest.mark.parametrize(
    "pattern",
    [
        "^[A-Z]{2}[0-9]{2}[A-Z0-9]{11,30}$",
        r"^\+[1-9]\d{6,14}$",
        "^s3://warehouse-(analytics|audit)/[a-z0-9/_-]+[.]parquet$",
        "a|b+|[^a-z]?c",
        r"^(?:v)?\d+\.\d+(?P<rest>\.\d+)?$",
        "[]x]+?[^]]",
        r"[\d_-]{3,}\s\w*",
        "(DE|FR|(G|U)B)$",
    ],
)
def test_matching_texts_match(pattern: str) -> None:
    """Every text that is offered for a pattern matches it, and there is one."""
    texts = matching(pattern)
    assert texts
    assert [text for text in texts if not re.search(pattern, text)] == []


def test_alternatives_are_each_taken() -> None:
    """Each of the alternatives of a pattern gets a text of its own."""
    assert {"DE", "FR", "GB"} <= set(matching("^(DE|FR|GB)$"))


@pytest.mark.parametrize("pattern", ["(", "[a", "(?=a)b", "a)", "(" * 5_000, "(((a{5000}){5000}){5000}){5000}"])
def test_patterns_that_are_not_understood(pattern: str) -> None:
    """What is no pattern, or more than is understood, gives no text rather than a wrong one or a crash."""
    assert matching(pattern) == []


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"const": 7}, [7]),
        ({"enum": ["EUR", "USD"]}, ["EUR", "USD"]),
        ({"type": "integer", "minimum": 5, "maximum": 6}, [5, 6]),
        ({"type": "string", "minLength": 3, "maxLength": 3}, ["aaa", "baa"]),
        ({"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 2}, [[False, False]]),
        ({"$ref": "#/$defs/size"}, ["S"]),
        ({"anyOf": [{"const": 1}, {"const": "one"}]}, [1, "one"]),
        ({"allOf": [{"type": "object"}], "required": ["a"], "properties": {"a": {"const": 1}}}, [{"a": 1}]),
    ],
)
def test_values_of_a_schema(schema: dict[str, object], expected: list[object]) -> None:
    """The plainest values of a schema come first, in a fixed order."""
    root = {"$defs": {"size": {"enum": ["S"]}}}
    assert Sampler(root, {}, Budget(WORK_MAX)).values(schema, "params.x")[: len(expected)] == expected


def test_hints_name_what_a_condition_compares() -> None:
    """The constants of a comparison belong to what it reads, elements of lists included."""
    from gavel_rules.language.conditions import Environment
    from gavel_rules.language.vocabulary import DOUBLE, STRING, Field, ValueType, condition_scope

    items = ValueType("list", ValueType("object", fields={"price": Field(DOUBLE)}))
    params = ValueType("object", fields={"items": Field(items), "name": Field(STRING)})
    environment = Environment(condition_scope(params, {}))
    tree = environment.tree('params.name.startsWith("x") && params.items.all(item, item.price < 9.5) && size(params.items) < 4')
    hints = hints_of(tree, environment.types)
    assert hints["params.name"] == Hints(("x",), parts=True)
    assert hints["params.items[].price"].constants[:1] == (9.5,)
    assert hints["params.items"].lengths == (4,)


def test_no_value_is_larger_than_a_proposal_might_hold() -> None:
    """A schema may ask for lists of lists without end: what is too large is not made."""
    part: dict[str, object] = {"type": "string"}
    for _ in range(6):
        part = {"type": "array", "minItems": 900, "items": part}
    assert [value for value in Sampler({}, {}, Budget(WORK_MAX)).values(part, "params.rows") if size_of(value) > VALUE_SIZE_MAX] == []


def test_moments_beyond_the_calendar_are_left_out() -> None:
    """A condition may name durations of any length: moments that have no date are not offered."""
    texts = Sampler({}, {"params.at": Hints(("87600000h",), moments=True)}, Budget(WORK_MAX)).values({"type": "string"}, "params.at")
    assert "2026-01-05T12:00:00Z" in texts
