"""A fact with any derivation field is derived again and compared (constitution §4.7.3)."""

from __future__ import annotations

from typing import Any

import pytest
from gavel.v1 import common_pb2, error_pb2
from gavel.v1.common_pb2 import Producer
from gavel.v1.envelope_pb2 import Envelope
from gavel_rules.commands import Fault, PublishEvent
from gavel_rules.events.kinds import FACT_DERIVATION_REACTOR
from gavel_server.errors import ServiceError

from tests.support.driver import Core, document, fact_envelope

CLAIMS: list[dict[str, Any]] = [
    {"execution_id": "exec_0123456789ab"},
    {"derivation_rule_id": "gavel.execution-status"},
    {"derivation_rule_version": 1},
    {"decision_id": "00000000-0000-4000-8000-000000000001"},
]


def derived_fact(claim: dict[str, Any]) -> Envelope:
    """Return a fact of the reactor with these derivation fields."""
    envelope = fact_envelope("execution.refund.create.status", "SUCCESS")
    envelope.ClearField("event_id")
    envelope.producer.CopyFrom(Producer(type=common_pb2.PRODUCER_TYPE_SYSTEM, id=FACT_DERIVATION_REACTOR, version="1"))
    envelope.fact.ClearField("observed_from")
    for field, value in claim.items():
        setattr(envelope.fact, field, value)
    return envelope


@pytest.mark.parametrize("claim", CLAIMS)
def test_incomplete_derivation_is_malformed(claim: dict[str, Any]) -> None:
    """If one derivation field is set, all are required, and every missing one is named."""
    envelope = derived_fact(claim)
    with pytest.raises(ServiceError) as failure:
        Core(document()).admit(envelope)
    required = {"decision_id", "execution_id", "derivation_rule_id"}
    missing = {f"envelope.fact.{field}" for field in required - set(claim)}
    assert error_pb2.ERROR_REASON_INVALID_REQUEST == failure.value.reason
    assert missing <= {field for field, _ in failure.value.violations}


@pytest.mark.parametrize("claim", CLAIMS)
def test_core_refuses_incomplete_derivations(claim: dict[str, Any]) -> None:
    """The decider, and therefore every replay, refuses a derived fact that follows from no execution."""
    core = Core(document())
    envelope = derived_fact(claim)
    envelope.event_id = core.new_id()
    answer = core.run(PublishEvent(envelope))
    assert isinstance(answer, Fault)
    assert error_pb2.ERROR_REASON_DERIVATION_MISMATCH == answer.reason
