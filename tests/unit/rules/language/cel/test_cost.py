"""The worst cost of an evaluation is limited when a document is compiled, by declared sizes and by the limits of messages."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from gavel_rules.language.cel.checker import CheckedExpression, Environment
from gavel_rules.language.cel.cost import ACTION_STEPS_MAX, EXPRESSION_STEPS_MAX
from gavel_rules.language.cel.library import FUNCTIONS
from gavel_rules.language.cel.pattern_cost import measure_pattern
from gavel_rules.language.cel.vocabulary import STRING, Field, condition_scope
from gavel_rules.language.document.params_schema import compile_schema
from gavel_rules.language.rule_set import DocumentError, compile_rule_set
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.rules.conftest import rule_set_data

Codes = Callable[..., list[str]]


def schema(items: int | None = None, length: int | None = None, count: int | None = None) -> dict[str, Any]:
    """Params with lists and texts of declared sizes; None declares none. The texts of `texts` are of the length too."""
    text: dict[str, Any] = {"type": "string"} if length is None else {"type": "string", "maxLength": length}
    items_schema: dict[str, Any] = {"type": "array"} if items is None else {"type": "array", "maxItems": items}
    labels: dict[str, Any] = {"type": "object", "additionalProperties": text}
    properties = {
        "numbers": {**items_schema, "items": {"type": "integer"}},
        "texts": {**items_schema, "items": text},
        "rows": {**items_schema, "items": {**items_schema, "items": {"type": "integer"}}},
        "mixed": {**items_schema, "items": {}},
        "note": text,
        "other": text,
        "labels": labels if count is None else {**labels, "maxProperties": count},
        "code": {"type": "string", "pattern": "^[A-Z]{2}[0-9]{2,10}$"},
        "kind": {"enum": ["a", "bcd"]},
    }
    return {"type": "object", "required": sorted(properties), "properties": properties}


def check(text: str, **sizes: int | None) -> tuple[CheckedExpression | None, list[tuple[str, str]]]:
    """Return the checked expression, None if it is refused, and (code, suggestion) of each diagnostic."""
    diagnostics: list[tuple[str, str]] = []
    params = compile_schema(schema(**sizes), lambda *_: None)
    assert params is not None
    environment = Environment(condition_scope(params.type, {"status": Field(STRING)}))
    return environment.check(text, lambda _, code, __, hint: diagnostics.append((code, hint))), diagnostics


@pytest.mark.parametrize(
    ("condition", "count", "accepted"),
    [
        ("params.labels.all(k, params.labels[k] != '')", 9_999, True),
        ("params.labels.all(k, params.labels[k] != '')", 10_000, False),
        ("params.labels.all(k, params.labels[k] != '')", None, False),
        ("params.labels.exists(k, params.labels.exists(other, other != k))", 99, True),
        ("params.labels.exists(k, params.labels.exists(other, other != k))", 100, False),
        ("params.labels.exists_one(k, k == 'a')", None, False),
    ],
)
def test_macros_over_maps_keep_below_the_limit(condition: str, count: int | None, accepted: bool) -> None:
    """A macro over a map may not reach the limit of elements: keys have no order, and the order would decide."""
    checked, diagnostics = check(condition, items=1, length=10, count=count)
    assert (accepted, [] if accepted else ["hidden-input"]) == (checked is not None, [code for code, _ in diagnostics])
    assert accepted or count is not None or "maxProperties for params.labels" in diagnostics[0][1]


def test_macros_over_untyped_values() -> None:
    """A macro over an untyped value may not reach that limit either; a macro over texts may, in order."""
    inner = "exists(k, k == 'a')"
    checked, diagnostics = check(f"params.mixed.exists(one, one.{inner})", items=1, length=10)
    assert (None, ["hidden-input"]) == (checked, [code for code, _ in diagnostics])
    assert check(f"params.texts.{inner}", items=20_000, length=10)[0] is not None


@pytest.mark.parametrize(
    "condition",
    [
        "params.numbers.map(n, n).size() > 1",
        "params.numbers.filter(n, n > 1).size() > 1",
        "params.texts.map(t, params.note + params.note).size() > 1",
        "params.texts.map(t, params.texts + params.texts).size() > 1",
        "params.texts.map(t, params.note.reverse()).size() > 1",
        "params.texts.all(t, params.note.matches('^a+$'))",
        "params.numbers.all(n, params.note.contains('ab'))",
        "params.numbers.all(n, params.numbers == params.numbers)",
        "params.numbers.all(n, !(7 in params.numbers))",
        "params.numbers.all(n, size(params.note) > 3)",
        "params.numbers.all(n, params.note.split(',').size() > 1)",
        "params.numbers.all(n, params.numbers.map(m, m + n).size() > 1)",
        "params.rows.all(row, row.map(n, n).size() > 1)",
        "params.labels.all(k, params.note.contains(k))",
        "params.note.contains(params.other)",
        "params.note.indexOf(params.other) > 3",
        "params.note.split('').map(c, c).size() > 1",
        "params.note.matches('a.{1000}c')",
        "params.note.matches('(a?){1000}(a?){1000}c')",
        "params.note.matches('^[ab]*a[ab]{30}c')",
        "facts.status.matches('order.{20}paid')",
        "[params.note].map(a, " + " + ".join("a" * 16) + ").map(b, " + " + ".join("b" * 16) + ").size() == 1",
        "(params.kind == 'a' ? params.texts : ['x']).map(t, t).size() > 1",
        "(params.numbers + params.numbers).map(n, n).size() > 1",
    ],
)
def test_hostile_expressions_are_refused(condition: str) -> None:
    """An expression that could take seconds or gigabytes with the largest message is refused unless bounds are declared."""
    checked, diagnostics = check(condition)
    assert (None, ["too-costly"]) == (checked, [code for code, _ in diagnostics])


@pytest.mark.parametrize(
    "condition",
    [
        "params.texts.exists(t, t == 'x')",
        "params.texts.exists(t, t in ['x', 'y', params.kind])",
        "params.texts.all(t, t.contains('x') || t.startsWith('y') || t.size() > 3)",
        "params.texts.all(t, t.lowerAscii() == t)",
        "params.rows.all(row, row.all(n, n > 0))",
        "params.rows.exists(row, row == [1, 2])",
        "params.numbers.all(n, n > 0 && n < 100)",
        "'x' in params.texts",
        "params.numbers.size() > 3 && params.numbers[0] == 1",
        "params.note + params.other != params.note && params.note.trim() == params.note",
        "params.note.contains('x') && params.note.indexOf('yz') > 3",
        "params.note.matches('^[a-z]+$') && facts.status.matches('[0-9]{3}-[0-9]{2}')",
        "facts.status.matches('^[A-Z]{2}[0-9]{2}[A-Z0-9]{11,30}$')",
        "facts.status.substring(0, 12).matches('[A-Z]{4}[0-9]{12}')",
        "params.note.matches('[0-9]{4}[ -]?[0-9]{4}[ -]?[0-9]{4}[ -]?[0-9]{4}')",
        "facts.status.matches('[A-Za-z0-9._%+-]+@[A-Za-z0-9.-]+[.][A-Za-z]{2,10}')",
        "facts.status.matches('[A-Z]{4}[0-9]{12}$')",
        "params.code.matches('[A-Z]{2}[0-9]{2}[0-9 -]*1234567890')",
        "params.kind.split('').map(c, c + c).size() > 1",
        "subject.id.matches('[a-z0-9]+-[0-9]{8}-[0-9]{4}')",
    ],
)
def test_plain_expressions_need_no_bounds(condition: str) -> None:
    """An expression that reads each part of a message about once is accepted without declared bounds."""
    checked, diagnostics = check(condition)
    assert [] == diagnostics
    assert checked is not None
    assert 0 < checked.steps <= EXPRESSION_STEPS_MAX


@pytest.mark.parametrize(
    ("condition", "size", "most"),
    [
        ("params.numbers.map(n, n).size() > 1", "items", 631),
        ("params.texts.exists(t, params.note.contains(t))", "items", 550),
        ("params.note.matches('[a-z]{4}.[0-9]{12}')", "length", 10_921),
        ("params.note.matches('a.{1000}c')", "length", 124),
    ],
)
def test_declared_sizes_bound_the_cost(condition: str, size: str, most: int) -> None:
    """An expression is accepted up to some declared size, and refused above it."""
    others = {"items": 10, "length": 1_000, "count": 10}
    low, high = 1, 100_000
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if check(condition, **{**others, size: middle})[0] is not None else (low, middle - 1)
    assert most == low
    assert ["too-costly"] == [code for code, _ in check(condition, **{**others, size: low + 1})[1]]


@pytest.mark.parametrize(
    ("condition", "hint"),
    [
        ("params.numbers.map(n, n).size() > 1", "declare maxItems for params.numbers"),
        ("params.note.contains(params.other)", "declare maxLength for params.note, maxLength for params.other"),
        ("params.texts.map(t, t).size() > 1", "declare maxItems for params.texts, maxLength for the elements of params.texts"),
        ("facts.status.matches('a.{900}')", "declare max_length for facts.status"),
    ],
)
def test_suggestions_name_the_bounds(condition: str, hint: str) -> None:
    """The suggestion names the bounds that the schema could declare, and something else if it declares all."""
    assert [("too-costly", hint)] == check(condition)[1]


def test_refusal_is_placed_at_the_most_costly_part() -> None:
    """A refusal is placed at the most costly part, not at the beginning of the expression."""
    when = "params.amount > 1.0 && facts.status.matches('a.{900}')"
    with pytest.raises(DocumentError) as failure:
        compile_rule_set(json.dumps(rule_set_data([when])))
    ((message),) = failure.value.messages
    line = json.dumps(rule_set_data([when]))
    assert line.index(".matches(") + len(".matches") + 1 == message.column


def test_an_action_has_a_budget_of_its_own(codes: Codes) -> None:
    """Expressions within the limit are refused if those of the action together pass its limit."""
    costly = "params.many.exists(t, t in {})".format([f"{number}" for number in range(10)]).replace('"', "'")
    assert [] == codes(*[f"has(params.many) && {costly}"])
    number = next(count for count in range(2, 100) if codes(*[f"has(params.many) && {costly}"] * count))
    assert ["too-costly"] == codes(*[f"has(params.many) && {costly}"] * number)
    assert number > ACTION_STEPS_MAX // EXPRESSION_STEPS_MAX


def test_patterns_must_be_literals(codes: Codes) -> None:
    """A pattern from a message is refused, because its cost has no bound; a pattern in a document's variable is accepted."""
    assert ["not-supported"] == codes("params.name.matches(facts.status)")
    assert ["not-supported"] == codes("params.name.matches('^' + params.name)")
    assert ["unknown-function"] == codes("params.name.matches()")


