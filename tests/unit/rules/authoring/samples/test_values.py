"""Sample values of schemas, and texts that match regular expressions."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from gavel_rules.authoring.samples.budget import Budget
from gavel_rules.authoring.samples.cases import WORK_MAX
from gavel_rules.authoring.samples.hints import Hints, collect_hints
from gavel_rules.authoring.samples.patterns import matching_texts
from gavel_rules.authoring.samples.text_forms import texts_of_forms
from gavel_rules.authoring.samples.values import VALUE_SIZE_MAX, Sampler
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
    """There is a text for the pattern, and every text matches it."""
    texts = matching_texts(pattern)
    assert texts
    assert [text for text in texts if not re.search(pattern, text)] == []


def test_each_alternative_has_a_text() -> None:
    """Each alternative of a pattern has a text."""
    assert {"DE", "FR", "GB"} <= set(matching_texts("^(DE|FR|GB)$"))


def test_spans_beyond_the_calendar() -> None:
    """A duration that no time can be shifted by gives no time, and the others still give theirs."""
    longest = f"{timedelta.max // timedelta(hours=1)}h"
    times = list(texts_of_forms({"timestamp"}, [longest, "36h"]))
    assert "2026-01-17T00:00:00Z" in times
    assert times == list(texts_of_forms({"timestamp"}, ["36h"]))


@pytest.mark.parametrize("pattern", ["(", "[a", "(?=a)b", "a)", "(" * 5_000, "(((a{5000}){5000}){5000}){5000}"])
def test_unsupported_patterns(pattern: str) -> None:
    """An invalid or unsupported pattern gives no text."""
    assert matching_texts(pattern) == []


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
    """The constants of a comparison become hints for the paths that it reads, elements of lists included."""
    from gavel_rules.language.cel.checker import Environment
    from gavel_rules.language.cel.vocabulary import DOUBLE, STRING, Field, ValueType, condition_scope

    items = ValueType("list", ValueType("object", fields={"price": Field(DOUBLE)}))
    params = ValueType("object", fields={"items": Field(items), "name": Field(STRING)})
    environment = Environment(condition_scope(params, {}))
    tree = environment.tree('params.name.startsWith("x") && params.items.all(item, item.price < 9.5) && size(params.items) < 4')
    hints = collect_hints(tree, environment.types)
    assert hints["params.name"] == Hints(("x",), beyond_equality=True)
    assert hints["params.items[].price"].constants[:1] == (9.5,)
    assert hints["params.items"].lengths == (4,)


def test_large_values_are_left_out() -> None:
    """No sample exceeds the largest size, even if the schema wants long lists of long lists."""
    part: dict[str, object] = {"type": "string"}
    for _ in range(6):
        part = {"type": "array", "minItems": 900, "items": part}
    assert [value for value in Sampler({}, {}, Budget(WORK_MAX)).values(part, "params.rows") if size_of(value) > VALUE_SIZE_MAX] == []


def test_times_beyond_the_calendar_are_left_out() -> None:
    """A duration that leads beyond the calendar gives no sample."""
    texts = Sampler({}, {"params.at": Hints(("87600000h",), forms=frozenset(["timestamp"]))}, Budget(WORK_MAX)).values(
        {"type": "string"}, "params.at"
    )
    assert "2026-01-15T12:00:00Z" in texts
