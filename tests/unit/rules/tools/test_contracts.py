"""Tool contracts: hashes of schemas, and which changes keep the promises of a version (constitution 004)."""

from __future__ import annotations

import json
from typing import Any

import jsonschema_rs
import pytest
from gavel.v1.tool_pb2 import ToolContract
from gavel_rules.tools.contracts import breaking_changes, schema_hash
from google.protobuf.json_format import ParseDict
from hypothesis import given
from hypothesis import strategies as st

PATH: dict[str, Any] = {"type": "object", "additionalProperties": False, "required": ["path"], "properties": {"path": {"type": "string"}}}


def contract(arguments: Any = None, result: Any = None) -> ToolContract:
    """Return a contract with two schemas."""
    schemas = {"argument_schema": arguments or {}, "result_schema": result or {}}
    return ParseDict({"name": "fs.read_text", "version": "1", **schemas}, ToolContract())


def test_the_hash_is_that_of_the_canonical_json() -> None:
    """The hash does not depend on the order of keys, or on anything but the schemas; it depends on both schemas."""
    reordered = json.loads(json.dumps(PATH, sort_keys=True))
    other = contract(reordered)
    other.side_effects.append("workspace.fs.read")
    assert schema_hash(contract(PATH)) == schema_hash(other)
    assert len({schema_hash(one) for one in (contract(), contract(PATH), contract(None, PATH), contract(PATH, PATH))}) == 4
    # printf '{"argument_schema":{},"result_schema":{}}' | sha256sum
    assert "sha256:235faa6ba4c244805cd3b95244d2bb75" == schema_hash(contract())


@pytest.mark.parametrize(
    ("arguments", "broken"),
    [
        ({**PATH, "title": "Where", "properties": {"path": {"type": "string", "description": "A file."}}}, []),
        ({**PATH, "properties": {**PATH["properties"], "limit": {"type": "integer"}}}, []),
        ({**PATH, "required": []}, []),
        ({**PATH, "additionalProperties": True}, []),
        ({**PATH, "required": ["path", "limit"]}, ["argument_schema.required"]),
        ({**PATH, "properties": {}}, ["argument_schema.properties.path"]),
        ({**PATH, "properties": {"path": {"type": "integer"}}}, ["argument_schema.properties.path.type"]),
        ({**PATH, "properties": {"path": {"type": ["string", "null"]}}}, []),
        ({**PATH, "properties": {"path": {"type": "string", "maxLength": 3}}}, ["argument_schema.properties.path.maxLength"]),
        ({**PATH, "unevaluatedProperties": False}, ["argument_schema.unevaluatedProperties"]),
    ],
)
def test_changes_of_arguments(arguments: Any, broken: list[str]) -> None:
    """Arguments that were valid stay valid, or the change is named."""
    assert broken == breaking_changes(contract(PATH), contract(arguments))


@pytest.mark.parametrize(
    ("result", "broken"),
    [
        ({**PATH, "required": ["path"], "minProperties": 1}, []),
        ({**PATH, "properties": {"path": {"type": "string", "maxLength": 3}}}, []),
        ({**PATH, "required": []}, ["result_schema.required"]),
        ({**PATH, "properties": {**PATH["properties"], "size": {"type": "integer"}}}, ["result_schema.properties.size"]),
        ({}, ["result_schema.additionalProperties", "result_schema.properties.path", "result_schema.required", "result_schema.type"]),
    ],
)
def test_changes_of_results(result: Any, broken: list[str]) -> None:
    """Results mean what they meant: whatever the new schema allows, the old one allowed, or the change is named."""
    assert broken == breaking_changes(contract(None, PATH), contract(None, result))


@pytest.mark.parametrize("others", [{"unevaluatedProperties": False}, {"patternProperties": {"^s": False}}])
def test_properties_beside_keywords_for_others(others: Any) -> None:
    """A property comes or goes as a break where another keyword than additionalProperties speaks of the properties without a name."""
    before = {"properties": {"path": {"type": "string"}}, **others}
    after = {"properties": {**before["properties"], "size": {"type": "integer"}}, **others}
    assert ["result_schema.properties.size"] == breaking_changes(contract(None, before), contract(None, after))
    assert ["result_schema.properties.size"] == breaking_changes(contract(None, after), contract(None, before))


@pytest.mark.parametrize("speaker", [{"allOf": [{"properties": {"size": {}}}]}, {"additionalProperties": {"type": "string"}}])
def test_keywords_that_unevaluated_properties_depend_on(speaker: dict[str, Any]) -> None:
    """What speaks of properties beside `unevaluatedProperties` may not leave arguments or come to results: its absence forbids them."""
    closed: dict[str, Any] = {"unevaluatedProperties": False}
    (keyword,) = speaker
    assert [f"argument_schema.{keyword}"] == breaking_changes(contract({**closed, **speaker}), contract(closed))
    assert [f"result_schema.{keyword}"] == breaking_changes(contract(None, closed), contract(None, {**closed, **speaker}))


SMALL = st.sampled_from([0, 1, 2])
SCALARS = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["string", "integer", ["string", "integer"]]),
        "enum": st.lists(st.sampled_from(["", "a", "bb", 0, 1, 2]), min_size=1, max_size=3, unique_by=repr),
        "minimum": SMALL,
        "maximum": SMALL,
        "minLength": SMALL,
        "maxLength": SMALL,
        "title": st.just("x"),
        "not": st.sampled_from([{"const": 1}, {"const": "a"}]),
    },
)
SCHEMAS = st.fixed_dictionaries(
    {"type": st.just("object")},
    optional={
        "properties": st.dictionaries(st.sampled_from(["a", "b"]), SCALARS, max_size=2),
        "required": st.lists(st.sampled_from(["a", "b"]), max_size=2, unique=True),
        "additionalProperties": st.sampled_from([True, False, {"type": "string"}]),
        "maxProperties": SMALL,
    },
)
VALUES = st.dictionaries(st.sampled_from(["a", "b", "c"]), st.sampled_from(["", "a", "bb", 0, 1, 2, None]), max_size=3)


@given(SCHEMAS, SCHEMAS, st.lists(VALUES, max_size=20))
def test_a_change_without_breaks_keeps_the_promises(before: Any, after: Any, values: list[Any]) -> None:
    """If nothing is said to break, old arguments are valid under the new schema, and new results under the old one."""
    old, new = jsonschema_rs.Draft202012Validator(before), jsonschema_rs.Draft202012Validator(after)
    if not breaking_changes(contract(before), contract(after)):
        assert all(new.is_valid(value) for value in values if old.is_valid(value))
    if not breaking_changes(contract(None, before), contract(None, after)):
        assert all(old.is_valid(value) for value in values if new.is_valid(value))
