"""The meanings of remedies, and of Gavel's own reason codes of first decisions: texts for people, used by `explain` and the command line.

Programs read the code and the retry hint. The meaning of a rule set's own codes is up to its author.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from gavel.v1.decision_pb2 import (
    REMEDY_ASK_PERSON,
    REMEDY_CITE_AGAIN,
    REMEDY_FETCH_EVIDENCE,
    REMEDY_NONE,
    REMEDY_REFRESH_EVIDENCE,
    REMEDY_REVISE_PARAMS,
    REMEDY_WAIT,
    Decision,
    Remedy,
)

# Both users print them after the meaning.
_REQUIRED_FACTS: Final = "the required facts are listed below"

REMEDY_MEANINGS: Final[Mapping[Remedy.ValueType, str]] = {
    REMEDY_FETCH_EVIDENCE: "get the evidence that is missing",
    REMEDY_REFRESH_EVIDENCE: "get newer or more trusted evidence",
    REMEDY_CITE_AGAIN: "read the projection again and cite the present versions",
    REMEDY_WAIT: "propose again when the conflicting work has ended",
    REMEDY_REVISE_PARAMS: "propose other params or another action",
    REMEDY_ASK_PERSON: "a person has to decide or to act",
    REMEDY_NONE: "nothing that the producer can do",
}

# What to wait for if no other work holds a conflict key.
_WAIT_FOR_COUNTER: Final = "propose again when the counter gives a number and has room; a warning says why it does not"
_WAIT_FOR_EXECUTION: Final = "propose again when an approval that a counter of the rule set counts has ended"
_WAIT: Final = "propose the same again later"

REASON_CODE_MEANINGS: Final[Mapping[str, str]] = {
    "UNDER_REVIEW": "the producer is under human review in the trace; wait for the verdict, or work in another trace",
    "NO_FEASIBLE_PROPOSAL": (
        "a person has rejected this action, or no proposal of it can pass with the present facts; stop, or wait until the facts change"
    ),
    "NO_ACTIVE_POLICY": "no rule set in force governs this action type; correct action_type, or activate a rule set for it",
    "INVALID_PARAMS": "the params do not fit the action's schema; correct them where the warnings point",
    "VERSION_MISMATCH": (
        "the proposal is bound to other versions than the rule set requires or its trace began with; propose again with those that "
        "the warnings name"
    ),
    "UNKNOWN_EVENT": (
        "based_on_events cites something other than a fact or observation of this bus; cite each by its event_id and sequence_number"
    ),
    "NO_FACT_INPUT": (
        "based_on_events cites nothing about this subject and no fact that the rules read; cite the facts behind the proposal"
    ),
    "PROJECTION_CHANGED": "the evidence has changed since projection_version; read the projection again and propose anew",
    "CONFLICTING_EVIDENCE": "two observations read different values from one tool result; a person must check the evidence",
    "NEED_MORE_FACTS": f"evidence is missing; {_REQUIRED_FACTS}",
    "FACT_TYPE_MISMATCH": f"evidence has another type than the rules expect; {_REQUIRED_FACTS}",
    "INSUFFICIENT_EVIDENCE_TIER": f"evidence is not trusted enough; {_REQUIRED_FACTS}",
    "STALE_FACTS": f"evidence is too old; {_REQUIRED_FACTS}",
    "FACT_SUPERSEDED": f"newer evidence has replaced evidence that the proposal cites; {_REQUIRED_FACTS}",
    "DUPLICATE_PROPOSAL": (
        "the producer has already proposed exactly this in the trace; cite new evidence or propose something else, or, if the first "
        "proposal still competes, resubmit that one to get its decision"
    ),
    "CONFLICTING_DECISION": "another approval holds the conflict key; propose again when that action has ended",
    "OUTRANKED": "a competing proposal for the same conflict key scored higher; propose again when its action has ended",
    "NO_RULE_MATCHED": "no rule matches, so nothing approves it; gavel preflight --explain shows each rule's condition",
    "EVALUATION_ERROR": "a rule's condition failed to evaluate; correct the rule set",
    "ENGINE_DISAGREEMENT": "the two rule engines disagree, which is a bug in Gavel; report it with this event",
    "COUNTER_FULL": "a counter of the rule set gives no number, or has no room for the approval; a warning says why",
    "NOT_JUDGED": "Gavel failed when the proposal's contest closed; a person must decide; the server's log has the cause",
    "REJECTION_LIMIT": "the producer has reached its limit of rejections in the trace; a person must review it",
}


def remedy_meaning(remedy: Remedy.ValueType, decision: Decision) -> str:
    """Return what a remedy of a decision means; "" for one of a later contract.

    A refusal that names no conflict waits for a counter.
    """
    if remedy != REMEDY_WAIT or decision.conflict_with_proposal_ids:
        return REMEDY_MEANINGS.get(remedy, "")
    if decision.retry_hint.retry_after_ms:
        return _WAIT
    return _WAIT_FOR_COUNTER if decision.reason_code == "COUNTER_FULL" else _WAIT_FOR_EXECUTION
