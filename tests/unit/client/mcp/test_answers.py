"""Refusals for clients of MCP: a text for the model, and the same for programs."""

from __future__ import annotations

from gavel.v1.decision_pb2 import OUTCOME_REJECTED, Decision, RetryHint
from gavel.v1.envelope_pb2 import Envelope
from gavel_client.gate import Refused
from gavel_client.mcp.answers import refused
from gavel_client.values import to_struct

DETAILS = {"limit": 10, "open": ["a", "b"]}


def test_a_refusal_has_the_details_of_the_decision() -> None:
    """The structured content of a refusal has the decision, its reason, its details and the retry hint; the text names the reason."""
    decision = Decision(
        outcome=OUTCOME_REJECTED,
        reason_code="LEDGER_FULL",
        terminal=True,
        details=to_struct(DETAILS),
        retry_hint=RetryHint(missing_fact_keys=["ledger.open"], retryable=True),
    )
    result = refused(Refused("LEDGER_FULL", "the rules refuse", Envelope(event_id="decision-1", decision=decision)))

    hint = {"missing_fact_keys": ["ledger.open"], "retryable": True}
    expected = {"decision_id": "decision-1", "reason_code": "LEDGER_FULL", "terminal": True, "details": DETAILS, **hint}
    assert (True, expected) == (result.is_error, result.structured_content)
    assert "LEDGER_FULL" in getattr(result.content[0], "text", "")


def test_a_refusal_without_a_decision_has_its_reason() -> None:
    """A refusal that no decision stands behind has its reason alone."""
    result = refused(Refused("DEADLINE", "the deadline has passed"))

    assert (True, {"reason_code": "DEADLINE"}) == (result.is_error, result.structured_content)
    assert "The tool was not called: the deadline has passed." == getattr(result.content[0], "text", "")
