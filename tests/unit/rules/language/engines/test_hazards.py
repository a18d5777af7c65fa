"""Every known way in which the C engine (H1-H18) or the CEL library answers wrongly, hangs or crashes, through our compiler.

The numbers are those of docs/guarantees.md, "Hazards of the engines", which lists each with its test. Each input is either decided
correctly or refused with a clear error.
"""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gavel_rules
import pytest
from gavel_rules.errors import CaseError
from gavel_rules.language.counters.counter import CountedEvent, CounterError
from gavel_rules.language.engines.case import Case
from gavel_rules.language.rule_set import CompiledAction, compile_rule_set
from gavel_rules.values import VALUE_DEPTH_MAX

Outcome = Callable[..., bool | str]
Action = Callable[..., CompiledAction]
MakeCase = Callable[..., Case]

LISTED = {
    "type": "object",
    "required": ["count", "items"],
    "properties": {"count": {"type": "integer"}, "items": {"type": "array", "maxItems": 9}},
}
OPEN = {"type": "object", "properties": {"count": {"type": "integer"}, "open": {}, "map": {"type": "object"}}}
AMOUNT = {"type": "object", "required": ["amount"], "properties": {"amount": {"type": "number"}, "limit": {"type": "number"}}}


def test_h1_colliding_property_names(action: Action, case: MakeCase) -> None:
    """H1: names that share the engine's 32-bit hash with one that a rule reads change nothing."""
    compiled = action("params.amount <= 50", 'facts.status == "delivered"', params=AMOUNT)
    of = case({"c1ceajyv": 1.0, "proposal.c1ceajyv": 1.0, "atscahwx": "delivered", "amount": 900.0}, {"status": "cancelled"})
    assert compiled.evaluate(of, cross_check=True).matches == ()


def test_h2_dotted_and_odd_keys(action: Action, case: MakeCase) -> None:
    """H2: a dotted key is not a path, and keys that the engine reserves do not reach it."""
    compiled = action("params.amount <= 50", "params.amount > 50", params=AMOUNT)
    odd = {"params.amount": 1.0, "n0": 1.0, "kind": "x", "one": 5.0, "sid": "9", "id": "9", "$s": 1.0, "amount": 900.0}
    assert [rule.id for rule in compiled.evaluate(case(odd), cross_check=True).matches] == ["r1"]


@pytest.mark.parametrize("value", ["9", "abc", "", True, None, [1.0], {}])
def test_h3_h4_no_coercion(action: Action, case: MakeCase, value: object) -> None:
    """H3, H4: a value of another type than declared is a violation, and never compared as text or as a number."""
    compiled = action("params.amount >= 100", params=AMOUNT)
    assert compiled.violations({"amount": value}) == (("/amount", "type"),)
    with pytest.raises(CaseError):
        compiled.evaluate(case().with_params({"amount": value}), cross_check=False)


def test_h3_types_are_not_compared_across(codes: Callable[..., list[str]]) -> None:
    """H3: a condition that compares a number with a string or a bool does not compile."""
    assert codes('params.amount >= "100"', "params.urgent == 1", 'facts.open == "true"') == ["type-error"] * 3


def test_h5_missing_right_operand(action: Action, case: MakeCase) -> None:
    """H5: a comparison with an absent value never matches, however often it is evaluated."""
    compiled = action(
        "has(params.limit) && params.amount > params.limit", "has(params.limit) && !(params.amount > params.limit)", params=AMOUNT
    )
    for _ in range(500):
        assert compiled.evaluate(case({"amount": 5.0}), cross_check=False).matches == ()
        assert len(compiled.evaluate(case({"amount": 5.0, "limit": 1.0}), cross_check=False).matches) == 1


@pytest.mark.parametrize("length", [4094, 4095, 4096, 65_535, 65_536, 65_537, 131_072])
def test_h6_long_strings(outcome: Outcome, length: int) -> None:
    """H6: strings are compared whole, whatever their length."""
    text = "refund" + "x" * (length - 6)
    assert outcome('params.name == "refund"', {"name": text}) is False
    assert outcome('params.name != "refund"', {"name": text}) is True
    assert outcome("has(params.note) && params.name == params.note", {"name": text, "note": text}) is True
    assert outcome("has(params.note) && params.name == params.note", {"name": text, "note": text[:-1] + "y"}) is False
    assert outcome('params.name == ""', {"name": "y" * 65_536}) is False


