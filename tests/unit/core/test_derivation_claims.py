"""A fact that claims to be derived is derived again, however little of the claim it makes (seeds 002 §4.7.3)."""

from __future__ import annotations

from typing import Any

import pytest
from gavel.v1 import common_pb2, error_pb2
from gavel.v1.common_pb2 import Producer
from gavel.v1.envelope_pb2 import Envelope
from gavel_rules.commands import Fault, PublishEvent
from gavel_rules.events import FACT_DERIVATION_REACTOR
from gavel_server.errors import ServiceError

from tests.unit.core.driver import Core, document, fact_envelope

CLAIMS: list[dict[str, Any]] = [
    {"execution_id": "exec_0123456789ab"},
    {"derivation_rule_id": "gavel.execution-status"},
    {"derivation_rule_version": 1},
    {"decision_id": "00000000-0000-4000-8000-000000000001"},
]


def claimed(claim: dict[str, Any]) -> Envelope:
    """A fact in the reactor's name that says so much of where it comes from."""
    envelope = fact_envelope("execution.refund.create.status", "SUCCESS")
    envelope.ClearField("event_id")
    envelope.producer.CopyFrom(Producer(type=common_pb2.PRODUCER_TYPE_SYSTEM, id=FACT_DERIVATION_REACTOR, version="1"))
    envelope.fact.ClearField("observed_from")
    for field, value in claim.items():
        setattr(envelope.fact, field, value)
    return envelope


@pytest.mark.parametrize("claim", CLAIMS)
def test_half_a_claim_is_malformed(claim: dict[str, Any]) -> None:
    """Derivation fields are required as soon as one is set, and everything that is missing is named at once."""
    envelope = claimed(claim)
    with pytest.raises(ServiceError) as caught:
        Core(document()).admitted(envelope)
    required = {"decision_id", "execution_id", "derivation_rule_id"}
    missing = {f"envelope.fact.{field}" for field in required - set(claim)}
    assert error_pb2.ERROR_REASON_INVALID_REQUEST == caught.value.reason
    assert missing <= {field for field, _ in caught.value.violations}


@pytest.mark.parametrize("claim", CLAIMS)
def test_the_core_takes_no_half_claim_either(claim: dict[str, Any]) -> None:
    """The decider itself, and so every replay, refuses a claim that no execution bears out."""
    core = Core(document())
    envelope = claimed(claim)
    envelope.event_id = core.new_id()
    answer = core.run(PublishEvent(envelope))
    assert isinstance(answer, Fault)
    assert error_pb2.ERROR_REASON_DERIVATION_MISMATCH == answer.reason
