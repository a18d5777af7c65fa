"""Definitions of tools: their names, digests and contracts, and definitions that cannot be used."""

from __future__ import annotations

from typing import Any

import pytest
from gavel_client.mcp.errors import DefinitionError
from gavel_client.mcp.upstreams.definitions import READ_EFFECT, WRITE_EFFECT, define
from gavel_client.tools.schemas import Schemas
from gavel_rules.tools.guard import guard
from mcp_types import Tool, ToolAnnotations


def _tool(**changes: Any) -> Tool:
    return Tool(**{"name": "Get-Sum", "description": "Adds.", "input_schema": {"type": "object"}, **changes})


def _digest(**changes: Any) -> str:
    definitions, problems = define("all", [_tool(**changes)])
    assert [] == problems
    return next(iter(definitions.values())).digest


def test_names() -> None:
    """A tool has the server's name before its own, in lower case; clients see a name that every model accepts."""
    definitions, problems = define("all", [_tool()])

    assert ([], ["Get-Sum"]) == (problems, list(definitions))
    assert ("all.get-sum", "all__get-sum") == (definitions["Get-Sum"].name, definitions["Get-Sum"].exposed_name)


@pytest.mark.parametrize(
    "change",
    [
        {"description": "Adds numbers."},
        {"title": "Sum"},
        {"input_schema": {"type": "object", "properties": {"a": {"description": "first"}}}},
        {"output_schema": {"type": "object"}},
        {"annotations": ToolAnnotations(read_only_hint=True)},
    ],
)
def test_every_change_has_another_digest(change: dict[str, Any]) -> None:
    """A digest pins the whole definition: texts, schemas and hints."""
    assert _digest() == _digest()
    assert _digest() != _digest(**change)


def test_unusable_tools() -> None:
    """Tools with unusable names, or names that differ only in case or punctuation, are left out with a reason."""
    definitions, problems = define("all", [_tool(), _tool(name="get-SUM"), _tool(name="a b"), _tool(name=""), _tool(name="fine")])

    assert ["fine"] == list(definitions)
    assert 3 == len(problems)
    assert "all lists several tools that would be named all.get-sum; they are left out" in problems


def test_contracts() -> None:
    """A contract has the digest as its version, and its effects decide whether an agent may call the tool."""
    definition = define("all", [_tool()])[0]["Get-Sum"]
    reads, writes = definition.contract(effect=READ_EFFECT), definition.contract(effect=WRITE_EFFECT)

    assert ("all.get-sum", definition.digest, ["all__get-sum"]) == (reads.name, reads.version, list(reads.aliases))
    assert (True, False) == (guard(reads).agents_may_call, guard(writes).agents_may_call)


def test_result_schemas() -> None:
    """The schema of structured content holds inside the contract's, also if it refers to its own parts."""
    output_schema = {"type": "object", "properties": {"n": {"$ref": "#/$defs/number"}}, "$defs": {"number": {"type": "number"}}}
    contract = define("all", [_tool(output_schema=output_schema)])[0]["Get-Sum"].contract(effect=READ_EFFECT)
    schemas = Schemas()

    problems = [
        schemas.problem(contract.result_schema, {"content": [], "structuredContent": content}, "result")
        for content in ({"n": 1}, {"n": "1"})
    ]

    assert "" == problems[0]
    assert problems[1].startswith("result/structuredContent/n")


def test_oversized_schemas() -> None:
    """A schema that no contract can hold is an error."""
    schema = {"type": "object", "properties": {f"property{number}": {"type": "string"} for number in range(3_000)}}
    definition = define("all", [_tool(input_schema=schema)])[0]["Get-Sum"]

    with pytest.raises(DefinitionError, match="larger than"):
        definition.contract(effect=READ_EFFECT)