def test_h6_digest_of_a_long_string_is_no_string(action: Action, case: MakeCase) -> None:
    """H6: the digest that replaces a long string equals no valid string."""
    compiled = action("has(params.note) && params.name == params.note")
    long = "x" * 70_000
    values: dict[str, object] = {"params.name": long, "params.note": long, "Params": {"note": True}}
    text = json.loads(compiled._writer.write(values, []))
    (stand_in,) = {value for value in text.values() if isinstance(value, str) and value.startswith("§")}
    assert compiled.evaluate(case({"name": long, "note": stand_in}), cross_check=True).matches == ()


EVERYTHING = [
    "params.amount > facts.total && params.amount != 1.5e-7 || !(params.urgent && facts.open)",
    'params.name in ["a", "b\\"c", "ä"] && !(params.count in [1, 2])',
    "has(params.note) && params.note == params.name && !has(facts.score)",
    "true",
    "false",
    'facts.status.startsWith("x") || proposal.risk * 2.0 > 1.0',
    "!has(params.note)",
    "facts.open == params.urgent",
]
_COMPARISONS = {"$neq", "$lt", "$lte", "$gt", "$gte", "$eq"}


def test_h7_h8_h9_only_the_safe_subset_is_emitted(action: Action) -> None:
    """H7-H9: only single-key conditions of the verified forms are emitted, with the guard on `kind` first in every rule."""
    definition = json.loads(action(*EVERYTHING)._checked.plan.definition)
    warm_up = definition.pop("__warm")
    assert warm_up == {"pri": 0, "all": [{"m": {"$and": [{"kind": "warm"}]}}]}
    priorities = [rule["pri"] for rule in definition.values()]
    assert priorities == list(range(1, len(definition) + 1))
    for rule in definition.values():
        assert rule.keys() == {"pri", "all"}
        ((only,),) = (list(rule["all"]),)
        (conditions,) = only["m"].values()
        assert list(only["m"]) == ["$and"]
        assert conditions[0] == {"kind": "case"}
        operators: list[str] = []
        for condition in conditions[1:]:
            _check_condition(condition, operators)


def _check_condition(condition: dict[str, Any], names: list[str]) -> None:
    ((key, value),) = condition.items()
    if key == "$ex":
        names.extend(value)
        return
    if key in _COMPARISONS:
        ((key, value),) = value.items()
    assert key[0] in "nsbpg" or key == "one"
    if isinstance(value, dict):
        assert list(value) == ["$m"]
        assert value["$m"] in names
    else:
        assert isinstance(value, str | int | float)


@pytest.mark.parametrize("condition", ["true", "!has(params.note)", "!(params.urgent && true)"])
def test_h9_h10_conditions_without_a_positive_test(action: Action, case: MakeCase, condition: str) -> None:
    """H9, H10: a rule that always holds, or only tests an absence, matches each case exactly once."""
    compiled = action(condition)
    for _ in range(3):
        assert [rule.id for rule in compiled.evaluate(case(), cross_check=True).matches] == ["r0"]


def test_h11_forward(action: Action, case: MakeCase) -> None:
    """H11: keys that disable the engine's `$or` do not reach it, and no `$or` is emitted."""
    compiled = action("params.amount > 5 || params.amount < 1", params=AMOUNT)
    assert "$or" not in compiled._checked.plan.definition
    assert len(compiled.evaluate(case({"$forward": 1.0, "ckaoagwb": 1.0, "proposal.ckaoagwb": 1.0}), cross_check=True).matches) == 1


@pytest.mark.parametrize("count", [64, 65, 255, 256, 257, 500])
def test_h14_many_conditions(action: Action, case: MakeCase, count: int) -> None:
    """H14: hundreds of different conditions, all matching at once, are all found."""
    compiled = action(*(f"params.amount > {-number}" for number in range(count)))
    assert len(compiled.evaluate(case(), cross_check=True).matches) == count
    assert compiled.evaluate(case({"amount": -1000.0}), cross_check=True).matches == ()


@pytest.mark.long
@pytest.mark.parametrize("count", [64, 129, 257, 500])
def test_h15_many_rules_on_one_condition(action: Action, case: MakeCase, count: int) -> None:
    """H15: hundreds of rules that share a condition, plain, negated or a presence test, are all found."""
    for condition in ("params.amount > 5", "!has(params.note)", "params.amount > 5 || params.count > 100"):
        assert len(action(*[condition] * count).evaluate(case(), cross_check=True).matches) == count


