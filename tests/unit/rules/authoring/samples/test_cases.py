"""Sample cases fulfil their conditions, proofs of impossibility hold, and the same rules give the same cases."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from gavel_rules.authoring.samples.budget import Budget
from gavel_rules.authoring.samples.cases import WORK_MAX, CaseGenerator, case_generators, generate_cases
from gavel_rules.authoring.samples.values import Sampler
from gavel_rules.authoring.shipped_rule_sets import shipped_rule_set
from gavel_rules.language.cel.vocabulary import ValueType
from gavel_rules.language.document.params_schema import compile_schema
from gavel_rules.language.engines.case import Case, CaseReader
from gavel_rules.language.rule_set import CompiledAction, compile_rule_set
from gavel_rules.values import python_to_value, size_of, struct_problems, value_to_python
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tests.unit.rules.conftest import ACTION, rule_set_data
from tests.unit.rules.language.strategies import CASES, CONDITIONS

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
    """A case is found that fulfils the condition, and one that does not; both engines agree."""
    compiled = action(condition)
    generator = CaseGenerator(compiled)
    for value in (True, False):
        sample = generator.find_case([generator.formula(compiled, 0, value)]).sample
        assert sample is not None
        assert compiled.violations(sample.params) == ()
        verdict = compiled.evaluate(sample.case, cross_check=True)
        assert verdict == compiled.evaluate_reference(sample.case)
        assert (verdict.error, bool(verdict.matches)) == ("", value)


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
    """The proof that the last rule never decides names the rules that leave it no case."""
    witness = CaseGenerator(action(*conditions)).find_decided_case(len(conditions) - 1)
    assert (witness.sample, witness.impossible, witness.others) == (None, True, others)


def test_schema_bounds_are_used(action: Make) -> None:
    """Values that the schema excludes by an enumeration, a bound or an integer type are impossible."""
    schema = {
        "type": "object",
        "required": ["currency", "amount"],
        "properties": {"currency": {"enum": ["EUR", "USD"]}, "amount": {"type": "integer", "minimum": 1, "maximum": 9}},
    }
    for condition in ("params.currency == 'GBP'", "params.amount > 9", "params.amount < 1", "params.amount > 3 && params.amount < 4"):
        assert CaseGenerator(action(condition, params=schema)).find_decided_case(0).impossible


@pytest.mark.long
@settings(max_examples=30, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(conditions=st.lists(CONDITIONS, min_size=2, max_size=5), cases=st.lists(CASES, min_size=6, max_size=6))
def test_proofs_and_witnesses_hold(
    action: Make, case: Callable[..., Case], conditions: list[str], cases: list[tuple[dict[str, Any], ...]]
) -> None:
    """A rule that is proved impossible decides no case, and a rule decides its witness."""
    compiled = action(*conditions)
    generator = CaseGenerator(compiled, budget=Budget(200_000))
    matches = [compiled.evaluate_reference(case(params, facts, **rest)).matches[:1] for params, facts, rest in cases]
    for index, rule in enumerate(compiled.rules):
        witness = generator.find_decided_case(index)
        if witness.impossible:
            assert (rule,) not in matches
        if witness.sample is not None:
            assert compiled.evaluate(witness.sample.case, cross_check=True).matches[0] == rule


@pytest.mark.parametrize("compared", ["{0} != 9007199254740993.0", "{0} < -1e300", "{0} > -1e300", "{0} >= 9007199254740992"])
@pytest.mark.parametrize("path", ["params.count", "params.amount", "params.deep.whole", "facts.pieces", "facts.total"])
def test_numbers_stay_within_the_limits_of_admission(action: Make, path: str, compared: str) -> None:
    """Samples keep to the numbers that admission allows, even if a condition compares with others."""
    params = {
        "type": "object",
        "properties": {"deep": {"type": "object", "properties": {"whole": {"type": "integer"}}, "required": ["whole"]}},
    }
    params["properties"].update({"count": {"type": "integer"}, "amount": {"type": "number"}})  # type: ignore[attr-defined]
    params["required"] = ["count", "amount", "deep"]
    compiled = action(compared.format(path), params=params)
    generator = CaseGenerator(compiled)
    assert [] != [one for one in generate_cases(compiled, 20) if compiled.evaluate(one.case, True).disagreement is None]
    assert generator.find_decided_case(0).impossible == (compared == "{0} < -1e300")


def test_every_shipped_rule_decides_a_case() -> None:
    """Every shipped rule decides a generated case, the engines agree on all cases, and the cases are the same every time."""
    compiled = compile_rule_set(shipped_rule_set("refunds")).actions["refund.create"]
    cases = generate_cases(compiled, 100)
    deciding: set[str] = set()
    for sample in cases:
        verdict = compiled.evaluate(sample.case, cross_check=True)
        assert verdict == compiled.evaluate_reference(sample.case)
        deciding.update(rule.id for rule in verdict.matches[:1])
    assert deciding == {rule.id for rule in compiled.rules}
    assert repr(generate_cases(compiled, 100)) == repr(cases)
    assert len(generate_cases(compiled, 5)) == 5


def test_exhausted_budget_proves_nothing(action: Make) -> None:
    """With an exhausted budget nothing is found, and nothing is called impossible."""
    compiled = action("params.amount > 5 && params.amount < 5", "params.urgent")
    generator = CaseGenerator(compiled, budget=Budget(0))
    assert [generator.find_decided_case(index)[:2] for index in (0, 1)] == [(None, False), (None, False)]


def test_large_values_take_more_of_the_budget(action: Make) -> None:
    """The budget bounds the total size of the cases, so there are fewer large ones."""
    large = {"type": "array", "items": {"type": "integer"}, "default": list(range(500))}
    for properties in ({}, {f"p{number}": large for number in range(10)}):
        schema = {"type": "object", "required": [*properties, "x"], "properties": {**properties, "x": {"enum": list(range(60))}}}
        generator = CaseGenerator(action("params.x > 30", "params.x == 10", params=schema), budget=Budget(WORK_MAX // 10))
        cases = generate_cases(generator.action, 1_000, generator)
        assert sum(size_of(case.params) for case in cases) < WORK_MAX // 10
        assert (len(cases) < 10, generator.budget.exhausted) == (bool(properties), bool(properties))
        assert generator.budget.steps_used < WORK_MAX


def test_search_of_pairs_is_bounded(action: Make) -> None:
    """The search among many compared values ends with its budget."""
    names = [f"p{number}" for number in range(100)]
    schema = {"type": "object", "required": names, "properties": {name: {"enum": [f"{name}{by}" for by in range(60)]} for name in names}}
    compiled = action(*(f"params.{one} == params.{other}" for one, other in zip(names, names[7:], strict=False)), params=schema)
    generator = CaseGenerator(compiled, budget=Budget(WORK_MAX // 10))
    assert [] == generate_cases(compiled, 1_000, generator)[1:]
    assert generator.budget.exhausted


def test_unused_work_goes_to_the_next_action() -> None:
    """The actions of a document share its work, and each gets a minimum."""
    data = rule_set_data(["params.amount > 5"])
    data["actions"] = {f"a{number}.do": data["actions"][ACTION] for number in range(20)}
    data["rules"] = [{**data["rules"][0], "id": name, "action": name} for name in data["actions"]]
    compiled = compile_rule_set(json.dumps(data))
    assert [generator.action for generator in case_generators(compiled, 0) if generator.base is not None] == list(compiled.actions.values())
    assert [] == [generator for generator in case_generators(compiled) if generator.budget.exhausted]


def test_a_guard_on_a_path_without_samples(action: Make) -> None:
    """A guard that reads a path without sample values, such as a very long list, does not end the generation."""
    schema = {
        "type": "object",
        "required": ["n"],
        "properties": {
            "n": {"type": "integer"},
            "rows": {"type": "array", "minItems": 2_000, "maxItems": 3_000, "items": {"type": "integer"}},
        },
    }
    compiled = action("has(params.rows) && params.rows.size() + params.n > 3", "params.n > 5", params=schema)
    assert 1 < len(generate_cases(compiled, 100))


def test_no_params_no_cases(action: Make) -> None:
    """There are no cases if no params are found that fit the schema."""
    schema = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"], "minProperties": 5}
    assert generate_cases(action("params.a == 'x'", params=schema), 10) == []


def schemas(depth: int = 2) -> st.SearchStrategy[dict[str, Any]]:
    """Return schemas of every kind."""
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
    """Return object schemas with properties of any name, some of them required."""
    names = ["a", "b.c", "a b", "[]", "if", "$defs"]
    return st.builds(
        lambda properties, required: {"type": "object", "properties": properties, "required": required},
        st.dictionaries(st.sampled_from(names), inner, max_size=3),
        st.lists(st.sampled_from(names), max_size=2, unique=True),
    )


@pytest.mark.long
@settings(max_examples=60, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(schema=objects(schemas()))
def test_odd_schemas(action: Make, schema: dict[str, Any]) -> None:
    """Every generated case fits its schema, and the engines agree on it."""
    compiled = action("proposal.risk > 0.5", "subject.id == 'x' || 1 + 1 == 3", "double(proposal.priority) * 2.0 > 9.0", params=schema)
    for sample in generate_cases(compiled, 30):
        assert compiled.violations(sample.params) == ()
        assert compiled.evaluate(sample.case, cross_check=True) == compiled.evaluate_reference(sample.case)


@settings(max_examples=150, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(schema=objects(schemas()))
def test_valid_params_reach_the_engines(case: Callable[..., Case], schema: dict[str, Any]) -> None:
    """Valid params have the types of their schema, so they never cause a CaseError."""
    compiled = compile_schema(schema, lambda *_: None)
    assume(compiled is not None)
    assert compiled is not None
    reader = CaseReader(typed_paths(compiled.type, "params"), ())
    for value in Sampler(schema, {}, Budget(WORK_MAX)).values(schema, "params"):
        wire = value_to_python(python_to_value(value))
        if isinstance(wire, dict) and not struct_problems(python_to_value(wire).struct_value, "params") and not compiled.violations(wire):
            values = compiled.typed(wire)
            assert wire == values
            reader.read(case().with_params(values))


def typed_paths(type_: ValueType, path: str) -> Iterator[tuple[str, ValueType]]:
    """Yield every path that a condition can read, with its type."""
    for name, field in type_.fields.items():
        if name.isidentifier():
            yield f"{path}.{name}", field.type
            yield from typed_paths(field.type, f"{path}.{name}")


@pytest.mark.parametrize("named", ["9999-12-31T23:59:59Z", "0001-01-01T00:00:00Z"])
def test_constants_at_the_ends_of_the_calendar(action: Make, named: str) -> None:
    """Cases are generated even if a condition names a time at an end of the calendar."""
    assert generate_cases(action(f"now < timestamp('{named}')", facts={}), 20)