def test_every_function_has_a_cost() -> None:
    """Every function of the language has a cost of its own."""
    now = "".join(f" && now.{name}() >= 0" for name in FUNCTIONS if name.startswith("get"))
    functions = (
        "size('a') > 0 && 'a'.startsWith('a') && 'a'.endsWith('a') && 'a'.contains('a') && 'a'.matches('a') && 'A'.lowerAscii() == 'a'"
        " && 'a'.upperAscii() == 'A' && 'a'.trim() == 'a' && 'a'.charAt(0) == 'a' && 'a'.indexOf('a') == 0 && 'a'.lastIndexOf('a') == 0"
        " && 'a'.indexOf('a', 0) == 0 && 'a'.substring(0, 1) == 'a' && 'a'.substring(0) == 'a' && 'a,a'.split(',', 1) == ['a,a']"
        " && 'a'.split(',') == ['a'] && 'a'.reverse() == 'a' && timestamp('2020-01-01T00:00:00Z') < now && duration('1s') > duration('0s')"
        " && int('1') == 1 && uint(1) == 1u && double(1) == 1.0 && string(1) == '1' && bytes('a') == b'a' && bool('true') && type(1) == int"
        " && dyn(1) == 1 && has(Facts.status) && [1].all(x, x == 1) && [1].exists(x, x == 1) && [1].exists_one(x, x == 1)"
        " && [1].map(x, x) == [1] && [1].map(x, x > 0, x) == [1] && [1].filter(x, x > 0) == [1] && {'a': -1}['a'] + 2 - 1 * 1 / 1 % 1 == 0"
    ) + now
    assert [] == [name for name in FUNCTIONS if f"{name}(" not in functions]
    # The library nests no deeper than 32 levels: one part at a time.
    for part in functions.replace("has(Facts.status)", "has({'a': 1}.a)").split(" && "):
        condition, diagnostics = check(part)
        assert ([], True) == (diagnostics, condition is not None), part