def test_h16_division(outcome: Outcome) -> None:
    """H16: division by zero and integer overflow are errors of the condition."""
    assert outcome("10 / (params.count - 3) == 1") == "r0"
    assert outcome("(-9223372036854775807 - 1) / (params.count - 4) == 1") == "r0"


def test_h17_deep_and_huge_values(action: Action, case: MakeCase) -> None:
    """H17: unread values may have any size; the size of values that CEL reads is limited first."""
    deep: object = "x"
    for _ in range(300):
        deep = [deep]
    params = {"k" * 1_000_000: "v" * 1_000_000}
    assert len(action("params.amount > 5").evaluate(case({"open": deep, "labels": params}), cross_check=True).matches) == 1
    for value in ({"a": deep}, {"a": "v" * 70_000}):
        with pytest.raises(CaseError):
            action("has(params.labels) && size(params.labels) > 0").evaluate(case({"labels": value}), cross_check=True)


@pytest.mark.parametrize(
    ("pattern", "text", "expected"),
    [
        ("^((a)*|[ab])c$", "abc", False),
        ("^a{0}$", "aaa", False),
        ("^(c)+((1)?)+$", "c1", True),
        ("^[\\\\x{4e00}-\\\\x{9fff}]+$", "中", True),
        ("^(((1)*)+)*$", "1" * 2000 + "x", False),
    ],
)
def test_h18_regular_expressions(outcome: Outcome, pattern: str, text: str, expected: bool) -> None:
    """H18: regular expressions are CEL's, in linear time, never the engine's."""
    assert outcome(f'params.name.matches("{pattern}")', {"name": text}) == expected


@pytest.mark.parametrize(
    "condition", ["params.name.matches('^[ab')", "now - now < duration('1 day')", "now < timestamp('2026-13-01T00:00:00Z')"]
)
def test_literals_that_always_err(codes: Callable[..., list[str]], condition: str) -> None:
    """A literal that fails in every evaluation is a mistake, even where it is rarely evaluated."""
    assert ["bad-literal"] == codes(condition)
    assert ["bad-literal"] == codes(f"params.amount > 1 || {condition}")


@pytest.mark.parametrize("value", [1e-7, 1e16, 1e-300, 5e-324, 1.5e300, 2.0**53, -(2.0**53), -0.0, 0.1 + 0.2, 123456789.123456789])
def test_numbers_in_every_notation(outcome: Outcome, value: float) -> None:
    """Numbers whose shortest text the engine's parser refuses, or reads otherwise, are decided exactly."""
    assert outcome(f"params.amount == {value!r}", {"amount": value}) is True
    assert outcome(f"params.amount < {value!r}", {"amount": value}) is False
    assert outcome(f"params.amount in [{value!r}]", {"amount": value}) is True


def test_integers_at_the_edge(outcome: Outcome) -> None:
    """Integers are exact up to 2^53; literals beyond, where the engine would saturate, are left to CEL."""
    edge = 2**53
    assert outcome(f"params.count == {edge}", {"count": edge}) is True
    assert outcome(f"params.count == {edge - 1}", {"count": edge}) is False
    assert outcome("params.count < 9223372036854775807", {"count": edge}) is True
    assert outcome("params.amount < 9223372036854775808.0 && params.amount < 1e30", {"amount": 5.0}) is True
    # An int beyond 2^53 beside a double is the double nearest to it, as the page says.
    assert outcome(f"params.amount == {edge + 1}", {"amount": float(edge)}) is True
    assert outcome(f"params.count == {edge + 1}", {"count": edge}) is False


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        ("café", "cafe\u0301", False),
        ("a/b", "a/b", True),
        ('"', '"', True),
        ("\\", "\\", True),
        ("a\nb\tc", "a\nb\tc", True),
        ("😀", "😀", True),
    ],
)
def test_strings_are_compared_by_characters(outcome: Outcome, left: str, right: str, expected: bool) -> None:
    """Strings are equal if their characters are: no normalisation, no difference by escaping."""
    assert outcome(f"params.name == {json.dumps(right, ensure_ascii=False)}", {"name": left}) is expected
    assert outcome("has(params.note) && params.name == params.note", {"name": left, "note": right}) is expected


