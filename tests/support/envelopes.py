"""Envelopes for tests of admission: the smallest valid one of each payload, changes to them, and their refusal."""

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
from gavel_server.errors import ServiceError
from gavel_server.intake.admission import admit

from tests.support.driver import AGENT, ALL_PAYLOADS, EXECUTOR, SUBJECT, event_id
from tests.support.hashes import sha256_of

Change = Callable[[Any], object]
API = Producer(type=common_pb2.PRODUCER_TYPE_API, id="orders-db")
UUID = event_id(5)


def valid_proposal() -> Envelope:
    """Return the smallest valid proposal."""
    proposal = Proposal(action_type="refund.create", max_fact_age_ms=1, based_on_events=[EventReference(event_id=UUID, sequence_number=1)])
    return Envelope(subject=SUBJECT, producer=AGENT, proposal=proposal)


def valid_fact() -> Envelope:
    """Return the smallest valid fact."""
    return Envelope(subject=SUBJECT, producer=API, fact=Fact(key="order.status", value=python_to_value("x")))


def valid_observation() -> Envelope:
    """Return the smallest valid observation."""
    observation = Observation(
        source_tool="fraud-tool", evidence_ref=UUID, confidence=0.5, extracted_fields={"order.score": python_to_value(1)}
    )
    return Envelope(subject=SUBJECT, producer=AGENT, observation=observation)


def valid_tool_call() -> Envelope:
    """Return the smallest valid tool call."""
    return Envelope(subject=SUBJECT, producer=AGENT, tool_call=ToolCall(tool_name="fs.read_text"))


def valid_tool_result() -> Envelope:
    """Return the smallest valid tool result."""
    return Envelope(subject=SUBJECT, producer=AGENT, tool_result=ToolResult(tool_name="fs.read_text", content_hash=sha256_of("1")))


def valid_diagnostic() -> Envelope:
    """Return the smallest valid diagnostic."""
    return Envelope(subject=SUBJECT, producer=AGENT, agent_diagnostic=AgentDiagnostic(kind="NodeEntered"))


def valid_execution() -> Envelope:
    """Return the smallest valid report of an execution."""
    execution = Execution(decision_id=UUID, execution_id="exec_00000000000a", status=execution_pb2.EXECUTION_STATUS_SUCCESS)
    return Envelope(producer=EXECUTOR, execution=execution)


VALID: dict[str, Callable[[], Envelope]] = {
    "proposal": valid_proposal,
    "fact": valid_fact,
    "observation": valid_observation,
    "tool_call": valid_tool_call,
    "tool_result": valid_tool_result,
    "agent_diagnostic": valid_diagnostic,
    "execution": valid_execution,
}


def set_field(path: str, value: object) -> Change:
    """Return a change that sets a field: a message is copied, a list replaced, a dict updated."""

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


def refusal(envelope: Envelope, payloads: frozenset[str] = ALL_PAYLOADS, bus: str = "default") -> ServiceError:
    """Admit an envelope that must be refused, and return the error."""
    with pytest.raises(ServiceError) as error_info:
        admit(envelope, bus, payloads)
    return error_info.value


def fields(error: ServiceError) -> list[str]:
    """Return the violated fields of an invalid request."""
    assert error_pb2.ERROR_REASON_INVALID_REQUEST == error.reason, error
    return [field for field, _ in error.violations]