@given(st.text(alphabet=r"ab.^$*+?()[]{}|\-,019iQEpLmx:<>P", max_size=40), st.integers(0, 70_000))
def test_any_pattern_can_be_measured(pattern: str, size: int) -> None:
    """Every pattern has a cost, which never falls with longer texts or with a longer pattern."""
    cost = measure_pattern(pattern)
    assert 0 < cost.steps(size, 1) <= cost.steps(size + 1, 1)
    assert 0 <= cost.head.positions <= cost.whole.positions


@pytest.mark.parametrize(
    ("pattern", "states"),
    [
        ("abc", 3),
        ("a*b", 1),
        ("a?b?c", 3),
        ("[0-9]{3}-[0-9]{4}", 8),
        ("abab$", 5),
        (r"\d+\.", 2),
        ("a[ab]{3}c", 16),
        ("a[ab]{20}c", None),
        ("a{300}", None),
        ("x" * 300, None),
        ("(ab)+", None),
        ("a|b", None),
        ("a+?b", None),
        ("a.c", None),
        ("a[^b]c", None),
        ("aéc", None),
        (r"a\bc", None),
        ("(?i)abc", None),
    ],
)
def test_states_of_plain_rows(pattern: str, states: int | None) -> None:
    """The automaton is built for a plain row of characters, up to a limit, and for no other pattern."""
    assert states == measure_pattern(pattern).states


