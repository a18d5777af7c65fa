"""The work that schemas of tools make: schemas that would stop a server or a runtime are refused, others are not."""

from __future__ import annotations

import json
from typing import Any

import pytest
from gavel.v1.tool_pb2 import ToolContract
from gavel_client.tools.contracts import shipped_contracts
from gavel_client.values import to_struct
from gavel_server.errors import ServiceError
from gavel_server.intake.schema_work import work_problem
from gavel_server.intake.tools import contract_registration

PARTS = "may check one value by more than 2000 parts, with references followed"
# Any JSON value; a tree; an alternative of shapes that recurse.
SOUND: list[dict[str, Any]] = [
    {"anyOf": [{"type": "string"}, {"type": "array", "items": {"$ref": "#"}}, {"additionalProperties": {"$ref": "#"}}]},
    {"properties": {"left": {"$ref": "#"}, "right": {"$ref": "#"}, "value": {"pattern": "^[a-z]{1,64}$"}}},
    {"$defs": {"a": {"items": {"$ref": "#/$defs/b"}}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
    {"$dynamicAnchor": "node", "properties": {"next": {"$dynamicRef": "#node"}}},
    {"properties": {"pattern": {"type": "string"}, "$ref": {"type": "string"}}},
    {"allOf": [{"$ref": "#"}]},
    {"properties": {str(number): {"enum": [1, {"$ref": 7}]} for number in range(1_500)}},
]


def _doubling(levels: int, keyword: str) -> dict[str, Any]:
    parts = {f"d{level}": {keyword: [{"$ref": f"#/$defs/d{level + 1}"}] * 2} for level in range(levels)}
    return {"$defs": {**parts, f"d{levels}": {"type": "string"}}, "$ref": "#/$defs/d0"}


# json.loads makes every mapping a value of its own, as a request does.
@pytest.mark.parametrize("schema", SOUND, ids=range(len(SOUND)))
def test_sound_schemas(schema: dict[str, Any]) -> None:
    """A schema may recurse, as long as it does not check a part of the value more often at each step."""
    assert "" == work_problem(json.loads(json.dumps(schema)))


def test_shipped_contracts() -> None:
    """The contracts that ship can be registered."""
    for contract in shipped_contracts():
        contract_registration(contract, "")


@pytest.mark.parametrize(
    "schema",
    [
        _doubling(40, "anyOf"),
        _doubling(40, "allOf"),
        json.loads(json.dumps(_doubling(40, "oneOf")).replace("#/$defs", "#/%24defs")),
        {"properties": {"a": {"allOf": [{"$ref": "#"}, {"$ref": "#"}]}}},
        {"anyOf": [{"items": {"$ref": "#"}}, {"items": {"$ref": "#"}, "minItems": 1}]},
        {"properties": {"a": {"$ref": "#"}}, "additionalProperties": {"$ref": "#"}, "patternProperties": {"^a": {"$ref": "#"}}},
        {"$anchor": "x", "items": {"oneOf": [{"$ref": "#x"}, {"$dynamicRef": "#x"}]}},
        {"properties": {"a": {"$ref": "#"}}, "unevaluatedProperties": False, "allOf": [{"properties": {"a": {"$ref": "#"}}}]},
    ],
)
def test_doubling(schema: dict[str, Any]) -> None:
    """A schema whose checks double at each step is refused, whether the steps are references or parts of the value."""
    assert PARTS == work_problem(json.loads(json.dumps(schema)))


def test_complicated_schemas() -> None:
    """A schema that cannot be measured in few steps is refused, and so is a reference that the measurement cannot follow."""
    wide: dict[str, Any] = {
        "items": {"anyOf": [{"properties": {str(name): {"anyOf": [{}] * 40} for name in range(40)}} for _ in range(40)]}
    }

    assert "is too complicated to be measured; simplify it" == work_problem(json.loads(json.dumps(wide)))
    itself = {"$id": "https://example.org/a.json", "items": {"$ref": "a.json"}}
    assert "has a reference that is not followed here, 'a.json'; use #/$defs/…" == work_problem(itself)
    hidden = {"$defs": {"a": {"$id": "https://example.org/a.json", **_doubling(40, "allOf")}}, "$ref": "#/$defs/a"}
    assert "has a part with an $id of its own; name it under $defs" == work_problem(json.loads(json.dumps(hidden)))


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ({"allOf": [{"pattern": f"a{number}"} for number in range(65)]}, "has 65 patterns; the limit is 64"),
        ({"patternProperties": {f"a{number}": {} for number in range(65)}}, "has 65 patterns; the limit is 64"),
        ({"pattern": "\\p{L}{150}"}, "is not a JSON Schema 2020-12"),
        ({"pattern": "(((a{1,100}){1,100}){1,10})"}, "is not a JSON Schema 2020-12"),
    ],
)
def test_patterns(schema: dict[str, Any], problem: str) -> None:
    """Patterns that take long to compile are refused, each and all together."""
    with pytest.raises(ServiceError, match=problem):
        contract_registration(ToolContract(name="a", version="1", argument_schema=to_struct(schema)), "")
