"""Conditions: the forms they may have, their outcomes, and that every mode and engine agrees."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from gavel_rules.errors import CaseError
from gavel_rules.language.engines.case import Case
from gavel_rules.language.rule_set import CompiledAction, DocumentError

Outcome = Callable[..., bool | str]


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("params.amount == 10", True),
        ("params.amount == 10.0", True),
        ("10 == params.amount", True),
        ("params.amount != 10", False),
        ("params.amount <= 9.5", False),
        ("9.5 < params.amount", True),
        ("params.count == 3.0", True),
        ("params.count < 3.5", True),
        ("params.count >= 3", True),
        ("params.amount > params.count", True),
        ("params.count < facts.total", True),
        ("params.count == facts.pieces + 1", True),
        ("params.amount in [1, 10]", True),
        ("params.amount in [1.0, 10.0]", True),
        ("params.count in [1.5, 3.0]", True),
        ("!(params.count in [1, 2])", True),
        ('params.name in ["b", "a"]', True),
        ("params.name in []", False),
        ("!(params.name in [])", True),
        ('params.name == "a" && params.name != "b"', True),
        ("params.name == facts.status", False),
        ("params.name != facts.status", True),
        ('params.name < "b"', True),
        ("params.urgent", False),
        ("!params.urgent", True),
        ("params.urgent == false", True),
        ("params.urgent != facts.open", True),
        ("true", True),
        ("false", False),
        ("!(true && false)", True),
        ("params.amount > 5 ? facts.open : params.urgent", True),
        ("proposal.risk < 0.5 && proposal.confidence > 0.5 && proposal.cost == 4 && proposal.priority == 5", True),
        ('proposal.expected_outcome == "done"', True),
        ('subject == "order/123" && subject.type == "order" && subject.id == "123"', True),
        ('producer.type == "AGENT" && producer.id == "agent-1" && producer.version == "1.0"', True),
        ("evidence.count == 4 && evidence.worst_trust <= 2 && evidence.oldest_age_ms < 2000", True),
        ("trace.consecutive_rejections < 3", True),
        ('now > timestamp("2023-11-14T00:00:00Z") && now - duration("1h") < now', True),
        ('now.getFullYear() == 2023 && now.getHours("+02:00") == 0', True),
        ('facts.status.startsWith("deli") && facts.status.matches("^[a-z]+$") && size(facts.status) == 9', True),
        ("// first a comment\nparams.amount > 5 // and one behind it", True),
        ("double(params.count) * 2.0 == 6.0", True),
        ('type(params.count) == int && string(params.count) == "3"', True),
    ],
)
def test_decided(outcome: Outcome, condition: str, expected: bool) -> None:
    """A condition over present values has CEL's outcome in every mode."""
    assert outcome(condition) == expected


@pytest.mark.parametrize(
    ("condition", "without", "with_it"),
    [
        ("has(facts.score) && facts.score > 0.9", False, True),
        ("facts.score > 0.9 && has(facts.score)", False, True),
        ("!has(facts.score) || facts.score > 0.9", True, True),
        ("has(facts.score) ? facts.score > 0.9 : false", False, True),
        ("!(has(facts.score) && facts.score > 0.9)", True, False),
        ("!(has(facts.score) && !(facts.score <= 0.9))", True, False),
        ("(has(facts.score) && facts.score > 0.9) == true", False, True),
        ("has(facts.score) && facts.score * 2.0 > 1.8", False, True),
        ("has(facts.score) && (facts.score > 0.9 || facts.score * 2.0 < 0.1)", False, True),
        ("has(params.note)", False, False),
        ("!has(params.note)", True, True),
        ("has(params.amount)", True, True),
    ],
)
def test_guarded_optional(outcome: Outcome, condition: str, without: bool, with_it: bool) -> None:
    """has() guards a read from either side of && and ||, whether the network or CEL decides the rest."""
    assert (outcome(condition), outcome(condition, facts={"score": 0.95})) == (without, with_it)


def test_guarded_params(outcome: Outcome) -> None:
    """Optional params, parts of optional objects and keys of open maps are read under has() at every optional step."""
    condition = 'has(params.address) && has(params.address.zip) && params.address.zip == "1" && params.address.city != "x"'
    assert outcome(condition) is False
    assert outcome(condition, {"address": {"city": "y"}}) is False
    assert outcome(condition, {"address": {"city": "y", "zip": "1"}}) is True
    labels = 'has(params.labels) && has(params.labels.team) && params.labels.team == "red"'
    assert outcome(labels) is False
    assert outcome(labels, {"labels": {}}) is False
    assert outcome(labels, {"labels": {"team": "red"}}) is True


