"""The remedies of a refusal: the decision's own `retry_hint.remedy`.

Decisions of arbiter_version 2 and earlier name no remedies. A run that is repeated may get such a decision again, so the table below
gives their remedies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from gavel.v1.decision_pb2 import (
    OUTCOME_NEEDS_HUMAN_REVIEW,
    OUTCOME_REJECTED,
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
from gavel.v1.reason_code_pb2 import REASON_CODE_UNDER_REVIEW, ReasonCode

# A rejection with ASK_PERSON may ask for an operator, who gives no verdict; this one waits for the verdict on an open review.
_UNDER_REVIEW: Final = ReasonCode.Name(REASON_CODE_UNDER_REVIEW).removeprefix("REASON_CODE_")

Remedies = Sequence[Remedy.ValueType]

EVIDENCE_REMEDIES: Final = frozenset({REMEDY_FETCH_EVIDENCE, REMEDY_REFRESH_EVIDENCE, REMEDY_CITE_AGAIN})

_OF_EARLIER_DECISIONS: Final[Mapping[str, Remedies]] = {
    "UNKNOWN_EVENT": (REMEDY_CITE_AGAIN,),
    "NO_FACT_INPUT": (REMEDY_CITE_AGAIN, REMEDY_FETCH_EVIDENCE),
    "PROJECTION_CHANGED": (REMEDY_CITE_AGAIN,),
    "NEED_MORE_FACTS": (REMEDY_FETCH_EVIDENCE,),
    "FACT_TYPE_MISMATCH": (REMEDY_REFRESH_EVIDENCE,),
    "INSUFFICIENT_EVIDENCE_TIER": (REMEDY_REFRESH_EVIDENCE,),
    "STALE_FACTS": (REMEDY_REFRESH_EVIDENCE,),
    "FACT_SUPERSEDED": (REMEDY_CITE_AGAIN,),
    "DUPLICATE_PROPOSAL": (REMEDY_REVISE_PARAMS, REMEDY_REFRESH_EVIDENCE),
    "CONFLICTING_DECISION": (REMEDY_WAIT,),
    "OUTRANKED": (REMEDY_WAIT,),
    "REVIEW_RELEASED": (REMEDY_CITE_AGAIN,),
}


def remedies_of(decision: Decision) -> Remedies:
    """Return what can help after a refusal, the most promising first; (REMEDY_NONE,) if nothing can."""
    if decision.retry_hint.remedy:
        return tuple(decision.retry_hint.remedy)
    if is_under_review(decision):
        return (REMEDY_ASK_PERSON,)
    retryable = (REMEDY_REVISE_PARAMS,) if decision.retry_hint.retryable else (REMEDY_NONE,)
    return _OF_EARLIER_DECISIONS.get(decision.reason_code, retryable)


def first_remedy(decision: Decision) -> Remedy.ValueType:
    """Return the most promising remedy of a rejection; REMEDY_NONE for any other decision."""
    return remedies_of(decision)[0] if decision.outcome == OUTCOME_REJECTED else REMEDY_NONE


def is_under_review(decision: Decision) -> bool:
    """Return whether a person's verdict is awaited, on this proposal or on another one of the producer in the trace."""
    return decision.outcome == OUTCOME_NEEDS_HUMAN_REVIEW or decision.reason_code == _UNDER_REVIEW
