"""What an evaluation may cost at worst is bounded when a document is compiled: by declared sizes, and by what messages hold."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from gavel_rules.language.cel_library import FUNCTIONS
from gavel_rules.language.conditions import Condition, Environment
from gavel_rules.language.cost import ACTION_STEPS_MAX, EXPRESSION_STEPS_MAX
from gavel_rules.language.patterns import measure
from gavel_rules.language.ruleset import DocumentError, compile_rule_set
from gavel_rules.language.schema import compile_schema
from gavel_rules.language.vocabulary import STRING, Field, condition_scope
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.rules_engine.conftest import rule_set_data

Codes = Callable[..., list[str]]


def schema(items: int | None = None, length: int | None = None, count: int | None = None) -> dict[str, Any]:
    """Params with lists and texts of declared sizes; None declares none. The texts of `texts` are of the length too."""
    text: dict[str, Any] = {"type": "string"} if length is None else {"type": "string", "maxLength": length}
    some: dict[str, Any] = {"type": "array"} if items is None else {"type": "array", "maxItems": items}
    labels: dict[str, Any] = {"type": "object", "additionalProperties": text}
    properties = {
        "numbers": {**some, "items": {"type": "integer"}},
        "texts": {**some, "items": text},
        "rows": {**some, "items": {**some, "items": {"type": "integer"}}},
        "mixed": {**some, "items": {}},
        "note": text,
        "other": text,
        "labels": labels if count is None else {**labels, "maxProperties": count},
        "code": {"type": "string", "pattern": "^[A-Z]{2}[0-9]{2,10}$"},
        "kind": {"enum": ["a", "bcd"]},
    }
    return {"type": "object", "required": sorted(properties), "properties": properties}


def check(text: str, **sizes: int | None) -> tuple[Condition | None, list[tuple[str, str]]]:
    """The checked condition, None where it is refused, and (code, suggestion) of everything said of it."""
    said: list[tuple[str, str]] = []
    params = compile_schema(schema(**sizes), lambda *_: None)
    assert params is not None
    environment = Environment(condition_scope(params.type, {"status": Field(STRING)}))
    return environment.check(text, lambda _, code, __, hint: said.append((code, hint))), said


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
    """Keys have no order: over a map no macro may come to the limit of elements, where the order would decide."""
    checked, said = check(condition, items=1, length=10, count=count)
    assert (accepted, [] if accepted else ["hidden-input"]) == (checked is not None, [code for code, _ in said])
    assert accepted or count is not None or "maxProperties for params.labels" in said[0][1]


def test_what_no_type_says_may_be_a_map() -> None:
    """Nor may a macro over what the schema leaves open come to that limit; one over texts stops at it in order."""
    inner = "exists(k, k == 'a')"
    checked, said = check(f"params.mixed.exists(one, one.{inner})", items=1, length=10)
    assert (None, ["hidden-input"]) == (checked, [code for code, _ in said])
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
    """What could take seconds or gigabytes with the largest message is refused where no bounds are declared."""
    condition_, said = check(condition)
    assert (None, ["too-costly"]) == (condition_, [code for code, _ in said])


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
    """What reads each part of a message about once is taken whatever the schema bounds."""
    condition_, said = check(condition)
    assert [] == said
    assert condition_ is not None
    assert 0 < condition_.steps <= EXPRESSION_STEPS_MAX


@pytest.mark.parametrize(
    ("condition", "size", "most"),
    [
        ("params.numbers.map(n, n).size() > 1", "items", 631),
        ("params.texts.exists(t, params.note.contains(t))", "items", 550),
        ("params.note.matches('[a-z]{4}.[0-9]{12}')", "length", 10_921),
        ("params.note.matches('a.{1000}c')", "length", 124),
    ],
)
def test_declared_sizes_decide(condition: str, size: str, most: int) -> None:
    """An expression is taken up to some declared size, and refused from there on."""
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
        ("params.texts.map(t, t).size() > 1", "declare maxItems for params.texts, maxLength for what is in params.texts"),
        ("facts.status.matches('a.{900}')", "go over less, search shorter texts, or begin a long pattern with ^"),
    ],
)
def test_suggestions_name_the_bounds(condition: str, hint: str) -> None:
    """The suggestion names what the schema could declare, and something else where nothing is left to declare."""
    assert [("too-costly", hint)] == check(condition)[1]


def test_the_place_is_that_of_what_costs() -> None:
    """A refusal stands where most of the cost arises, not at the expression's beginning."""
    when = "params.amount > 1.0 && facts.status.matches('a.{900}')"
    with pytest.raises(DocumentError) as refused:
        compile_rule_set(json.dumps(rule_set_data([when])))
    ((message),) = refused.value.messages
    line = json.dumps(rule_set_data([when]))
    assert line.index(".matches(") + len(".matches") + 1 == message.column