def test_macros(outcome: Outcome) -> None:
    """Macros read lists, and parts of their elements under has() where the schema leaves them open."""
    items = {"items": [{"price": 1.5, "units": 2}, {"price": 3.0}]}
    assert outcome("has(params.items) && params.items.all(i, i.price > 1)", items) is True
    assert outcome("has(params.items) && params.items.exists(i, has(i.units) && i.units == 2)", items) is True
    assert outcome("has(params.items) && params.items.exists(i, has(i.units) && i.units > 2)", items) is False
    assert outcome("has(params.items) && params.items.filter(i, i.price > 2.0).size() == 1", items) is True
    assert outcome('has(params.tags) && "x" in params.tags', {"tags": ["y", "x"]}) is True
    assert outcome('has(params.tags) && params.tags[0] == "y"', {"tags": ["y", "x"]}) is True
    assert outcome('has(params.tags) && params.tags.exists(t, t == "x") && params.tags.exists(t, t == "y")', {"tags": ["y", "x"]}) is True


@pytest.mark.parametrize(
    ("condition", "params"),
    [
        ("1 / (params.count - 3) == 1", {}),
        ("params.count / 0 == 1", {}),
        ("params.quota * 9007199254740992 * 9007199254740992 > 0 && has(params.quota)", {"quota": 9007199254740992}),
        ('has(params.tags) && params.tags[5] == "x"', {"tags": []}),
        ("timestamp(params.name) < now", {}),
        ("int(params.name) == 1", {}),
        ("has(params.tags) && params.tags.all(a, params.tags.all(b, a == b))", {"tags": ["x"] * 200}),
    ],
)
def test_erring(outcome: Outcome, condition: str, params: dict[str, Any]) -> None:
    """A condition that fails as a whole names its rule as erring, in every mode."""
    assert outcome(condition, params) == "r0"


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("params.count / 0 == 1 || facts.open", True),
        ("facts.open || params.count / 0 == 1", True),
        ("params.count / 0 == 1 && params.urgent", False),
        ("!(params.count / 0 == 1 && params.urgent)", True),
    ],
)
def test_absorbed_error(outcome: Outcome, condition: str, expected: bool) -> None:
    """CEL absorbs an error if the rest of the condition decides without it."""
    assert outcome(condition) == expected


def test_error_is_settled_before_engines_are_compared(action: Callable[..., CompiledAction], case: Callable[..., Case]) -> None:
    """One erring rule makes the verdict an error, whatever others match; the highest erring rule is named."""
    compiled = action("true", "params.count / 0 == 1", "facts.open", "int(params.name) == 1")
    for value in (True, False):
        assert compiled.evaluate(case(), cross_check=value).error == "r1"
    assert compiled.evaluate_reference(case()).error == "r1"


def test_macros_that_only_err_together(outcome: Outcome) -> None:
    """The library's limit of iterations applies to the whole condition: two macros in it are never evaluated apart."""
    many = {"many": ["x"] * 6000}
    assert outcome('has(params.many) && params.many.all(t, t == "x")', many) is True
    assert outcome('has(params.many) && params.many.all(t, t == "x") && params.many.all(t, t != "y")', many) == "r0"


