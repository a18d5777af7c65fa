"""What Gavel's own reason codes of a first decision mean, and what to do about each, for people.

Machines read the code and the retry hint. A rule set's codes mean what its author says.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from gavel_rules import reasons

_TABLE: Final = "the table says what, and what would do"

MEANINGS: Final[Mapping[str, str]] = {
    reasons.UNDER_REVIEW: "a person has to look at this trace first; other work can go on in another trace",
    reasons.NO_FEASIBLE_PROPOSAL: "a person has rejected it, or while its facts are what they are no such proposal can pass; stop here",
    reasons.NO_ACTIVE_POLICY: "no rule set in force governs this action type; mend action_type, or put a rule set in force",
    reasons.INVALID_PARAMS: "params do not fit the action's schema; the warnings say where",
    reasons.VERSION_MISMATCH: "it is bound to other versions than the rule set requires; the warnings say which",
    reasons.UNKNOWN_EVENT: "based_on_events names what is no fact or observation of this bus, or not by both event_id and sequence_number",
    reasons.NO_FACT_INPUT: "based_on_events names nothing about this subject or a fact that the rules read; cite what it rests on",
    reasons.PROJECTION_CHANGED: "what it rests on has changed since its projection_version; look again and propose anew",
    reasons.CONFLICTING_EVIDENCE: "one tool result was read to say two things; a person has to look at the evidence",
    reasons.NEED_MORE_FACTS: f"evidence is missing; {_TABLE}",
    reasons.FACT_TYPE_MISMATCH: f"evidence is of another type than the rules expect; {_TABLE}",
    reasons.INSUFFICIENT_EVIDENCE_TIER: f"evidence is not trusted enough; {_TABLE}",
    reasons.STALE_FACTS: f"evidence is too old; {_TABLE}",
    reasons.FACT_SUPERSEDED: f"it cites evidence that a newer one has replaced; {_TABLE}",
    reasons.DUPLICATE_PROPOSAL: "the trace was refused exactly this before (cite what has come since, or propose otherwise), "
    "or has it compete already (send the proposal that it conflicts with again)",
    reasons.CONFLICTING_DECISION: "an approval on the same conflict key has not come to its end; propose again when it has",
    reasons.OUTRANKED: "another proposal that wanted the same conflict key scored higher; propose again when that one has come to its end",
    reasons.NO_RULE_MATCHED: "no rule approves it; gavel preflight --explain shows what each one says",
    reasons.EVALUATION_ERROR: "a rule's condition could not be computed; the rule set needs mending",
    reasons.ENGINE_DISAGREEMENT: "the two rule engines disagree, which is a fault of Gavel's; please report it with this event",
    reasons.NOT_JUDGED: "Gavel failed when its contest closed; a person has to look, and operators at the server's log",
    reasons.REJECTION_LIMIT: "too many rejections in a row; a person has to look at this trace",
}
