"""JSON values: conversion between protobuf and Python, and limits."""

from __future__ import annotations

import math
from typing import Any

import pytest
from gavel_rules.limits import TEXT_BYTES_MAX, VIOLATIONS_MAX
from gavel_rules.values import (
    INTEGER_MAX,
    VALUE_DEPTH_MAX,
    problems,
    python_to_value,
    struct_problems,
    struct_to_dict,
    value_problems,
    value_to_python,
)
from google.protobuf.struct_pb2 import Struct, Value
from hypothesis import given
from hypothesis import strategies as st

TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.floats(allow_nan=False), TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(TEXTS, inner, max_size=4)),
    max_leaves=12,
)


@given(VALUES)
def test_the_order_of_names_is_settled(value: object) -> None:
    """Equal values are equal texts, in whatever order their names were set: a replay reads them in another one."""
    assert repr(value_to_python(python_to_value(value))) == repr(value_to_python(python_to_value(_reversed(value))))


def _reversed(value: object) -> object:
    if isinstance(value, list):
        return [_reversed(item) for item in value]
    return {name: _reversed(value[name]) for name in reversed(list(value))} if isinstance(value, dict) else value


@given(VALUES)
def test_values_round_trip(value: object) -> None:
    """Every JSON value is unchanged after conversion to protobuf and back, empty lists and maps included."""
    assert value_to_python(python_to_value(value)) == value


def test_struct() -> None:
    """A Struct becomes a dict, a Value without a kind null; other Python values raise TypeError."""
    struct = Struct()
    struct.update({"a": [1, {"b": None}], "c": True})
    assert struct_to_dict(struct) == {"a": [1.0, {"b": None}], "c": True}
    assert value_to_python(Value()) is None
    with pytest.raises(TypeError):
        python_to_value({1, 2})


def _nested(depth: int) -> Any:
    value: object = "x"
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("x" * TEXT_BYTES_MAX, []),
        ("x" * (TEXT_BYTES_MAX + 1), ["p"]),
        ("é" * (TEXT_BYTES_MAX // 2), []),
        ("é" * (TEXT_BYTES_MAX // 2) + "x", ["p"]),
        ("😀" * (TEXT_BYTES_MAX // 4) + "x", ["p"]),
        ("a\0b", ["p"]),
        ("\ud800", ["p"]),
        ({"a\0": 1.0}, ["p"]),
        ({"a": {"b\0": "\0"}}, ["p.a", "p.a.b\0"]),
        ([1.0, "\0"], ["p[1]"]),
        (float("nan"), ["p"]),
        (float("inf"), ["p"]),
        (float("-inf"), ["p"]),
        (float(INTEGER_MAX), []),
        (float(INTEGER_MAX + 2), ["p"]),
        (-float(INTEGER_MAX + 2), ["p"]),
        (1e300, ["p"]),
        (0.1, []),
        (True, []),
        (None, []),
        (_nested(VALUE_DEPTH_MAX), []),
        (_nested(VALUE_DEPTH_MAX + 1), ["p" + "[0]" * VALUE_DEPTH_MAX]),
    ],
)
def test_problems(value: Any, expected: list[str]) -> None:
    """A value at a limit has no problem; one beyond it is reported with its path."""
    assert [path for path, _ in problems(value, "p")] == expected


@given(
    st.dictionaries(
        st.sampled_from(["a", "b\0", "c"]),
        st.sampled_from([None, True, 1.0, math.inf, 2.0**60, "x", "\0", ["\0", 1.0], {"k\0": math.nan}, _nested(VALUE_DEPTH_MAX)]),
    )
)
def test_problems_of_structs_equal_those_of_dicts(value: dict[str, object]) -> None:
    """A Struct has the problems of its dict, in the same order."""
    struct = python_to_value(value).struct_value
    assert problems(struct_to_dict(struct), "p") == struct_problems(struct, "p")


def test_values_without_a_kind() -> None:
    """A Value without a kind is a problem at every depth; null is none."""
    holder = Struct(fields={"a": Value(), "b": python_to_value(None)})
    holder.fields["c"].list_value.values.extend([python_to_value(None), Value(), Value(struct_value=Struct(fields={"d": Value()}))])
    problem = "has no kind; null is null_value"
    assert [("p.a", problem), ("p.c[1]", problem), ("p.c[2].d", problem)] == struct_problems(holder, "p")
    assert [("p", problem)] == value_problems(Value(), "p")
    assert [] == value_problems(python_to_value({"a": [None, {"b": None}]}), "p")
    many = Value()
    many.list_value.values.extend([Value()] * (VIOLATIONS_MAX + 1))
    assert VIOLATIONS_MAX == len(value_problems(many, "p"))


def test_problems_of_messages() -> None:
    """Structs and Values have the same limits; a Struct counts as one level of depth."""
    struct = Struct()
    struct.update({"deep": _nested(VALUE_DEPTH_MAX - 1), "name": "a\0b", "amount": float("nan")})
    assert sorted(struct_problems(struct, "params")) == [
        ("params.amount", "is not a finite number"),
        ("params.name", "holds a NUL character"),
    ]
    struct.update({"deep": _nested(VALUE_DEPTH_MAX)})
    assert len(struct_problems(struct, "params")) == 3
    assert value_problems(python_to_value("\0"), "value") == [("value", "holds a NUL character")]
