"""What tests of contests share: a rule set with a window, the fact it approves on, and what decisions say."""

from __future__ import annotations

from typing import Any

from gavel.v1 import common_pb2, decision_pb2
from gavel.v1.common_pb2 import Producer
from gavel.v1.decision_pb2 import Decision
from gavel.v1.envelope_pb2 import Envelope

from tests.unit.core.driver import Core, document

APPROVED = decision_pb2.OUTCOME_APPROVED
REJECTED = decision_pb2.OUTCOME_REJECTED
REVIEW = decision_pb2.OUTCOME_NEEDS_HUMAN_REVIEW
EXPIRED = decision_pb2.OUTCOME_EXPIRED
WINDOW_MS = 1_000


def contested(**action: Any) -> str:
    """The default rule set with a window."""
    return document(**{"contest_window_ms": WINDOW_MS, **action})


def delivered(core: Core, subject: str = "order/1") -> Envelope:
    """The fact that the default rules approve on."""
    return core.fact("order.status", "delivered", subject=subject)


def verdict(decision: Decision) -> tuple[int, str]:
    """What a decision says."""
    return decision.outcome, decision.reason_code


def agent(number: int) -> Producer:
    """One of several agents."""
    return Producer(type=common_pb2.PRODUCER_TYPE_AGENT, id=f"agent-{number}")
