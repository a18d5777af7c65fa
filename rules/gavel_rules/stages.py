"""The stages of arbitration in one table: their order of precedence, what each refuses with, and to which class that belongs.

A proposal goes through the stages by number; the first that refuses gives the reason code. `arbitration` walks them,
docs/arbitration.md explains them. The class of a reason code says against which budget of rejections it counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, NamedTuple

from gavel_rules import reasons


class RefusalClass(StrEnum):
    """Why a proposal was refused, as far as budgets go: `rejection_limits` of a rule set may bound each class."""

    EVIDENCE = "evidence"
    POLICY = "policy"
    CONFLICT = "conflict"


class Stage(NamedTuple):
    """One stage. `refusal_class` None: its refusals count nowhere, for the trace was closed before it asked."""

    number: int
    reason_codes: tuple[str, ...]  # of several, the earlier comes first
    refusal_class: RefusalClass | None


STAGES: Final = (
    Stage(1, (reasons.UNDER_REVIEW,), None),
    Stage(2, (reasons.NO_FEASIBLE_PROPOSAL,), None),
    Stage(3, (reasons.NO_ACTIVE_POLICY,), RefusalClass.POLICY),
    Stage(4, (reasons.INVALID_PARAMS,), RefusalClass.POLICY),
    Stage(5, (reasons.VERSION_MISMATCH,), RefusalClass.POLICY),
    Stage(6, (reasons.UNKNOWN_EVENT,), RefusalClass.EVIDENCE),
    Stage(7, (reasons.NO_FACT_INPUT,), RefusalClass.EVIDENCE),
    Stage(8, (reasons.PROJECTION_CHANGED,), RefusalClass.CONFLICT),
    Stage(9, (reasons.CONFLICTING_EVIDENCE,), RefusalClass.EVIDENCE),
    Stage(10, (reasons.NEED_MORE_FACTS, reasons.FACT_TYPE_MISMATCH), RefusalClass.EVIDENCE),
    Stage(11, (reasons.INSUFFICIENT_EVIDENCE_TIER,), RefusalClass.EVIDENCE),
    Stage(12, (reasons.STALE_FACTS,), RefusalClass.EVIDENCE),
    Stage(13, (reasons.FACT_SUPERSEDED,), RefusalClass.EVIDENCE),
    Stage(14, (reasons.DUPLICATE_PROPOSAL,), RefusalClass.POLICY),
    Stage(15, (reasons.CONFLICTING_DECISION,), RefusalClass.CONFLICT),
    Stage(16, (reasons.EVALUATION_ERROR, reasons.ENGINE_DISAGREEMENT, reasons.NO_RULE_MATCHED), RefusalClass.POLICY),
    # 17, feasibility, keeps the reason code of 16 and may make the refusal terminal.
    Stage(17, (), RefusalClass.POLICY),
    Stage(18, (reasons.OUTRANKED,), RefusalClass.CONFLICT),
)

_CLASSES: Final[Mapping[str, RefusalClass | None]] = {code: stage.refusal_class for stage in STAGES for code in stage.reason_codes}


def refusal_class(reason_code: str) -> RefusalClass | None:
    """Return the class of a refusal; None where it counts nowhere. A rule set's own reason codes are policy."""
    return _CLASSES.get(reason_code, RefusalClass.POLICY)