def test_an_action_has_a_budget_of_its_own(codes: Codes) -> None:
    """Expressions that are each within the limit are refused where all of an action's together are not."""
    costly = "params.many.exists(t, t in {})".format([f"{number}" for number in range(10)]).replace('"', "'")
    assert [] == codes(*[f"has(params.many) && {costly}"])
    number = next(count for count in range(2, 100) if codes(*[f"has(params.many) && {costly}"] * count))
    assert ["too-costly"] == codes(*[f"has(params.many) && {costly}"] * number)
    assert number > ACTION_STEPS_MAX // EXPRESSION_STEPS_MAX


def test_patterns_are_written_out(codes: Codes) -> None:
    """A pattern out of a message could cost anything, and is refused; one that a variable of the document holds is written out."""
    assert ["not-supported"] == codes("params.name.matches(facts.status)")
    assert ["not-supported"] == codes("params.name.matches('^' + params.name)")
    assert ["unknown-function"] == codes("params.name.matches()")


def test_every_function_has_a_cost() -> None:
    """Of a function without a cost of its own the worst would be assumed: none of the language's is forgotten."""
    now = "".join(f" && now.{name}() >= 0" for name in FUNCTIONS if name.startswith("get"))
    used = (
        "size('a') > 0 && 'a'.startsWith('a') && 'a'.endsWith('a') && 'a'.contains('a') && 'a'.matches('a') && 'A'.lowerAscii() == 'a'"
        " && 'a'.upperAscii() == 'A' && 'a'.trim() == 'a' && 'a'.charAt(0) == 'a' && 'a'.indexOf('a') == 0 && 'a'.lastIndexOf('a') == 0"
        " && 'a'.indexOf('a', 0) == 0 && 'a'.substring(0, 1) == 'a' && 'a'.substring(0) == 'a' && 'a,a'.split(',', 1) == ['a,a']"
        " && 'a'.split(',') == ['a'] && 'a'.reverse() == 'a' && timestamp('2020-01-01T00:00:00Z') < now && duration('1s') > duration('0s')"
        " && int('1') == 1 && uint(1) == 1u && double(1) == 1.0 && string(1) == '1' && bytes('a') == b'a' && bool('true') && type(1) == int"
        " && dyn(1) == 1 && has(Facts.status) && [1].all(x, x == 1) && [1].exists(x, x == 1) && [1].exists_one(x, x == 1)"
        " && [1].map(x, x) == [1] && [1].map(x, x > 0, x) == [1] && [1].filter(x, x > 0) == [1] && {'a': -1}['a'] + 2 - 1 * 1 / 1 % 1 == 0"
    ) + now
    assert [] == [name for name in FUNCTIONS if f"{name}(" not in used]
    # The library nests no deeper than 32 levels: one part at a time.
    for part in used.replace("has(Facts.status)", "has({'a': 1}.a)").split(" && "):
        condition, said = check(part)
        assert ([], True) == (said, condition is not None), part


@given(st.text(alphabet=r"ab.^$*+?()[]{}|\-,019iQEpLmx:<>P", max_size=40), st.integers(0, 70_000))
def test_any_pattern_can_be_measured(pattern: str, size: int) -> None:
    """Whatever a pattern looks like it has a cost, which does not fall with longer texts, nor when something is put behind it."""
    measured = measure(pattern)
    assert 0 < measured.steps(size, 1) <= measured.steps(size + 1, 1)
    assert 0 <= measured.head.positions <= measured.whole.positions


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
    """Of a plain row of characters the automaton is made, up to a limit; of other patterns none is."""
    assert states == measure(pattern).states


@given(st.lists(st.tuples(st.sampled_from(["a", "b", "[ab]", "[bc]"]), st.sampled_from(["", "?", "*", "+", "{2}", "{1,3}"])), max_size=6))
def test_an_automaton_never_costs_more_than_none(parts: list[tuple[str, str]]) -> None:
    """That the automaton is known makes a search no dearer than what is assumed of any pattern."""
    measured = measure("".join(map("".join, parts)))
    assert measured.steps(70_000, 1) <= measured._replace(states=None).steps(70_000, 1)


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
    """Repetitions are written out; only what is surely anchored has a head, and only what is anchored twice a longest match."""
    measured = measure(pattern)
    assert (readers, head, longest) == (measured.whole.readers, measured.head.readers if measured.anchored else None, measured.longest)