@given(st.lists(st.tuples(st.sampled_from(["a", "b", "[ab]", "[bc]"]), st.sampled_from(["", "?", "*", "+", "{2}", "{1,3}"])), max_size=6))
def test_an_automaton_never_costs_more_than_none(parts: list[tuple[str, str]]) -> None:
    """A known automaton never raises the cost of a search."""
    cost = measure_pattern("".join(map("".join, parts)))
    assert cost.steps(70_000, 1) <= cost._replace(states=None).steps(70_000, 1)


@pytest.mark.parametrize(
    ("pattern", "readers", "head", "longest"),
    [
        ("abc", 3, None, None),
        ("a{10}", 10, None, None),
        ("(ab{3}){4}", 16, None, None),
        ("[a-z]{2,5}", 5, None, None),
        ("a|^b", 2, None, None),
        ("^a|b", 2, None, None),
        ("(?m)^a", 1, None, None),
        ("^*a", 1, None, None),
        ("^abc$", 3, 3, 3),
        ("^(ab|c){2}$", 6, 6, 6),
        (r"^a\$", 2, 2, None),
        ("^ab*c$", 3, 1, None),
        ("^a(bc*)d$", 4, 1, None),
        ("^a{3,}$", 4, 0, None),
        (r"^\Qa+*\E$", 3, 3, 3),
        ("^.$", 3, 3, 1),
    ],
)
def test_measures(pattern: str, readers: int, head: int | None, longest: int | None) -> None:
    """Repetitions are expanded; only an anchored pattern has a head, and only one anchored at both ends has a longest match."""
    cost = measure_pattern(pattern)
    assert (readers, head, longest) == (cost.whole.readers, cost.head.readers if cost.anchored else None, cost.longest)


@pytest.mark.parametrize("count", ["{9999999999}", "{1,9999999999}", "{9999999999,}", "{" + "9" * 5_000 + "}"])
def test_great_counts_take_no_memory(count: str) -> None:
    """A repetition with a count beyond what the library accepts is measured at once, as a costly one."""
    tracemalloc.start()
    pattern = measure_pattern(f"a{count}")
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 32 * 1024 * 1024
    assert (None, True) == (pattern.states, pattern.steps(65_536, 1) > 50_000_000)
