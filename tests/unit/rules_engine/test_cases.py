"""Made cases: they are what was asked for, the proofs are true, and the same rules give the same cases."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from gavel_rules.authoring.cases import WORK_MAX, CaseMaker, generated_cases, makers
from gavel_rules.authoring.shipped import shipped_rule_set
from gavel_rules.language.case import Case, Reader
from gavel_rules.language.constraints import Budget
from gavel_rules.language.ruleset import CompiledAction, compile_rule_set
from gavel_rules.language.samples import Sampler
from gavel_rules.language.schema import compile_schema
from gavel_rules.language.vocabulary import ValueType
from gavel_rules.values import python_to_value, size_of, struct_problems, value_to_python
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tests.unit.rules_engine.conftest import ACTION, rule_set_data
from tests.unit.rules_engine.strategies import CASES, CONDITIONS

Make = Callable[..., CompiledAction]


@pytest.mark.parametrize(
    "condition",
    [
        "params.amount > 500",
        "params.amount > 500 && params.amount < 500.02",
        "params.count == 7 && params.name == 'x' && params.urgent",
        "params.amount > facts.total && facts.total > 100",
        "has(params.limit) && params.amount * 2.0 + params.limit > 1000.0",
        "facts.total * double(params.count) > 0.75 * double(facts.pieces) && params.count < facts.pieces && facts.pieces > 3",
        "now.getHours() >= 18 && now.getDayOfWeek() == 5",
        "now.getMonth() == 11 && now.getDate() > 20",
        "has(params.note) && params.note.matches('^[A-Z]{3}-[0-9]+$')",
        "params.name.startsWith('ab') && params.name.endsWith('yz') && size(params.name) == 9",
        "has(params.tags) && params.tags.exists(tag, tag == 'vip') && size(params.tags) > 3",
        "has(params.items) && params.items.exists(item, item.price > 99.5 && has(item.sku) && item.sku == 'A')",
        "has(params.address) && has(params.address.zip) && params.address.zip == '10115'",
        "has(params.labels) && 'team' in params.labels && params.labels['team'] == 'red'",
        "facts.status.contains(',' + subject.id + ',')",
        "facts.status != '' && now - timestamp(facts.status) > duration('720h')",
        "subject.type == 'order' && producer.id != 'agent' && proposal.risk >= 0.5",
        "evidence.count > 5 && evidence.worst_trust == 2 && evidence.oldest_age_ms > 60000",
        "trace.consecutive_rejections == 2 && !(has(facts.score) && facts.score < 0.2)",
        "params.urgent ? params.amount < 0.0 : facts.open",
        "params.name in ['a', 'b', 'c'] && !(params.name in ['a', 'b'])",
    ],
)
def test_witness(action: Make, condition: str) -> None:
    """A case is found that fulfils a condition which can be fulfilled, and one that does not; both engines say so."""
    compiled = action(condition)
    maker = CaseMaker(compiled)
    for wanted in (True, False):
        found = maker.witness([maker.formula(compiled, 0, wanted)]).found
        assert found is not None
        assert compiled.violations(found.params) == ()
        verdict = compiled.evaluate(found.case, both=True)
        assert verdict == compiled.evaluate_reference(found.case)
        assert (verdict.error, bool(verdict.matched)) == ("", wanted)


@pytest.mark.parametrize(
    ("conditions", "others"),
    [
        (["params.amount > 5 && params.amount < 5"], ()),
        (["params.count > 5 && params.count < 6"], ()),
        (["proposal.risk > 1.0"], ()),
        (["params.name == 'a' && params.name in ['b', 'c']"], ()),
        (["has(params.limit) && !has(params.limit)"], ()),
        (["params.amount > facts.total && facts.total > 10 && params.amount < 10"], ()),
        (["params.amount > facts.total && params.amount < facts.total"], ()),
        (["now.getHours() > 12 && !(now.getHours() > 12)"], ()),
        (["params.amount > 5", "params.amount > 10"], (0,)),
        (["params.amount > 5", "params.amount <= 5", "params.urgent"], (0, 1)),
        (["params.name == 'a' || params.urgent", "params.name != 'a' && !params.urgent", "params.count > 3"], (0, 1)),
        (["has(params.limit)", "has(params.limit) && params.limit > 3"], (0,)),
    ],
)
def test_impossible(action: Make, conditions: list[str], others: tuple[int, ...]) -> None:
    """That the last rule can never decide is proved, and the proof names the rules that leave it nothing."""
    witness = CaseMaker(action(*conditions)).decided_by(len(conditions) - 1)
    assert (witness.found, witness.impossible, witness.others) == (None, True, others)


def test_schema_bounds_are_used(action: Make) -> None:
    """What the schema rules out is impossible, by an enumeration, a bound or a whole number."""
    schema = {
        "type": "object",
        "required": ["currency", "amount"],
        "properties": {"currency": {"enum": ["EUR", "USD"]}, "amount": {"type": "integer", "minimum": 1, "maximum": 9}},
    }
    for condition in ("params.currency == 'GBP'", "params.amount > 9", "params.amount < 1", "params.amount > 3 && params.amount < 4"):
        assert CaseMaker(action(condition, params=schema)).decided_by(0).impossible


@settings(max_examples=30, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(conditions=st.lists(CONDITIONS, min_size=2, max_size=5), cases=st.lists(CASES, min_size=6, max_size=6))
def test_proofs_and_witnesses_hold(
    action: Make, case: Callable[..., Case], conditions: list[str], cases: list[tuple[dict[str, Any], ...]]
) -> None:
    """A rule that is called impossible decides no case at all; one that got a witness decides it."""
    compiled = action(*conditions)
    maker = CaseMaker(compiled, budget=Budget(200_000))
    decided = [compiled.evaluate_reference(case(params, facts, **rest)).matched[:1] for params, facts, rest in cases]
    for index, rule in enumerate(compiled.rules):
        witness = maker.decided_by(index)
        if witness.impossible:
            assert (rule,) not in decided
        if witness.found is not None:
            assert compiled.evaluate(witness.found.case, both=True).matched[0] == rule


@pytest.mark.parametrize("compared", ["{0} != 9007199254740993.0", "{0} < -1e300", "{0} > -1e300", "{0} >= 9007199254740992"])
@pytest.mark.parametrize("path", ["params.count", "params.amount", "params.deep.whole", "facts.pieces", "facts.total"])
def test_no_number_is_made_that_is_not_admitted(action: Make, path: str, compared: str) -> None:
    """Conditions may compare with numbers that no proposal and no fact can have: what is made stays within those that they can."""
    params = {
        "type": "object",
        "properties": {"deep": {"type": "object", "properties": {"whole": {"type": "integer"}}, "required": ["whole"]}},
    }
    params["properties"].update({"count": {"type": "integer"}, "amount": {"type": "number"}})  # type: ignore[attr-defined]
    params["required"] = ["count", "amount", "deep"]
    compiled = action(compared.format(path), params=params)
    maker = CaseMaker(compiled)
    assert [] != [one for one in generated_cases(compiled, 20) if compiled.evaluate(one.case, True).disagreement is None]
    assert maker.decided_by(0).impossible == (compared == "{0} < -1e300")


def test_every_shipped_rule_decides_a_case() -> None:
    """Of a shipped set, generated cases are decided by every rule; the engines agree on all, and they are the same every time."""
    compiled = compile_rule_set(shipped_rule_set("refunds")).actions["refund.create"]
    cases = generated_cases(compiled, 100)
    deciding: set[str] = set()
    for generated in cases:
        verdict = compiled.evaluate(generated.case, both=True)
        assert verdict == compiled.evaluate_reference(generated.case)
        deciding.update(rule.id for rule in verdict.matched[:1])
    assert deciding == {rule.id for rule in compiled.rules}
    assert repr(generated_cases(compiled, 100)) == repr(cases)
    assert len(generated_cases(compiled, 5)) == 5


def test_a_spent_budget_proves_nothing(action: Make) -> None:
    """Once the budget is spent nothing is found, and nothing is called impossible."""
    compiled = action("params.amount > 5 && params.amount < 5", "params.urgent")
    maker = CaseMaker(compiled, budget=Budget(0))
    assert [maker.decided_by(index)[:2] for index in (0, 1)] == [(None, False), (None, False)]


def test_large_values_take_more_of_the_budget(action: Make) -> None:
    """The budget bounds the size of all that is made, whatever number of cases that is: fewer of large ones, and no more work."""
    large = {"type": "array", "items": {"type": "integer"}, "default": list(range(500))}
    for properties in ({}, {f"p{number}": large for number in range(10)}):
        schema = {"type": "object", "required": [*properties, "x"], "properties": {**properties, "x": {"enum": list(range(60))}}}
        maker = CaseMaker(action("params.x > 30", "params.x == 10", params=schema), budget=Budget(WORK_MAX // 10))
        cases = generated_cases(maker.action, 1_000, maker)
        assert sum(size_of(case.params) for case in cases) < WORK_MAX // 10
        assert (len(cases) < 10, maker.budget.spent) == (bool(properties), bool(properties))
        assert maker.budget.taken < WORK_MAX


def test_pairs_are_not_tried_without_end(action: Make) -> None:
    """Where each value is compared with others, and no case is soon found, the search ends with its budget."""
    names = [f"p{number}" for number in range(100)]
    schema = {"type": "object", "required": names, "properties": {name: {"enum": [f"{name}{by}" for by in range(60)]} for name in names}}
    compiled = action(*(f"params.{one} == params.{other}" for one, other in zip(names, names[7:], strict=False)), params=schema)
    maker = CaseMaker(compiled, budget=Budget(WORK_MAX // 10))
    assert [] == generated_cases(compiled, 1_000, maker)[1:]
    assert maker.budget.spent


def test_what_one_action_leaves_goes_to_the_next() -> None:
    """The work for a document is shared by its actions, and each gets something however many there are."""
    data = rule_set_data(["params.amount > 5"])
    data["actions"] = {f"a{number}.do": data["actions"][ACTION] for number in range(20)}
    data["rules"] = [{**data["rules"][0], "id": name, "action": name} for name in data["actions"]]
    compiled = compile_rule_set(json.dumps(data))
    assert [maker.action for maker in makers(compiled, 0) if maker.base is not None] == list(compiled.actions.values())
    assert [] == [maker for maker in makers(compiled) if maker.budget.spent]


def test_a_value_without_a_guess_is_not_asked_about(action: Make) -> None:
    """A guard that reads something of which no value is known, such as a very long list, is no reason to stop."""
    schema = {
        "type": "object",
        "required": ["n"],
        "properties": {
            "n": {"type": "integer"},
            "rows": {"type": "array", "minItems": 2_000, "maxItems": 3_000, "items": {"type": "integer"}},
        },
    }
    compiled = action("has(params.rows) && params.rows.size() + params.n > 3", "params.n > 5", params=schema)
    assert 1 < len(generated_cases(compiled, 100))


def test_no_params_no_cases(action: Make) -> None:
    """Where no params are found that fit the schema there are no cases."""
    schema = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"], "minProperties": 5}
    assert generated_cases(action("params.a == 'x'", params=schema), 10) == []


def schemas(depth: int = 2) -> st.SearchStrategy[dict[str, Any]]:
    """Schemas of every kind, as odd as the specification allows."""
    numbers = st.sampled_from([0, 1, -1, 2.0, 0.01, 5e-324, 2**40, 3, 2**53 - 1])
    sizes = st.sampled_from([0, 1, 3, 2**40])
    scalars = st.one_of(
        st.fixed_dictionaries({"enum": st.lists(st.sampled_from([1, 1.0, True, "a", None, [1], {"b": 2}]), min_size=1, unique_by=repr)}),
        st.fixed_dictionaries({"const": st.sampled_from(["x", 7, None])}),
        st.fixed_dictionaries(
            {"type": st.sampled_from(["number", "integer"])},
            optional={"minimum": numbers, "exclusiveMaximum": numbers, "multipleOf": st.sampled_from([0.01, 3, 5e-324])},
        ),
        st.fixed_dictionaries(
            {"type": st.sampled_from(["string", "boolean", "null", ["string", "null"]])},
            optional={"minLength": sizes, "maxLength": sizes, "pattern": st.sampled_from(["^[A-Z]+$", "a|b", "[^a]{3}"])},
        ),
    )
    if not depth:
        return scalars
    inner = schemas(depth - 1)
    return st.one_of(
        scalars,
        st.fixed_dictionaries(
            {"type": st.just("array")}, optional={"items": st.one_of(inner, st.booleans()), "minItems": sizes, "uniqueItems": st.booleans()}
        ),
        st.fixed_dictionaries({"type": st.just("object")}, optional={"additionalProperties": inner, "minProperties": sizes}),
        st.builds(lambda parts: {"anyOf": parts}, st.lists(inner, min_size=1, max_size=3)),
        st.builds(lambda parts: {"allOf": parts}, st.lists(inner, min_size=1, max_size=2)),
        objects(inner),
    )


def objects(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Objects with properties of any name, some of which must be there."""
    names = ["a", "b.c", "a b", "[]", "if", "$defs"]
    return st.builds(
        lambda properties, required: {"type": "object", "properties": properties, "required": required},
        st.dictionaries(st.sampled_from(names), inner, max_size=3),
        st.lists(st.sampled_from(names), max_size=2, unique=True),
    )


