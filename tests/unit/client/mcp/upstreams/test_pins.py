"""Pins: a tool is open only if the registry and the configuration name its definition. tests/e2e/mcp/test_drift.py has the rest."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from gavel.v1.tool_pb2 import ToolContract
from gavel_client import GavelError
from gavel_client.mcp.configuration import Configuration
from gavel_client.mcp.upstreams.definitions import ToolDefinition
from gavel_client.mcp.upstreams.pins import Pins
from mcp_types import Tool

OLD, LISTED, OTHER = (f"sha256:{digit * 64}" for digit in "123")
DEFINITION = ToolDefinition("ledger", Tool(name="append", input_schema={"type": "object"}), "ledger.append", LISTED)
UNNAMED = "the definition is not the one that the configuration names"
CHANGED = "its schemas have changed"


class Registry:
    """A client whose server has the contract of a tool with the version `version`; "": it has none."""

    bus = "main"

    def __init__(self, version: str) -> None:
        self.version = version

    async def resolve_tool(self, name: str, *, canonical_only: bool) -> Any:
        """Resolve a tool."""
        if not self.version:
            raise GavelError(grpc.StatusCode.NOT_FOUND, "TOOL_NOT_FOUND", "there is no such tool")
        return SimpleNamespace(contract=ToolContract(name=name, version=self.version))

    async def register_contract(self, contract: ToolContract) -> None:
        """Register a contract."""
        self.version = contract.version

    async def publish_event(self, envelope: object) -> None:
        """Record an event."""


@pytest.mark.parametrize(
    ("configured", "registered", "expected"),
    [
        ("", "", ""),
        ("", LISTED, ""),
        ("", OLD, CHANGED),
        (LISTED, "", ""),
        (LISTED, LISTED, ""),
        (LISTED, OLD, CHANGED),
        (OLD, "", UNNAMED),
        (OLD, OLD, CHANGED),
        (OLD, LISTED, UNNAMED),
        (OTHER, OLD, CHANGED),
    ],
)
async def test_definitions_that_are_open(configured: str, registered: str, expected: str) -> None:
    """A tool is open if the definition that its server lists is the registered one, and the configuration names no other one."""
    tools = {"append": {"digest": configured}}
    configuration = Configuration.model_validate(
        {"agent": {"id": "coding-agent"}, "servers": {"ledger": {"command": ["x"], "tools": tools}}}
    )
    client: Any = Registry(registered)

    pins = Pins(client, configuration, "mcp-proxy")
    closed = await pins.check_one(DEFINITION)

    assert expected == ("" if closed is None else closed.reason.removeprefix("ledger.append is closed: ").partition(".")[0])
    assert closed is None or closed.drifted
    assert (expected == CHANGED) is bool(pins.changes(DEFINITION))  # what a person who accepts the definition has to see
