"""The words for Gavel's own reason codes."""

from __future__ import annotations

from gavel_rules import reasons
from gavel_server.cli.meanings import MEANINGS

# Of later decisions and executions, which `gavel log` describes, and those that no release emits yet.
ELSEWHERE = {
    reasons.APPROVAL_EXPIRED,
    reasons.ATTEMPTS_EXHAUSTED,
    reasons.EXECUTION_ABANDONED,
    reasons.PARTIAL_EXECUTION,
    reasons.COMPENSATION_INVALID,
    reasons.COMPENSATION_FAILED,
    reasons.LATE_EXECUTION_REPORT,
    reasons.RETRY_FACTS_CHANGED,
    reasons.STALE_FACT,
    reasons.EXPIRED,
    reasons.ALREADY_RUNNING,
    reasons.ALREADY_FINISHED,
    reasons.NOT_APPROVED,
    reasons.REVIEW_RELEASED,
    reasons.REVIEW_REJECTED,
    reasons.REVOKED,
}


def test_every_reason_has_its_words() -> None:
    """Each code that a first decision of Gavel's own may have is explained, and no other."""
    assert reasons.RESERVED - ELSEWHERE == set(MEANINGS)