def test_all_matching_rules_by_falling_priority(action: Callable[..., CompiledAction], case: Callable[..., Case]) -> None:
    """Every matching rule is reported, by falling priority."""
    compiled = action("params.amount > 1", "params.amount > 100", "facts.open", 'facts.status.contains("liv")')
    assert [rule.id for rule in compiled.evaluate(case(), cross_check=True).matches] == ["r0", "r2", "r3"]


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("params.amout > 1", ["unknown-name"]),
        ("parms.amount > 1", ["unknown-name"]),
        ("facts.state == 1", ["unknown-name"]),
        ("params", ["not-a-value"]),
        ("facts == facts", ["not-a-value", "not-a-value"]),
        ("facts.score > 1", ["unguarded-optional"]),
        ("params.note == 'x'", ["unguarded-optional"]),
        ("has(facts.score) || facts.score > 1", ["unguarded-optional"]),
        ("!has(facts.score) && facts.score > 1", ["unguarded-optional"]),
        ("(has(facts.score) || facts.open) && facts.score > 1", ["unguarded-optional"]),
        ("has(params.address.city)", ["unguarded-optional"]),
        ("has(params.items) && params.items.exists(i, i.units > 2)", ["unguarded-optional"]),
        ("has(params.items) && params.items.exists(i, i.cost > 2)", ["unknown-name"]),
        ("has(params.items) && has(params.items.price)", ["type-error"]),
        ("has(params.open) && params.open == 1", ["untyped-param"]),
        ("params.name > 3", ["type-error"]),
        ("params.amount == 'x'", ["type-error"]),
        ("params.urgent > false || params.count + 1.5 > 2.0", ["type-error"]),
        ("params.name", ["not-bool"]),
        ("dyn(params.urgent)", ["not-bool"]),
        ("params.amount.cents > 1", ["type-error"]),
        ("proposal.risk.high", ["type-error"]),
        ("has(proposal.risk)", ["needless-has"]),
        ("now() > now", ["unknown-function"]),
        ("starts(params.name)", ["unknown-function"]),
        ("now.getHours('Europe/Berlin') > 3", ["hidden-input"]),
        ("now.getHours(params.name) > 3", ["hidden-input"]),
        ('{"a": 1, "b": 2}.map(k, k)[0] == "a"', ["hidden-input"]),
        ('{"a": 1, "b": 2}.filter(k, k != "c")[0] == "a"', ["hidden-input"]),
        ('dyn({"a": 1, "b": 2}).map(k, k)[0] == "a"', ["hidden-input"]),
        ('(params.urgent ? {"a": 1} : {"b": 2}).map(k, k)[0] == "a"', ["hidden-input"]),
        ('[{"a": 1, "b": 2}][0].map(k, k)[0] == "a"', ["hidden-input"]),
        ('{"a": {"c": 2}}.a.map(k, k)[0] == "a"', ["hidden-input"]),
        ('{"a": 1, "b": 2}.exists(k, k == "a") && ["b", "a"].map(k, k)[0] == "b"', []),
        ("[1].exists(params, params > 0)", ["shadowed-name"]),
        ("Facts.score > 1.0", ["unknown-name"]),
        ("google.protobuf.Timestamp{seconds: 1} < now", ["not-supported"]),
        ("params.amount >", ["cel-syntax"]),
        ("params.count > 99999999999999999999", ["cel-error"]),
        (" ".join(["params.count"] + ["+ 1"] * 40) + " > 1", ["too-complex"]),
        ("(" * 40 + "true" + ")" * 40, ["too-complex"]),
        ("&&".join("[1].all(x, x > 0)" for _ in range(9)), ["too-complex"]),
        ("facts.score > 1 && params.x && zap(1)", ["unguarded-optional", "unknown-function", "unknown-name"]),
        ("", ["out-of-range"]),
        ("true || " * 2000 + "true", ["out-of-range"]),
    ],
)
def test_refused(codes: Callable[..., list[str]], condition: str, expected: list[str]) -> None:
    """Each mistake of a condition is reported once, with its code."""
    assert codes(condition) == expected


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        ("params.count >", "the expression ends too early (complete it)"),
        ("(params.count > 3", "')' is missing at the end (add it)"),
        ("params.count > 3 and true", "unexpected 'and' (CEL writes &&, || and ! for and, or and not)"),
        ("params.count > 3)", "unexpected ')' (see the CEL language)"),
        ("params.name == 'a", "the string is not closed: 'a (close it with ')"),
        ("params.count > 3 ;", "; is not valid in CEL (see the CEL language)"),
        ("has(facts.score) ? true", "the expression ends too early: ':' is missing (complete it)"),
    ],
)
def test_syntax_in_words(action: Callable[..., CompiledAction], condition: str, message: str) -> None:
    """Mistakes of syntax are reported in plain words instead of the parser's."""
    with pytest.raises(DocumentError) as failure:
        action(condition)
    assert message in str(failure.value)


def test_conflict_key(action: Callable[..., CompiledAction], case: Callable[..., Case]) -> None:
    """A conflict key is a CEL string over subject, params and producer; the subject is the default."""
    assert action("true").conflict_key(case()) == "order/123"
    assert action("true").conflict_key_is_subject
    assert action("true", conflict_key='subject.type + "/" + params.name').conflict_key(case()) == "order/a"
    assert action("true", conflict_key='producer.id + (has(params.note) ? params.note : "")').conflict_key(case()) == "agent-1"