def test_cel_nul_is_refused(action: Action, case: MakeCase, codes: Callable[..., list[str]]) -> None:
    """CEL 1: NUL is refused in values and in conditions, because the library cuts strings there."""
    with pytest.raises(CaseError):
        action('params.name == "admin"').evaluate(case({"name": "admin\0evil"}), cross_check=True)
    assert codes('params.name == "admin\0"') == ["bad-character"]
    assert codes('params.name == "admin\\u0000"') == ["bad-character"]
    assert codes("has(params.note) && params.note in ['a', 'b\\x00'] || params.name.matches('\\000')") == ["bad-character"] * 2


def test_cel_deep_values_are_refused(action: Action, case: MakeCase) -> None:
    """CEL 2: a value nested deeper than the library's stack takes is refused before the library sees it."""
    params = {"type": "object", "properties": {"deep": {"type": "array"}}}
    compiled = action("has(params.deep) && size(params.deep) == 1", params=params)
    deep: object = "x"
    for depth in range(1, 20):
        deep = [deep]
        of = case({"deep": deep})
        if depth <= VALUE_DEPTH_MAX:
            assert len(compiled.evaluate(of, cross_check=True).matches) == 1
        else:
            with pytest.raises(CaseError):
                compiled.evaluate(of, cross_check=True)


def test_only_own_expressions_are_deserialized() -> None:
    """CEL 5: the library reads no serialized expression but those that `expansion` and `sharing` write (ADR 0061)."""
    root = Path(gavel_rules.__file__).parent
    sources = {source.relative_to(root).as_posix(): source.read_text() for source in root.glob("**/*.py")}
    assert len(sources) > 20
    calls = {name: [line.strip() for line in text.splitlines() if ".deserialize(" in line] for name, text in sources.items()}
    assert {
        "language/cel/checker.py": [
            "return self._library.deserialize(self._expand(compiled))",
            "return self._library.deserialize(share(self._expand(self._library.compile(source)), values, as_outcomes=as_outcomes))",
        ],
        "language/cel/library.py": ["value = _bare(2).deserialize(serialized).eval(data={})"],
    } == {name: lines for name, lines in calls.items() if lines}


def test_cel_lone_surrogate_is_refused(action: Action, case: MakeCase) -> None:
    """CEL 3: a lone surrogate is refused whether CEL or the network would read it."""
    for condition in ('params.name == "x"', 'params.name.contains("x")'):
        for value in (True, False):
            with pytest.raises(CaseError):
                action(condition).evaluate(case({"name": "\ud800"}), cross_check=value)


def test_cel_limits(codes: Callable[..., list[str]]) -> None:
    """CEL 4: an expression that the library cannot parse within its limits, inside a list, is refused when compiled."""
    for depth in range(20, 40):
        condition = "(" * depth + "params.count" + " + 1)" * depth + " > 0"
        assert codes(condition) in ([], ["cel-error"], ["too-complex"])
    assert codes(" || ".join(f"params.count == {number}" for number in range(300))) == []


NESTED: dict[str, Callable[[int], str]] = {
    "a sum": lambda depth: "params.quota" + " + 1" * depth,
    "parentheses": lambda depth: "(" * depth + "params.quota" + ")" * depth + " + 1",
    "calls": lambda depth: "int(" * depth + "params.quota" + ")" * depth,
    "maps": lambda depth: '{"a": ' * depth + "params.quota" + "}" * depth + '["a"] == 1 ? 1 : 2',
    "macros": lambda depth: "".join(f"[1].exists(x{level}, " for level in range(depth)) + "params.quota == 1" + ")" * depth + " ? 1 : 2",
}


@pytest.mark.parametrize("form", NESTED)
@pytest.mark.parametrize("version", ["v1", "v2"])
def test_cel_nesting(document: Callable[..., dict[str, Any]], refusals: Callable[[str], list[Any]], form: str, version: str) -> None:
    """However deep an expression with an optional value is nested, it compiles or is refused as a mistake of its author."""
    codes = set()
    for depth in range(4, 36):
        text = json.dumps({**document([f"has(params.quota) && ({NESTED[form](depth)}) > 3"]), "gavel": version})
        codes |= {code for _, _, code in refusals(text)}
    assert "too-complex" in codes


def test_cel_error_is_not_truth(outcome: Outcome) -> None:
    """An error value of the library, which is true in Python, is not a match."""
    assert outcome("int(params.name) > 0") == "r0"
    assert outcome("!(int(params.name) > 0)") == "r0"


def test_cel_has_of_a_deep_path(codes: Callable[..., list[str]], outcome: Outcome) -> None:
    """has(a.b.c) fails if `a.b` is missing: every optional step needs its own has()."""
    assert codes("has(params.address.zip)") == ["unguarded-optional"]
    assert outcome("has(params.address) && has(params.address.zip)") is False


