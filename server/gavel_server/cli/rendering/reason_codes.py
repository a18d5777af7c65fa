"""What Gavel's own reason codes of a first decision mean and what to do about each, for people.

Programs read the code and the retry hint. The meaning of a rule set's own codes is up to its author.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from gavel_rules import reason_codes

# Under the fields of the decision, `gavel propose` prints them as a table.
_REQUIRED_FACTS: Final = "the required facts are listed below"

MEANINGS: Final[Mapping[str, str]] = {
    reason_codes.UNDER_REVIEW: "the producer is under human review in the trace; wait for the verdict, or work in another trace",
    reason_codes.NO_FEASIBLE_PROPOSAL: (
        "a person has rejected this action, or no proposal of it can pass with the present facts; stop, or wait until the facts change"
    ),
    reason_codes.NO_ACTIVE_POLICY: "no rule set in force governs this action type; correct action_type, or activate a rule set for it",
    reason_codes.INVALID_PARAMS: "the params do not fit the action's schema; correct them where the warnings point",
    reason_codes.VERSION_MISMATCH: (
        "the proposal is bound to other versions than the rule set requires; propose again with those that the warnings name"
    ),
    reason_codes.UNKNOWN_EVENT: (
        "based_on_events cites something other than a fact or observation of this bus; cite each by its event_id and sequence_number"
    ),
    reason_codes.NO_FACT_INPUT: (
        "based_on_events cites nothing about this subject and no fact that the rules read; cite the facts behind the proposal"
    ),
    reason_codes.PROJECTION_CHANGED: "the evidence has changed since projection_version; read the projection again and propose anew",
    reason_codes.CONFLICTING_EVIDENCE: "two observations read different values from one tool result; a person must check the evidence",
    reason_codes.NEED_MORE_FACTS: f"evidence is missing; {_REQUIRED_FACTS}",
    reason_codes.FACT_TYPE_MISMATCH: f"evidence has another type than the rules expect; {_REQUIRED_FACTS}",
    reason_codes.INSUFFICIENT_EVIDENCE_TIER: f"evidence is not trusted enough; {_REQUIRED_FACTS}",
    reason_codes.STALE_FACTS: f"evidence is too old; {_REQUIRED_FACTS}",
    reason_codes.FACT_SUPERSEDED: f"newer evidence has replaced evidence that the proposal cites; {_REQUIRED_FACTS}",
    reason_codes.DUPLICATE_PROPOSAL: (
        "the producer has already proposed exactly this in the trace; cite new evidence or propose something else, or, if the first "
        "proposal still competes, resubmit that one to get its decision"
    ),
    reason_codes.CONFLICTING_DECISION: "another approval holds the conflict key; propose again when that action has ended",
    reason_codes.OUTRANKED: "a competing proposal for the same conflict key scored higher; propose again when its action has ended",
    reason_codes.NO_RULE_MATCHED: "no rule matches, so nothing approves it; gavel preflight --explain shows each rule's condition",
    reason_codes.EVALUATION_ERROR: "a rule's condition failed to evaluate; correct the rule set",
    reason_codes.ENGINE_DISAGREEMENT: "the two rule engines disagree, which is a bug in Gavel; report it with this event",
    reason_codes.NOT_JUDGED: "Gavel failed when the proposal's contest closed; a person must decide; the server's log has the cause",
    reason_codes.REJECTION_LIMIT: "the producer has reached its limit of rejections in the trace; a person must review it",
}
