"""Expressions of the proxy's configuration: their values, their limits, and hostile data."""

from __future__ import annotations

from typing import Any

import pytest
from gavel_client.mcp.errors import ExpressionError
from gavel_client.mcp.expressions import DATA_LENGTH_MAX, EXPRESSION_LENGTH_MAX, Expression, to_subject
from gavel_server.intake.formats import is_subject
from hypothesis import given
from hypothesis import strategies as st


@pytest.mark.parametrize(
    ("source", "value"),
    [
        ("result.text", "clean"),
        ("result.structured.lines + 1", 3),
        ('result.text.contains("ea") && size(arguments.files) == 2', True),
        ("has(result.json) ? 1.5 : 0.5", 0.5),
    ],
)
def test_values(source: str, value: object) -> None:
    """An expression gives a string, a number or a boolean."""
    values = {"arguments": {"files": ["a", "b"]}, "result": {"text": "clean", "structured": {"lines": 2}}}

    assert value == Expression(source, reads_result=True).scalar(values)


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("arguments.", "Syntax error"),
        ("other.x", "undeclared reference to 'other"),
        ("arguments.files.map(f, f)", "undeclared reference to 'f'"),
        ("arguments.files.exists(f, true)", "undeclared reference to 'f'"),
        ('arguments.text.replace("a", arguments.text)', "replace() is not available here"),
        ("'a' + " * EXPRESSION_LENGTH_MAX + "'a'", "longer than"),
        ('"a\0b"', "holds a NUL"),
    ],
)
def test_refused_expressions(source: str, problem: str) -> None:
    """An expression that is wrong, that loops, or whose result grows does not compile."""
    with pytest.raises(ExpressionError) as refused:
        Expression(source, reads_result=False)

    assert problem in str(refused.value)


@pytest.mark.parametrize(
    "arguments",
    [{}, {"x": None}, {"x": ["a"]}, {"x": {"y": 1}}, {"x": "a\0b"}, {"x": "\ud800"}, {"x": "a" * (DATA_LENGTH_MAX + 1)}],
)
def test_hostile_data(arguments: dict[str, Any]) -> None:
    """An absent value, one that is not a scalar, and data that the library would misread give no value."""
    with pytest.raises(ExpressionError):
        Expression("arguments.x", reads_result=False).scalar({"arguments": arguments})


def test_deep_data() -> None:
    """Data that is nested too deep gives no value, and does not end the process."""
    deep: Any = 1
    for _ in range(100_000):
        deep = [deep]

    with pytest.raises(ExpressionError, match="nested deeper"):
        Expression("1", reads_result=False).scalar({"arguments": {"x": deep}})


@pytest.mark.parametrize(
    ("text", "subject"),
    [
        ("file/src/a b.py", "file/src/a b.py"),
        ("file//etc/hosts", "file/~/etc/hosts"),
        ("file/a~b", "file/a~7eb"),
        ("file/é\n", "file/~c3~a9~0a"),
        ("file/", ""),
        ("File/a", ""),
        ("nothing", ""),
    ],
)
def test_subjects(text: str, subject: str) -> None:
    """A subject is a text with every character encoded that no subject may hold."""
    assert subject == to_subject(text)


@given(st.text(min_size=1, max_size=400), st.text(min_size=1, max_size=400))
def test_subjects_are_valid_and_distinct(first: str, second: str) -> None:
    """Every id gives a subject that the server accepts, and different ids give different subjects."""
    first, second = (text.encode("utf-8", "replace").decode() for text in (first, second))
    subjects = [to_subject(f"file/{text}") for text in (first, second)]

    assert all(map(is_subject, subjects))
    assert (first == second) == (subjects[0] == subjects[1])
