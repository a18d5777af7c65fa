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


def no_divisor(arguments: Mapping[str, Any]) -> Action:
    """Divide by what the model has sent."""
    return Action("refund.create", "order/1", {"share": 1 / (len(arguments) - 1)})


@pytest.mark.parametrize("action_of", [missing, not_json, no_number, no_divisor])
async def test_arguments_without_an_action_are_refused(action_of: Any) -> None:
    """A call whose arguments give no usable action is refused by every question, without the text of the error."""
    gate = Gate(AsyncMock(), actions(action_of), agent="agent", executor="tools")
    for answer in (await gate(CALL), await gate.check(CALL), await gate.begin("decision", CALL)):
        assert isinstance(answer, Refused)
        assert CALL_INVALID == answer.reason
        assert "The tool was not called" in answer.message()
        assert CARD not in answer.message()


@pytest.mark.parametrize("problem", [OSError("away"), GavelError(grpc.StatusCode.UNAVAILABLE, "", "away"), RuntimeError("a bug")])
async def test_errors_that_are_not_the_models_are_raised(problem: Exception) -> None:
    """An error of an action's function that no other arguments can mend is raised: the call is not refused for good."""

    def away(arguments: Mapping[str, Any]) -> Action:
        raise problem

    with pytest.raises(type(problem)):
        await Gate(AsyncMock(), actions(away), agent="agent", executor="tools")(CALL)


@pytest.mark.parametrize("fields", [[], ["envelope.producer.id"], ["envelope.proposal.params", "envelope.trace_id"], ["subjects"]])
async def test_invalid_requests_that_are_not_the_models_are_raised(fields: list[str]) -> None:
    """A request that is invalid in a field that follows from no arguments, such as the agent's name, is an error of the application."""
    client = AsyncMock()
    violations = tuple(Violation(field, "is invalid") for field in fields)
    client.get_projection.side_effect = GavelError(grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST", "invalid", violations)
    with pytest.raises(GavelError, match="INVALID_REQUEST"):
        await Gate(client, actions(refund), agent="agent", executor="tools")(CALL)


@pytest.mark.parametrize("field", ["envelope.subject", "subject", "envelope.proposal.params.order"])
async def test_a_proposal_that_gavel_does_not_take_is_refused(field: str, caplog: pytest.LogCaptureFixture) -> None:
    """A call whose proposal is invalid by the contract is refused and logged, and the model reads which field is."""
    client = AsyncMock()
    violations = (Violation(field, "is not type/id"),)
    client.get_projection.side_effect = GavelError(grpc.StatusCode.INVALID_ARGUMENT, "INVALID_ENVELOPE", "invalid", violations)
    gate = Gate(client, actions(refund), agent="agent", executor="tools")
    for answer in (await gate(CALL), await gate.check(CALL)):
        assert isinstance(answer, Refused)
        assert CALL_INVALID == answer.reason
        assert f"{field}: is not type/id" in answer.message()
    assert 2 == caplog.text.count("INVALID_ENVELOPE")


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
