"""Shared by tests of contests: a rule set with a window, the fact that it approves on, and the verdicts of decisions."""

from __future__ import annotations

from typing import Any

from gavel.v1 import common_pb2, decision_pb2
from gavel.v1.common_pb2 import Producer
from gavel.v1.decision_pb2 import Decision
from gavel.v1.envelope_pb2 import Envelope

from tests.support.driver import Core, document

APPROVED = decision_pb2.OUTCOME_APPROVED
REJECTED = decision_pb2.OUTCOME_REJECTED
REVIEW = decision_pb2.OUTCOME_NEEDS_HUMAN_REVIEW
EXPIRED = decision_pb2.OUTCOME_EXPIRED
WINDOW_MS = 1_000


def contest_document(**action: Any) -> str:
    """Return the default rule set with a window."""
    return document(**{"contest_window_ms": WINDOW_MS, **action})


def deliver(core: Core, subject: str = "order/1") -> Envelope:
    """Publish the fact that the default rules approve on."""
    return core.fact("order.status", "delivered", subject=subject)


def verdict(decision: Decision) -> tuple[int, str]:
    """Return the outcome and reason code of a decision."""
    return decision.outcome, decision.reason_code


def agent(number: int) -> Producer:
    """Return one of several agents."""
    return Producer(type=common_pb2.PRODUCER_TYPE_AGENT, id=f"agent-{number}")
