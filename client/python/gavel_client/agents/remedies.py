"""What can help after a refusal: the decision's own `retry_hint.remedy`.

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

Remedies = Sequence[Remedy.ValueType]

EVIDENCE_REMEDIES: Final = frozenset({REMEDY_FETCH_EVIDENCE, REMEDY_REFRESH_EVIDENCE, REMEDY_CITE_AGAIN})

_OF_EARLIER_DECISIONS: Final[Mapping[str, Remedies]] = {
    "UNDER_REVIEW": (REMEDY_ASK_PERSON,),
    "NO_FACT_INPUT": (REMEDY_CITE_AGAIN, REMEDY_FETCH_EVIDENCE),
    "PROJECTION_CHANGED": (REMEDY_CITE_AGAIN, REMEDY_REVISE_PARAMS),
    "NEED_MORE_FACTS": (REMEDY_FETCH_EVIDENCE,),
    "FACT_TYPE_MISMATCH": (REMEDY_REFRESH_EVIDENCE,),
    "INSUFFICIENT_EVIDENCE_TIER": (REMEDY_REFRESH_EVIDENCE,),
    "STALE_FACTS": (REMEDY_REFRESH_EVIDENCE,),
    "FACT_SUPERSEDED": (REMEDY_CITE_AGAIN,),
    "DUPLICATE_PROPOSAL": (REMEDY_CITE_AGAIN, REMEDY_REVISE_PARAMS),
    "CONFLICTING_DECISION": (REMEDY_WAIT,),
    "OUTRANKED": (REMEDY_WAIT,),
}


def remedies_of(decision: Decision) -> Remedies:
    """Return what can help after a refusal, the most promising first; (REMEDY_NONE,) if nothing can."""
    if decision.retry_hint.remedy:
        return tuple(decision.retry_hint.remedy)
    if decision.outcome == OUTCOME_NEEDS_HUMAN_REVIEW:
        return (REMEDY_ASK_PERSON,)
    retryable = (REMEDY_REVISE_PARAMS,) if decision.retry_hint.retryable else (REMEDY_NONE,)
    return _OF_EARLIER_DECISIONS.get(decision.reason_code, retryable)


def first_remedy(decision: Decision) -> Remedy.ValueType:
    """Return the most promising remedy; REMEDY_NONE if nothing helps, or nothing has to."""
    is_refused = decision.outcome in (OUTCOME_REJECTED, OUTCOME_NEEDS_HUMAN_REVIEW)
    return remedies_of(decision)[0] if is_refused else REMEDY_NONE
