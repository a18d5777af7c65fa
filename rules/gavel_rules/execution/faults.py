"""Faults of commands on decisions: the decision has ended, or the executor or its caller does not hold the attempt."""

from __future__ import annotations

from typing import Final

from gavel.v1 import decision_pb2, error_pb2
from gavel.v1.common_pb2 import Producer
from gavel.v1.identity_pb2 import Attestation

from gavel_rules import reason_codes
from gavel_rules.commands import Fault, References
from gavel_rules.events.timestamps import milliseconds
from gavel_rules.identity.attestation import caller_identity
from gavel_rules.state.records import APPROVED, AWAITING_FACTS, LiveDecision

_END_TEXTS: Final = {
    reason_codes.EXPIRED: "it has expired",
    reason_codes.REVOKED: "it has been revoked",
    reason_codes.STALE_FACT: "its evidence was no longer fresh at its first start",
    reason_codes.FACT_SUPERSEDED: "its evidence had changed before its first start",
}


def ended_fault(
    decision_id: str, references: References, now_ms: int, purpose: str = "to carry out", status: str = "being carried out"
) -> Fault:
    """Return the fault of a command on a decision that is not live. `purpose` and `status` are texts like "to revoke" and "in force"."""
    if references.decision is None:
        message = f"decision {decision_id} does not exist on this bus; check the id and the bus"
        return Fault(error_pb2.ERROR_REASON_DECISION_NOT_FOUND, message)
    outcome = references.decision.decision.outcome
    if outcome != decision_pb2.OUTCOME_APPROVED:
        name = decision_pb2.Outcome.Name(outcome).removeprefix("OUTCOME_")
        problem = f"is not an approval but {name}; there is nothing {purpose}"
    else:
        problem = f"is no longer {status}: {_END_TEXTS.get(end_reason(references, now_ms), 'its execution is over')}"
    return Fault(error_pb2.ERROR_REASON_WRONG_STATE, f"decision {decision_id} {problem}")


def end_reason(references: References, now_ms: int) -> str:
    """Return the reason why the referenced decision, which is not live, ended without an execution, else ""."""
    valid_until_ms = milliseconds(references.decision.decision.valid_until) if references.decision is not None else 0
    if references.end_reason == reason_codes.EXPIRED and now_ms < valid_until_ms:
        # It was live at the lookup, and its time has not come: a person has revoked it since.
        return reason_codes.REVOKED
    return references.end_reason


def coming_end_reason(live: LiveDecision) -> str:
    """Return the reason why a live decision ends without an execution unless an attempt begins, else ""."""
    if live.phase == APPROVED:
        return reason_codes.EXPIRED
    if live.phase != AWAITING_FACTS:
        return ""
    if live.is_revoked and not live.is_carried_out:
        return reason_codes.REVOKED
    if live.awaited_facts and not live.attempt:
        # The facts are derived from the ABORTED by which its first start was refused.
        return str(live.awaited_facts[0].execution.execution.reason_code)
    return ""


def holder_fault(live: LiveDecision, attempt: int, producer: Producer, caller: Attestation | None) -> Fault | None:
    """Return a fault unless this producer and caller began the attempt: nobody reports for another executor, not even late.

    `caller` is the attestation of the command's caller. If the attempt was begun without authentication, any caller may name its producer.
    """
    holder = live.holders[attempt - 1]
    producer_id, begun_by = holder[1], holder[2:]
    if (producer.type, producer.id) != holder[:2]:
        message = f"attempt {attempt} of decision {live.decision_id} is leased to {producer_id}; only that executor may renew or report it"
    elif begun_by and begun_by != caller_identity(caller):
        message = (
            f"attempt {attempt} of decision {live.decision_id} was begun by another caller as {producer_id}; only that caller may renew or"
            " report it. Begin an attempt of your own once the lease has lapsed"
        )
    else:
        return None
    return Fault(error_pb2.ERROR_REASON_PRODUCER_NOT_ALLOWED, message)