@pytest.mark.parametrize("key", ['""', "string(params.count / 0)", '"x" + (params.count > 1 ? "" : params.name) + params.name'])
def test_conflict_key_without_value(action: Callable[..., CompiledAction], case: Callable[..., Case], key: str) -> None:
    """A conflict key that fails, is empty or too long has no value."""
    assert action("true", conflict_key=key).conflict_key(case({"name": "n" * 512})) is None


@pytest.mark.parametrize(
    ("key", "expected"), [("params.amount", ["not-string"]), ("facts.status", ["unknown-name"]), ("params.note", ["unguarded-optional"])]
)
def test_conflict_key_refused(codes: Callable[..., list[str]], key: str, expected: list[str]) -> None:
    """A conflict key is a string, and cannot read facts: it is evaluated before any is selected."""
    assert codes("true", conflict_key=key) == expected


@pytest.mark.parametrize(
    ("params", "facts"),
    [
        ({"amount": "9"}, {}),
        ({"amount": True}, {}),
        ({"amount": float("nan")}, {}),
        ({"amount": float("inf")}, {}),
        ({"amount": 2**60}, {}),
        ({"count": 1.5}, {}),
        ({"count": "3"}, {}),
        ({"name": 5}, {}),
        ({"name": "admin\0evil"}, {}),
        ({"urgent": 1}, {}),
        ({}, {"status": 3.0}),
        ({}, {"open": "true"}),
        ({"tags": ["a\0b"]}, {}),
    ],
)
def test_case_of_wrong_type_is_refused(
    action: Callable[..., CompiledAction], case: Callable[..., Case], params: dict[str, Any], facts: dict[str, Any]
) -> None:
    """A value of the wrong type reaches neither engine, even if a schema or declaration let it through."""
    compiled = action(
        'params.amount > 1 && params.count > 1 && params.name == "a" && params.urgent',
        'facts.status == "x" && facts.open && has(params.tags) && params.tags.size() > 1',
    )
    for value in (True, False):
        with pytest.raises(CaseError):
            compiled.evaluate(case(params, facts), cross_check=value)


def test_explain(action: Callable[..., CompiledAction], case: Callable[..., Case]) -> None:
    """An explanation has every rule, with its terms outermost first and their values in CEL's notation."""
    compiled = action("params.amount > 5 && !(has(facts.score) && facts.score > 0.9)", 'facts.status in ["x"]')
    first, second = compiled.explain(case())
    assert (first.policy_id, first.rule_id, first.matched) == ("demo", "r0", True)
    assert [(term.expression, term.value) for term in first.terms] == [
        ("params.amount > 5 && !(has(facts.score) && facts.score > 0.9)", "true"),
        ("params.amount > 5", "true"),
        ("params.amount", "10.0"),
        ("!(has(facts.score) && facts.score > 0.9)", "true"),
        ("has(facts.score) && facts.score > 0.9", "false"),
        ("has(facts.score)", "false"),
        ("facts.score > 0.9", "error: facts.score is absent"),
        ("facts.score", "error: facts.score is absent"),
    ]
    assert [(term.expression, term.value) for term in second.terms] == [('facts.status in ["x"]', "false"), ("facts.status", '"delivered"')]


def test_explain_other_values(action: Callable[..., CompiledAction], case: Callable[..., Case]) -> None:
    """Values of every kind have a text, and errors name their cause."""
    conditions = ["params.tags.size() / params.count > 1", "params.tags == ['a']", "params.tags.filter(t, t != 'a') == []"]
    guarded = " && ".join(
        ["has(params.tags)", *conditions, 'now > timestamp("2020-01-01T00:00:00Z")', "has(params.items) && params.items[0].price > 1"]
    )
    (explanation,) = action(guarded).explain(case({"tags": ["a"], "count": 0, "items": [{"price": 2.5}]}))
    values = {term.expression: term.value for term in explanation.terms}
    assert values["params.tags"] == '["a"]'
    assert values["params.tags.filter(t, t != 'a')"] == "a list"
    assert values["params.tags.size() / params.count"] == "error: divide by zero"
    assert values["now"] == 'timestamp("2023-11-14T22:13:20Z")'
    assert values["params.items[0].price"] == "2.5"
