"""Variables: expanded at each use, correct in both engines, with mistakes reported once, at the variable."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from gavel_rules.language.cel.variables import EXPANDED_LENGTH_MAX
from gavel_rules.language.document.models import VARIABLES_MAX
from gavel_rules.language.engines.case import Case
from gavel_rules.language.rule_set import CompiledAction, DocumentError, compile_rule_set

Document = Callable[..., dict[str, Any]]
Cases = Callable[..., Case]

HEAD = """\
gavel: v1
rule_set: demo
version: 1
actions:
  thing.do:
    params: {type: object, properties: {amount: {type: number}}, required: [amount]}
    facts:
      score: {key: order.score, type: number, max_age_ms: 1000, optional: true}
  thing.undo:
    params: {type: object, properties: {reason: {type: string}}, required: [reason]}
rules:
  - {id: do, action: thing.do, priority: 10, when: "WHEN", effect: approve}
  - {id: undo, action: thing.undo, priority: 10, when: "UNDO", effect: approve}
variables:
"""


def compiled(data: dict[str, Any], conditions: dict[str, str]) -> CompiledAction:
    """Return the only action of a document with these variables."""
    return compile_rule_set(json.dumps({**data, "variables": conditions})).actions["thing.do"]


def mistakes(text: str) -> list[str]:
    """Return every mistake of a document as "line:column code message"."""
    try:
        compile_rule_set(text)
    except DocumentError as error:
        return [f"{one.line}:{one.column} {one.code} {one.message}" for one in error.messages]
    return []


def document_with(*variables: str, when: str = "params.amount > 1", undo: str = "true") -> str:
    """The text of a document with two actions; its first variable stands in line 15."""
    return HEAD.replace("WHEN", when).replace("UNDO", undo) + "".join(f"  {variable}\n" for variable in variables)


VARIABLES = {
    "limit": "100",
    "cheap": "params.amount <= limit",
    "scored": "has(facts.score) // a comment",
    "fine": "scored && facts.score < 0.5",
    "city": "params.address.city",
    "home": "params.address",
    "tagged": 'has(params.tags) && params.tags.exists(tag, tag == "x")',
    "ordinary": "cheap || fine",
}


@pytest.mark.parametrize(
    ("condition", "written_out"),
    [
        ("cheap", "params.amount <= 100"),
        ("!cheap && limit > params.amount", "!(params.amount <= 100) && 100 > params.amount"),
        ("ordinary", "params.amount <= 100 || (has(facts.score) && facts.score < 0.5)"),
        ("!ordinary", "!(params.amount <= 100 || (has(facts.score) && facts.score < 0.5))"),
        ("scored && facts.score == params.amount", "has(facts.score) && facts.score == params.amount"),
        ('has(params.address) && city == "a"', 'has(params.address) && params.address.city == "a"'),
        (
            'has(params.address) && has(home.zip) && home.zip == "a"',
            'has(params.address) && has(params.address.zip) && params.address.zip == "a"',
        ),
        ("tagged && cheap", 'has(params.tags) && params.tags.exists(tag, tag == "x") && params.amount <= 100'),
    ],
)
def test_variable_equals_its_text(document: Document, case: Cases, condition: str, written_out: str) -> None:
    """A condition with variables is lowered and decided like the condition with their text substituted, in every mode."""
    one, other = compiled(document([condition]), VARIABLES), compiled(document([written_out]), VARIABLES)
    assert [item.formula for item in other._checked.lowered] == [item.formula for item in one._checked.lowered]
    for facts in ({}, {"score": 0.1}, {"score": 0.9}, {"score": 100.0}):
        for amount in (99.0, 100.0, 100.5):
            of = case({"amount": amount, "tags": ["x"], "address": {"city": "a", "zip": "b"}}, facts)
            expected = [rule.id for rule in other.evaluate(of, cross_check=True).matches]
            assert expected == [rule.id for rule in one.evaluate(of, cross_check=True).matches]
            assert expected == [rule.id for rule in one.evaluate(of, cross_check=False).matches]
            assert expected == [rule.id for rule in one.evaluate_reference(of).matches]


def test_rules_are_quoted_as_written(document: Document, case: Cases) -> None:
    """A decision quotes the condition as its author wrote it; its explanation has variables by name, and the parts of their values."""
    action = compiled(document(["cheap && params.urgent"]), VARIABLES)
    assert ["cheap && params.urgent"] == [rule.condition for rule in action.rules]
    (explained,) = action.explain(case({"urgent": True}))
    assert explained.matched
    assert {
        "cheap && params.urgent": "true",
        "cheap": "true",
        "params.amount": "10.0",
        "params.urgent": "true",
    } == {term.expression: term.value for term in explained.terms}


def test_a_conflict_key_may_use_variables(document: Document, case: Cases) -> None:
    """A conflict key may use variables, like a condition."""
    data = document(["true"], conflict_key='owner + "/" + params.name')
    assert "order/a" == compiled(data, {"owner": "subject.type"}).conflict_key(case())


def test_order_does_not_matter(document: Document) -> None:
    """The canonical form, which sorts variables, compiles to an equal rule set."""
    one = compile_rule_set(json.dumps({**document(["b"]), "variables": {"b": "a && c", "a": "params.urgent", "c": "!a"}}))
    other = compile_rule_set(one.canonical_json)
    assert (one.digest, one.actions["thing.do"]._checked.lowered) == (other.digest, other.actions["thing.do"]._checked.lowered)


@pytest.mark.parametrize(
    ("variables", "uses", "expected"),
    [
        (["a: params.amont > 1"], {"when": "a && a"}, ["15:6 unknown-name params has no field amont, for thing.do"]),
        (["a: params.nothing == 1"], {"when": "a", "undo": "!a"}, ["15:6 unknown-name params has no field nothing"]),
        (["a: nobody > 1"], {"when": "a"}, ["15:6 unknown-name there is no name nobody"]),
        (["a: facts.score > 1"], {"when": "a && has(facts.score)"}, []),
        (["a: facts.score > 1"], {"when": "a"}, ["15:6 unguarded-optional facts.score may be absent, for thing.do"]),
        (["a: params.amount >"], {"when": "a"}, ["15:20 cel-syntax the expression ends too early"]),
        (["a: params.amount + 1 > 2"], {"when": "a"}, ["15:20 type-error + cannot be applied to double, int, for thing.do"]),
        (["a: b", "b: c && b", "c: a"], {}, ["15:6 variable-cycle ", "16:11 variable-cycle ", "17:6 variable-cycle "]),
        (["a: b", "b: params.amont > 1"], {"when": "a"}, ["16:6 unknown-name params has no field amont, for thing.do"]),
        (["a: params.amount"], {"when": "a"}, ["15:6 not-bool the expression gives double, not bool, for thing.do"]),
        (["a: 7"], {"when": "a"}, ["15:6 wrong-type variables.a: input should be a valid string"]),
        (["a: 'true'"], {"when": "[1].exists(a, a > 0)"}, ["12:63 shadowed-name a already has a meaning"]),
        (["a: '[true].exists(b, b)'", "b: 'true'"], {"when": "a"}, ["15:20 shadowed-name b already has a meaning"]),
        (["a: execution.attempt > 1"], {"when": "a"}, ["12:53 unknown-name the variable a reads execution, which is not available here"]),
        (["a: params.reason == 'x'"], {"undo": "a"}, []),
        (["unused: params.amount > 1"], {}, []),
        (["unused: params.reason == 'x'"], {}, []),
        (["unused: params.neither == 'x'"], {}, ["15:11 unknown-name params has no field neither"]),
        (["unused: execution.attempt > 1"], {}, []),
    ],
)
def test_mistakes_are_reported_where_they_are(variables: list[str], uses: dict[str, str], expected: list[str]) -> None:
    """A mistake in a variable is reported once, at its place in the variable, however often it is used."""
    actual = mistakes(document_with(*variables, **uses))
    assert len(expected) == len(actual), actual
    for line, mistake in zip(expected, actual, strict=True):
        assert mistake.startswith(line)


def test_mistakes_beside_a_broken_variable_are_found() -> None:
    """The other parts of an expression that uses a broken variable are still checked."""
    actual = mistakes(document_with("a: params.amount >", when="a && params.amont > 1 && facts.score > 2"))
    assert ["12:58 unknown-name", "12:78 unguarded-optional", "15:20 cel-syntax"] == [" ".join(one.split()[:2]) for one in actual]


def test_a_misspelt_variable_is_recognised() -> None:
    """The nearest variable is suggested for an unknown name."""
    with pytest.raises(DocumentError) as failure:
        compile_rule_set(document_with("expensive: params.amount > 500", when="expensiv"))
    assert ["did you mean expensive?"] == [message.suggestion for message in failure.value.messages]


def test_growth_of_expansions_is_bounded() -> None:
    """Variables that double each other are refused quickly, where the expansion passes the limit."""
    chain = [f"x{number}: x{number + 1} && x{number + 1}" for number in range(VARIABLES_MAX - 1)]
    actual = mistakes(document_with(*chain, f"x{VARIABLES_MAX - 1}: params.amount > 1", when="x0"))
    assert ["too-complex"] == [one.split()[1] for one in actual]


def test_nesting_of_variables_is_bounded() -> None:
    """Of variables nested in each other, the first one that is too deep is reported, once."""
    chain = ["v0: params.amount > 1", *(f"v{number}: v{number - 1} && params.amount < {number}" for number in range(1, 200))]
    assert [] == mistakes(document_with(*chain[:25], when="v24"))
    expected = ["45:8 too-complex with its variables expanded, v30 is nested too deep"]
    assert expected == mistakes(document_with(*chain, when="v199"))


def test_chains_of_any_length_are_read() -> None:
    """A chain of far too many variables, the first one written last, is refused with its mistakes."""
    chain = [f"v{number}: v{number + 1} && params.amount > 1" for number in range(5 * VARIABLES_MAX)]
    actual = mistakes(document_with(*chain, f"v{len(chain)}: params.amount > 1", when="v0"))
    assert ["out-of-range", "too-complex"] == sorted(one.split()[1] for one in actual)


def test_length_at_the_limit(document: Document) -> None:
    """An expression may have EXPANDED_LENGTH_MAX characters with its variables expanded, and not one more."""
    text = f'params.name == "{"v" * 6000}"'
    padding = EXPANDED_LENGTH_MAX - len(f"({text}) || ({text})")
    compiled(document(["long || long" + " " * padding]), {"long": text})
    with pytest.raises(DocumentError) as failure:
        compiled(document(["long || long" + " " * (padding + 1)]), {"long": text})
    assert ["too-complex"] == [message.code for message in failure.value.messages]
