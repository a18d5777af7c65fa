"""How a decision that is not alive any more came to its end, for whoever still wants something of it."""

from __future__ import annotations

from gavel.v1 import decision_pb2, error_pb2

from gavel_rules import reasons
from gavel_rules.commands import Fault, References
from gavel_rules.events import milliseconds


def ending_of(references: References, now_ms: int) -> str:
    """Return EXPIRED or REVOKED if the referenced decision, which is not alive any more, ended so, else ""."""
    valid_until_ms = milliseconds(references.decision.decision.valid_until) if references.decision is not None else 0
    if references.ending == reasons.EXPIRED and now_ms < valid_until_ms:
        # It was alive when it was looked up, and its time has not come: since then somebody has taken it back.
        return reasons.REVOKED
    return references.ending


def _how_it_ended(references: References, now_ms: int) -> str:
    """Say how the referenced approval, which is not alive any more, came to its end."""
    ending = ending_of(references, now_ms)
    return {reasons.EXPIRED: "it has expired", reasons.REVOKED: "it has been revoked"}.get(ending, "its execution has come to its end")


def ended_fault(decision_id: str, references: References, now_ms: int, to_do: str, being_done: str) -> Fault:
    """Return why nothing can be done with a decision that is not alive: the two texts are like "to revoke" and "in force"."""
    if references.decision is None:
        return Fault(error_pb2.ERROR_REASON_DECISION_NOT_FOUND, f"no decision {decision_id}")
    outcome = references.decision.decision.outcome
    if outcome != decision_pb2.OUTCOME_APPROVED:
        name = decision_pb2.Outcome.Name(outcome).removeprefix("OUTCOME_")
        problem = f"is no approval, there is nothing {to_do}: it is {name}"
    else:
        problem = f"is not {being_done} any more: {_how_it_ended(references, now_ms)}"
    return Fault(error_pb2.ERROR_REASON_WRONG_STATE, f"decision {decision_id} {problem}")
