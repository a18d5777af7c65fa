"""Schemas of params: what violates them, the types that values get, and schemas that would cost too much."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import pytest
from gavel_rules.errors import CaseError
from gavel_rules.language.document.params_schema import compile_schema
from gavel_rules.language.document.schema_check import resolve_reference
from gavel_rules.language.rule_set import compile_rule_set

Refusals = Callable[[str], list[tuple[int, int, str]]]
Document = Callable[..., dict[str, Any]]


def test_violations(document: Document) -> None:
    """Violations are (pointer, keyword), sorted, one for every mistake in the params."""
    properties = {
        "a/b": {"type": "string"},
        "n": {"type": "integer"},
        "m": {"enum": ["x"]},
        "l": {"type": "array", "items": {"maximum": 1}},
    }
    params = {"type": "object", "required": ["n"], "additionalProperties": False, "properties": properties}
    action = compile_rule_set(json.dumps(document(["true"], params=params, facts={}))).actions["thing.do"]
    assert action.violations({"n": 5.0}) == ()
    assert action.violations({"a/b": 1.0, "m": "y", "l": [0.0, 2.0], "z": 1.0}) == (
        ("/a~1b", "type"),
        ("/l/1", "maximum"),
        ("/m", "enum"),
        ("/n", "required"),
        ("/z", "additionalProperties"),
    )
    assert action.violations({"n": 5.5}) == (("/n", "type"),)
    assert action.violations({"n": True}) == (("/n", "type"),)


def test_violations_of_large_params_cost_no_more_than_checking_them(document: Document) -> None:
    """For large params only top-level properties are reported, because finding all violations takes too much work."""
    choices = {"anyOf": [{"maximum": number} for number in range(100)]}
    properties = {"rows": {"type": "array", "items": choices}, "n": {"type": "integer"}}
    action = compile_rule_set(json.dumps(document(["true"], params={"type": "object", "properties": properties}, facts={}))).actions[
        "thing.do"
    ]
    small = {"rows": [1_000.0] * 10, "n": 0.5}
    assert action.violations(small) == (("/n", "type"), *((f"/rows/{index}", "anyOf") for index in range(10)))
    assert action.violations({**small, "rows": [1_000.0] * 20_000}) == (("/n", "properties"), ("/rows", "properties"))
    assert action.violations({**small, "rows": [1_000.0] * 60_000}) == (("", "too-large"),)
    assert action.violations({"n": 1.0, "rows": [99.0] * 20_000}) == ()


@pytest.mark.parametrize(("module", "raised"), [("pyo3_runtime", CaseError), ("elsewhere", BaseException)])
def test_a_panic_of_the_schema_library_is_an_error(module: str, raised: type[BaseException]) -> None:
    """A panic of the library, a BaseException, becomes a CaseError; any other BaseException passes through."""

    class Panic(BaseException):
        """The panic of the library."""

    Panic.__module__ = module

    class Panicking:
        """A validator that panics."""

        def is_valid(self, value: object) -> bool:
            """Panic."""
            raise Panic

    panicking: Any = Panicking()
    schema = compile_schema({"type": "object"}, lambda *_: None)
    assert schema is not None
    with pytest.raises(raised) as failure:
        dataclasses.replace(schema, _validator=panicking).violations({})
    assert (raised is BaseException) == isinstance(failure.value, Panic)


def test_the_type_of_literals_is_that_of_the_canonical_form(document: Document) -> None:
    """1.0 is an integer, because canonical JSON writes it as 1: a document and its canonical form decide alike."""
    properties = {"a": {"enum": [1.0, 2.0]}, "b": {"const": 4.0}, "c": {"enum": [1, 2.5]}}
    params = {"type": "object", "required": ["a", "b", "c"], "properties": properties}
    compiled_document = compile_rule_set(json.dumps(document(["params.a / params.b == 0"], params=params, facts={})))
    for rule_set in (compiled_document, compile_rule_set(compiled_document.canonical_json)):
        assert rule_set.actions["thing.do"].typed_params({"a": 2.0, "b": 4.0, "c": 1.0}) == {"a": 2, "b": 4, "c": 1.0}
        types = rule_set.actions["thing.do"].environment.types
        assert [types[f"params.{name}"].kind for name in "abc"] == ["int", "int", "double"]


def test_values_under_pattern_properties_are_not_converted(document: Document) -> None:
    """`patternProperties` may allow other types than `additionalProperties`: such values are not converted to the latter's type."""
    limits = {"type": "object", "additionalProperties": {"type": "integer"}, "patternProperties": {"^x": {"type": "number"}}}
    params = {"type": "object", "required": ["limits"], "properties": {"limits": limits}}
    action = compile_rule_set(json.dumps(document(["true"], params=params, facts={}))).actions["thing.do"]
    assert action.typed_params({"limits": {"x1": 1.5}}) == {"limits": {"x1": 1.5}}


