"""Calls that cannot be proposed, because of what a model has written."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any
from unittest.mock import AsyncMock

import grpc
import pytest
from gavel_client import GavelError
from gavel_client.gate import Action, Call, Gate, Refused, SyncGate, ToolActions
from gavel_client.gate.gate import CALL_INVALID
from gavel_client.rpc.errors import Violation

CARD = "4711-0815"
CALL = Call("refund", {"order": CARD}, "task-1")
VIOLATION = Violation("envelope.subject", "is not type/id")


def actions(action_of: Any) -> ToolActions:
    """Return a table with one tool."""
    table = ToolActions()
    table.tool("refund")(action_of)
    return table


def missing(arguments: Mapping[str, Any]) -> Action:
    """Read an argument that the model has left out, and say what it has sent."""
    raise KeyError(str(arguments))


def not_json(arguments: Mapping[str, Any]) -> Action:
    """Return params that are not JSON."""
    return Action("refund.create", "order/1", {"orders": {arguments["order"]}})


def no_number(arguments: Mapping[str, Any]) -> Action:
    """Return a risk that is a text of the model."""
    return Action("refund.create", "order/1", {}, risk=arguments["order"])


def refund(arguments: Mapping[str, Any]) -> Action:
    """Return an action."""
    return Action("refund.create", f"order/{arguments['order']}", {})


@pytest.mark.parametrize("action_of", [missing, not_json, no_number])
async def test_arguments_without_an_action_are_refused(action_of: Any) -> None:
    """A call whose arguments give no usable action is refused by every question, without the text of the error."""
    gate = Gate(AsyncMock(), actions(action_of), agent="agent", executor="tools")
    for answer in (await gate(CALL), await gate.check(CALL), await gate.begin("decision", CALL)):
        assert isinstance(answer, Refused)
        assert CALL_INVALID == answer.reason
        assert "The tool was not called" in answer.message()
        assert CARD not in answer.message()


async def test_a_proposal_that_gavel_does_not_take_is_refused() -> None:
    """A call whose proposal is invalid by the contract is refused, and the model reads which field is."""
    client = AsyncMock()
    client.get_projection.side_effect = GavelError(grpc.StatusCode.INVALID_ARGUMENT, "INVALID_ENVELOPE", "invalid", (VIOLATION,))
    gate = Gate(client, actions(refund), agent="agent", executor="tools")
    for answer in (await gate(CALL), await gate.check(CALL)):
        assert isinstance(answer, Refused)
        assert CALL_INVALID == answer.reason
        assert "envelope.subject: is not type/id" in answer.message()


async def test_other_errors_of_gavel_are_raised() -> None:
    """A gate whose agent lacks a right raises: no change of the call helps."""
    client = AsyncMock()
    client.get_projection.side_effect = GavelError(grpc.StatusCode.PERMISSION_DENIED, "RIGHT_LACKING", "lacks read")
    with pytest.raises(GavelError, match="RIGHT_LACKING"):
        await Gate(client, actions(refund), agent="agent", executor="tools")(CALL)


async def test_a_synchronous_gate_refuses_such_calls_too() -> None:
    """A SyncGate refuses a call whose arguments give no usable action."""
    client: Any = object()
    gate = SyncGate(client, actions(missing), agent="agent", executor="tools")
    answer = await asyncio.to_thread(gate, CALL)
    assert isinstance(answer, Refused)
    assert CALL_INVALID == answer.reason