@pytest.mark.long
def test_cel_null_is_never_requested(action: Action, case: MakeCase) -> None:
    """No expression lets the library return null: it returns None without counting the reference, which kills the process."""
    compiled = action(
        'has(facts.owner) && facts.owner.endsWith("x")',
        "has(params.labels) && size(params.labels) == 2",
        "has(params.tags) && params.tags.filter(t, t > 'b') == ['c']",
    )
    of = case({"labels": {"a": None, "b": "x"}, "tags": ["c"]})
    compiled.evaluate(of, cross_check=True)
    gc.collect()  # garbage of earlier tests refers to None as well
    before = sys.getrefcount(None)
    for _ in range(1000):
        compiled.evaluate(of, cross_check=True)
        compiled.evaluate(of, cross_check=False)
        compiled.explain(of)
    gc.collect()
    assert abs(sys.getrefcount(None) - before) < 500


COUNTING = """\
gavel: v2
rule_set: refunds
version: 1
actions:
  refund.create:
    params:
      type: object
      required: [amount, accounts]
      properties: {amount: {type: number}, accounts: {type: array, maxItems: 9}}
    facts: {owners: {key: account.owner, subjects: params.accounts, max: 9, type: string, max_age_ms: 1000}}
counters:
  reported: {of: observations, fact: order.report, sum: value.amount, window_ms: 1000}
  spent: {of: approvals, action: refund.create, sum: params.amount, window_ms: 1000, keep: reserved, settle: execution.result.refunded}
rules:
  - {id: ok, action: refund.create, priority: 1, when: history.reported() + history.spent() > 1.0, effect: approve}
"""


def test_cel_null_in_what_has_no_schema() -> None:
    """A null in an observation, a report or a list of subjects, which strangers write, costs no reference to None."""
    rule_set = compile_rule_set(COUNTING)
    template = rule_set.actions["refund.create"].subject_templates["params.accounts"]

    def count() -> None:
        for name, variables in (("reported", {"value": {"amount": None}}), ("spent", {"execution.result": {"refunded": None}})):
            event = CountedEvent("refund.create", {"amount": 1.0}, "order/1", "AGENT", "agent-1", "", variables)
            with pytest.raises(CounterError):
                rule_set.counters[name].amount_of(event) if name == "reported" else rule_set.counters[name].settled_amount(event, 1)
        assert template.subjects({"amount": 1.0, "accounts": ["account/1", None]}, {}, "order/1", 9) is None

    assert references_lost(count) < 50


@pytest.mark.parametrize(
    "condition",
    ["params.count > 1 && params.items.filter(x, true)[0]", "params.count > 1 && [dyn(null)][0]", "dyn(null) || params.count < 1"],
)
def test_cel_null_in_a_guard(action: Action, case: MakeCase, condition: str) -> None:
    """A guard that is null is an error, and costs no reference to None."""
    compiled, of = action(condition, params=LISTED), case({"count": 3, "items": [None, 2]})
    assert "r0" == compiled.evaluate(of, cross_check=True).error
    assert references_lost(lambda: compiled.evaluate(of, cross_check=True)) < 50


def references_lost(call: Callable[[], object]) -> int:
    """Return how many references to None a hundred calls take away."""
    call()
    gc.collect()  # garbage of earlier tests refers to None as well
    before = sys.getrefcount(None)
    for _ in range(100):
        call()
    gc.collect()
    return before - sys.getrefcount(None)


@pytest.mark.parametrize(
    ("condition", "value"),
    [
        ("has(params.open.k)", None),
        ("!has(params.open.k)", "x"),
        ("has(params.map) && has(params.map.flags) && has(params.map.flags.k)", 1.0),
    ],
)
def test_cel_has_below_a_value_that_is_no_object(action: Action, case: MakeCase, condition: str, value: object) -> None:
    """has() below a value that is no object is an error in every mode; the network does not take it for an absence."""
    compiled = action(condition, params={**OPEN, "required": ["open"]})
    of = case({"map": {"flags": value}}).with_params({"open": value, "map": {"flags": value}})
    verdicts = [compiled.evaluate(of, cross_check=True), compiled.evaluate(of, cross_check=False), compiled.evaluate_reference(of)]
    assert ["r0"] * 3 == [verdict.error for verdict in verdicts]
