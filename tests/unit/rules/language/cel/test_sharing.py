"""Shared values: variables of the second version are computed once for all conditions of an action, and cost once."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from gavel_rules.language.cel.syntax_tree import Comprehension, Node, decode, walk
from gavel_rules.language.engines.case import Case
from gavel_rules.language.engines.cel import Program
from gavel_rules.language.rule_set import CompiledAction, compile_rule_set
from hypothesis import given, settings
from hypothesis import strategies as st

Cases = Callable[..., Case]
ACTION = "thing.do"
PARAMS = {
    "type": "object",
    "required": ["tags", "amount"],
    "properties": {
        "tags": {"type": "array", "maxItems": 50, "items": {"type": "string", "maxLength": 20}},
        "amount": {"type": "integer"},
        "note": {"type": "string", "maxLength": 20},
    },
}
VARIABLES = {
    "long": "params.tags.filter(t, size(t) > 3)",
    "some": "size(long) > 0",
    "ratio": "10 / params.amount",
    "noted": 'params.note == "x"',
}


def action(*conditions: str, version: int = 2, **variables: str) -> CompiledAction:
    """Return an action with these conditions, the first one with the highest priority."""
    rules = [
        {"id": f"r{number}", "action": ACTION, "priority": 100 - number, "when": condition, "effect": "approve"}
        for number, condition in enumerate(conditions)
    ]
    data = {"gavel": f"v{version}", "rule_set": "demo", "version": 1, "actions": {ACTION: {"params": PARAMS}}, "rules": rules}
    return compile_rule_set(json.dumps({**data, "variables": {**VARIABLES, **variables}})).actions[ACTION]


def loops(tree: Node) -> int:
    """Return the number of macros in a tree."""
    return sum(isinstance(node, Comprehension) and node.variable != "#unused" for node in walk(tree))


def test_a_variable_is_evaluated_once() -> None:
    """In the list that a decision evaluates, a variable that three conditions use stands once, also inside of another variable."""
    shared = action("some", "some && params.amount > 1", "size(long) == 2 || params.amount > 5")
    (evaluated,) = shared._joint_program._lists
    assert 1 == loops(decode(evaluated.serialize()))
    (written_out,) = action("some", "some && params.amount > 1", "size(long) == 2 || params.amount > 5", version=1)._joint_program._lists
    assert 3 < loops(decode(written_out.serialize()))


def test_a_variable_costs_once() -> None:
    """The cost of an action has a part for each variable, and does not grow by it with each further use."""
    one, four = (action(*["some"] * count) for count in (1, 4))
    costs = [{cost.name: cost.steps for cost in of.costs if cost.name.startswith("variable")} for of in (one, four)]
    assert costs[0] == costs[1]
    assert {"variable long", "variable some"} == costs[0].keys()
    steps = [sum(cost.steps for cost in of.costs) for of in (one, four)]
    assert steps[1] - steps[0] < 1_000 < costs[0]["variable long"]


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(
    ("conditions", "params", "matched", "error"),
    [
        (("some", "!some"), {"tags": ["long", "x"], "amount": 1}, ["r0"], ""),
        (("some", "!some"), {"tags": [], "amount": 1}, ["r1"], ""),
        (("ratio > 2", "params.amount == 0 || ratio > 2"), {"tags": [], "amount": 0}, [], "r0"),
        (("params.amount == 0 || ratio > 2", "ratio > 2 && params.amount > 0", "true"), {"tags": [], "amount": 0}, ["r0", "r2"], ""),
        (("has(params.note) && noted", "!has(params.note) || noted"), {"tags": [], "amount": 0}, ["r1"], ""),
        (("has(params.note) && noted", "ratio == 1"), {"tags": [], "amount": 0, "note": "x"}, [], "r1"),
    ],
)
def test_both_versions_decide_alike(
    version: int, conditions: tuple[str, ...], params: dict[str, Any], matched: list[str], error: str, case: Cases
) -> None:
    """Sharing changes no verdict, also where a variable fails, or reads what is absent: with both engines, and with each alone."""
    of = action(*conditions, version=version)
    typed_case = case(params=of.typed_params(params))
    for verdict in (
        of.evaluate(typed_case, cross_check=True),
        of.evaluate(typed_case, cross_check=False),
        of.evaluate_reference(typed_case),
    ):
        assert (matched, error, None) == ([rule.id for rule in verdict.matches], verdict.error, verdict.disagreement)


# Expressions of each kind of node: calls, methods, indices, fields, choices, macros and constants; some fail for some params.
BOOLS = (
    "params.amount > 2",
    'params.tags.exists(t, t == "x")',
    '"x" in params.tags',
    'params.tags[0].startsWith("x")',
    "!(10 / params.amount > 3)",
    'has(params.note) && params.note.contains("x")',
    "params.amount == 0 ? size(params.tags) > 1 : params.amount < 4",
    'quantity(string(params.amount) + "k").isGreaterThan(quantity("2k"))',
    'isIP(params.tags[0]) ? ip(params.tags[0]).isLoopback() : cidr("10.0.0.0/8").containsIP("10.0.0." + string(params.amount))',
    "params.tags.map(t, size(t)).max() > params.amount",
    "params.tags.exists(i, t, i > 0 && t == params.tags[0])",
    "cel.bind(t, params.tags[0], t + t == params.tags[1])",
    "true",
)
NUMBERS = (
    "size(params.tags)",
    "params.amount",
    "10 / params.amount",
    "size(params.tags[0])",
    "-params.amount",
    "int(params.tags[0])",
    "params.tags.map(t, size(t)).sum()",
)
CONDITIONS = ("a", "!a", "a && b", "a || b", "b ? a : n > 1", "n > 1 || a", "n + n == 4", "n == 2 && b", "[n, 2] == [2, n]", "a == b")


# An example compiles two rule sets.
@pytest.mark.long
@settings(max_examples=15)
@given(
    st.sampled_from(BOOLS),
    st.sampled_from(BOOLS),
    st.sampled_from(NUMBERS),
    st.lists(st.sampled_from(CONDITIONS), min_size=1, max_size=4),
    st.lists(st.sampled_from(("x", "xy", "2", "")), max_size=3),
    st.integers(0, 5),
    st.sampled_from((None, "x", "y")),
)
def test_sharing_changes_no_verdict(
    case: Cases, a: str, b: str, n: str, conditions: list[str], tags: list[str], amount: int, note: str | None
) -> None:
    """For all variables and conditions, rules match and fail as if the variables were written out."""
    params: dict[str, Any] = {"tags": tags, "amount": amount} | ({} if note is None else {"note": note})
    verdicts: list[object] = []
    expressions = {"a": a, "b": b, "n": n}
    written_out = [re.sub(r"\b[abn]\b", lambda name: f"({expressions[name[0]]})", one) for one in conditions]
    for of in (action(*written_out), action(*conditions, a=a, b=b, n=n)):
        one = case(params=of.typed_params(params))
        answers = of.evaluate(one, cross_check=True), of.evaluate(one, cross_check=False), of.evaluate_reference(one)
        verdicts += [([rule.id for rule in answer.matches], answer.error, answer.disagreement) for answer in answers]
    assert [verdicts[0]] * len(verdicts) == verdicts


def test_conditions_that_may_reach_the_limit_of_iterations_do_not_share() -> None:
    """If all macros together may visit more elements than one evaluation allows, each condition is evaluated with its own variables."""
    nested = "params.tags.all(a, params.tags.all(b, a != b))"
    assert action("pairs", "!pairs", pairs=nested).environment.shared == {}
    assert action("pairs", pairs=nested).environment.shared != {}


def test_only_conditions_share() -> None:
    """A program that is not made of conditions evaluates its expressions as they are written."""
    of = action("some")
    program = Program(of.environment, ["(size(params.tags.filter(t, size(t) > 3)))"])
    assert [[1]] == [program.evaluate_all({"params.tags": ["long"]})]
    assert [1] == program.evaluate_each({"params.tags": ["long"]})


@pytest.mark.parametrize(("count", "shares"), [(20, True), (45, False), (190, False)])
def test_variables_that_are_too_many_are_not_shared(count: int, shares: bool, case: Cases) -> None:
    """Each shared value nests the conditions once more. Beyond the library's depth none is shared, and the verdict is the same."""
    variables = {f"v{number}": f"params.amount == {number}" for number in range(count)}
    conditions = [" || ".join(list(variables)[first : first + 20]) for first in range(0, count, 20)]
    variables["v0"] = "10 / params.amount == 7"
    of = action(*conditions, version=2, **variables)
    assert shares == bool(of.environment.shared)
    failing = case(params=of.typed_params({"tags": [], "amount": 0}))
    last = case(params=of.typed_params({"tags": [], "amount": count - 1}))
    for evaluate in (lambda one: of.evaluate(one, cross_check=True), of.evaluate_reference):
        assert ("r0", None) == (evaluate(failing).error, evaluate(failing).disagreement)
        assert [f"r{len(conditions) - 1}"] == [rule.id for rule in evaluate(last).matches]


def test_variables_in_the_key_of_a_counter_are_not_shared() -> None:
    """The key of a counter's read is evaluated before the conditions, so its variables are no values that they share."""
    counters = {
        "spent": {"of": "approvals", "action": ACTION, "sum": "double(params.amount)", "by": "string(params.amount)", "window_ms": 1_000}
    }
    who, suffix = "string(params.amount)", '"x".upperAscii()'
    rules = [{"id": "r", "action": ACTION, "priority": 1, "when": "history.spent(who + suffix) < 5.0 && some", "effect": "approve"}]
    data = {"gavel": "v2", "rule_set": "demo", "version": 1, "actions": {ACTION: {"params": PARAMS}}, "rules": rules, "counters": counters}
    variables = {"long": VARIABLES["long"], "some": VARIABLES["some"], "who": who, "suffix": suffix}
    environment = compile_rule_set(json.dumps({**data, "variables": variables})).actions[ACTION].environment
    assert {"long", "some"} == {value.name for value in environment.shared.values()}
