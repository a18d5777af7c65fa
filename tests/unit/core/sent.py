"""Envelopes as they are sent: the smallest valid one of each payload, changes to them, and what is said of those refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from gavel.v1 import common_pb2, error_pb2, execution_pb2
from gavel.v1.common_pb2 import EventReference, Producer
from gavel.v1.diagnostic_pb2 import AgentDiagnostic
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.execution_pb2 import Execution
from gavel.v1.fact_pb2 import Fact
from gavel.v1.observation_pb2 import Observation
from gavel.v1.proposal_pb2 import Proposal
from gavel.v1.tool_pb2 import ToolCall, ToolResult
from gavel_rules.values import python_to_value
from gavel_server.admission import admit
from gavel_server.errors import ServiceError

from tests.unit.core.driver import AGENT, ALL_PAYLOADS, EXECUTOR, SUBJECT, event_id

Change = Callable[[Any], object]
API = Producer(type=common_pb2.PRODUCER_TYPE_API, id="orders-db")
UUID = event_id(5)


def sent_proposal() -> Envelope:
    """The smallest valid proposal."""
    proposal = Proposal(action_type="refund.create", max_fact_age_ms=1, based_on_events=[EventReference(event_id=UUID, sequence_number=1)])
    return Envelope(subject=SUBJECT, producer=AGENT, proposal=proposal)


def sent_fact() -> Envelope:
    """The smallest valid fact."""
    return Envelope(subject=SUBJECT, producer=API, fact=Fact(key="order.status", value=python_to_value("x")))


def sent_observation() -> Envelope:
    """The smallest valid observation."""
    observation = Observation(source_tool="fraud-tool", extracted_fields={"order.score": python_to_value(1)})
    return Envelope(subject=SUBJECT, producer=AGENT, observation=observation)


def sent_tool_call() -> Envelope:
    """The smallest valid tool call."""
    return Envelope(subject=SUBJECT, producer=AGENT, tool_call=ToolCall(tool_name="fs.read_text"))


def sent_tool_result() -> Envelope:
    """The smallest valid tool result."""
    return Envelope(subject=SUBJECT, producer=AGENT, tool_result=ToolResult(tool_name="fs.read_text", content_hash="sha256:1"))


def sent_diagnostic() -> Envelope:
    """The smallest valid diagnostic."""
    return Envelope(subject=SUBJECT, producer=AGENT, agent_diagnostic=AgentDiagnostic(kind="NodeEntered"))


def sent_execution() -> Envelope:
    """The smallest valid report of an execution."""
    execution = Execution(decision_id=UUID, execution_id="exec_00000000000a", status=execution_pb2.EXECUTION_STATUS_SUCCESS)
    return Envelope(producer=EXECUTOR, execution=execution)


VALID: dict[str, Callable[[], Envelope]] = {
    "proposal": sent_proposal,
    "fact": sent_fact,
    "observation": sent_observation,
    "tool_call": sent_tool_call,
    "tool_result": sent_tool_result,
    "agent_diagnostic": sent_diagnostic,
    "execution": sent_execution,
}


def put(path: str, value: object) -> Change:
    """Set a field; a message is copied, a list replaced, a dict updated."""

    def change(envelope: Envelope) -> None:
        target: Any = envelope
        *steps, last = path.split(".")
        for step in steps:
            target = getattr(target, step)
        if hasattr(value, "DESCRIPTOR"):
            getattr(target, last).CopyFrom(value)
        elif isinstance(value, list):
            del getattr(target, last)[:]
            getattr(target, last).extend(value)
        elif isinstance(value, dict):
            getattr(target, last).update(value)
        else:
            setattr(target, last, value)

    return change


def refused(envelope: Envelope, payloads: frozenset[str] = ALL_PAYLOADS, bus: str = "default") -> ServiceError:
    """Send an envelope that must be refused; nothing may have been filled in that would hide why."""
    with pytest.raises(ServiceError) as caught:
        admit(envelope, bus, payloads)
    return caught.value


def fields(error: ServiceError) -> list[str]:
    """The fields that are violated; it must be bad input."""
    assert error_pb2.ERROR_REASON_INVALID_REQUEST == error.reason, error
    return [field for field, _ in error.violations]