def test_typed_params(document: Document) -> None:
    """The wire's floats become integers where the schema declares them, at every depth, and nowhere else."""
    properties = {
        "n": {"type": "integer"},
        "x": {"type": "number"},
        "grade": {"enum": [1, 2]},
        "open": {},
        "deep": {"type": "object", "properties": {"ns": {"type": "array", "items": {"$ref": "#/$defs/count"}}}},
        "counts": {"type": "object", "additionalProperties": {"type": "integer"}},
    }
    params = {"type": "object", "$defs": {"count": {"type": "integer"}}, "properties": properties}
    action = compile_rule_set(json.dumps(document(["true"], params=params, facts={}))).actions["thing.do"]
    wire = {"n": 1.0, "x": 2, "grade": 1.0, "open": 1.0, "deep": {"ns": [1.0, 2.0]}, "counts": {"a": 1.0}}
    values = action.typed_params(wire)
    assert repr(values) == repr({"n": 1, "x": 2.0, "grade": 1, "open": 1.0, "deep": {"ns": [1, 2]}, "counts": {"a": 1}})
    assert repr(wire["n"]) == "1.0"


def test_schema_that_grows_is_refused(refusals: Refusals, document: Document) -> None:
    """References that double a schema at every step are refused: validation could take exponential time."""
    definitions = {f"d{depth}": {"anyOf": [{"items": {"$ref": f"#/$defs/d{depth + 1}"}}] * 4} for depth in range(12)}
    params = {"type": "object", "$defs": {**definitions, "d12": {}}, "properties": {"x": {"$ref": "#/$defs/d0"}}}
    assert [code for _, _, code in refusals(json.dumps(document(["true"], params=params)))] == ["schema-too-large"]


@pytest.mark.parametrize("keyword", ["unevaluatedProperties", "unevaluatedItems"])
@pytest.mark.parametrize("around", ["allOf", "anyOf", "oneOf", "if", "not", "contains"])
def test_unevaluated_keywords_multiply_the_cost(
    document: Callable[..., dict[str, Any]], refusals: Refusals, keyword: str, around: str
) -> None:
    """Each level inside an unevaluated… keyword multiplies the work of validation, so only few levels are allowed."""

    def nested(depth: int) -> dict[str, Any]:
        inner = nested(depth - 1) if depth else {"type": "boolean"}
        return {around: [inner] if around.endswith("Of") else inner, keyword: {"type": "boolean"}}

    def codes(depth: int) -> list[str]:
        params = {"type": "object", "properties": {"a": nested(depth)}}
        return [code for _, _, code in refusals(json.dumps(document(["true"], params=params)))]

    assert [[], ["schema-too-large"]] == [codes(4), codes(6)]


def test_recursive_schema_is_refused(refusals: Refusals, document: Document) -> None:
    """A reference that recurses is refused, also through another one."""
    definitions = {"a": {"items": {"$ref": "#/$defs/b"}}, "b": {"anyOf": [{"$ref": "#/$defs/a"}]}}
    params = {"type": "object", "$defs": definitions, "properties": {"x": {"$ref": "#/$defs/a"}}}
    assert {code for _, _, code in refusals(json.dumps(document(["true"], params=params)))} == {"schema-reference"}


def test_references_are_read_as_the_library_reads_them() -> None:
    """A reference may be percent-encoded, and an index may have a sign and leading zeros; other digits name nothing."""
    part = {"type": "string"}
    schema = {"$defs": {"a b": part, "list": [part]}}
    for reference in ("#/$defs/a%20b", "#/$defs/list/0", "#/$defs/list/+0", "#/$defs/list/000"):
        assert part is resolve_reference(schema, reference)
    for reference in ("#/$defs/list/1", "#/$defs/list/²", "#/$defs/list/-0", "#/$defs/list/" + "9" * 5_000):
        with pytest.raises(LookupError):
            resolve_reference(schema, reference)