@settings(max_examples=60, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(schema=objects(schemas()))
def test_odd_schemas(action: Make, schema: dict[str, Any]) -> None:
    """Whatever a schema says, every case that is made fits it, and the engines agree on it."""
    compiled = action("proposal.risk > 0.5", "subject.id == 'x' || 1 + 1 == 3", "double(proposal.priority) * 2.0 > 9.0", params=schema)
    for generated in generated_cases(compiled, 30):
        assert compiled.violations(generated.params) == ()
        assert compiled.evaluate(generated.case, both=True) == compiled.evaluate_reference(generated.case)


@settings(max_examples=150, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(schema=objects(schemas()))
def test_what_fits_a_schema_reaches_the_engines(case: Callable[..., Case], schema: dict[str, Any]) -> None:
    """Params that fit their schema stay the same and are of the types that it gave them: no agent causes a CaseError."""
    compiled = compile_schema(schema, lambda *_: None)
    assume(compiled is not None)
    assert compiled is not None
    reader = Reader(typed_paths(compiled.type, "params"), ())
    for value in Sampler(schema, {}, Budget(WORK_MAX)).values(schema, "params"):
        wire = value_to_python(python_to_value(value))
        if isinstance(wire, dict) and not struct_problems(python_to_value(wire).struct_value, "params") and not compiled.violations(wire):
            typed = compiled.typed(wire)
            assert wire == typed
            reader.values(case().with_params(typed))


def typed_paths(type_: ValueType, path: str) -> Iterator[tuple[str, ValueType]]:
    """Everything that a condition can spell, with its type."""
    for name, field in type_.fields.items():
        if name.isidentifier():
            yield f"{path}.{name}", field.type
            yield from typed_paths(field.type, f"{path}.{name}")


@pytest.mark.parametrize("named", ["9999-12-31T23:59:59Z", "0001-01-01T00:00:00Z"])
def test_conditions_may_name_the_ends_of_the_calendar(action: Make, named: str) -> None:
    """Where a condition names a moment at an end of the calendar, cases are made all the same."""
    assert generated_cases(action(f"now < timestamp('{named}')", facts={}), 20)
