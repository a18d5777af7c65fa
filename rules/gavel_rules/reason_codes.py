"""Gavel's own reason codes in one table (constitution §6.3): which stage gives each, how it counts, what it arms, what releases it
and what helps.

Code that handles reason codes asks the table. A new code is one constant and one row here, its number in
proto/gavel/v1/reason_code.proto, and the function that refuses with it (`arbitration.stages` for a stage). Rule sets may not use these
codes. docs/arbitration.md explains them to users.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, StrEnum
from typing import Final, NamedTuple

from gavel.v1 import decision_pb2, reason_code_pb2
from gavel.v1.decision_pb2 import Remedy

# The stages of arbitration, in order of precedence.
UNDER_REVIEW: Final = "UNDER_REVIEW"
NO_FEASIBLE_PROPOSAL: Final = "NO_FEASIBLE_PROPOSAL"
NO_ACTIVE_POLICY: Final = "NO_ACTIVE_POLICY"
INVALID_PARAMS: Final = "INVALID_PARAMS"
VERSION_MISMATCH: Final = "VERSION_MISMATCH"
UNKNOWN_EVENT: Final = "UNKNOWN_EVENT"
NO_FACT_INPUT: Final = "NO_FACT_INPUT"
PROJECTION_CHANGED: Final = "PROJECTION_CHANGED"
CONFLICTING_EVIDENCE: Final = "CONFLICTING_EVIDENCE"
NEED_MORE_FACTS: Final = "NEED_MORE_FACTS"
FACT_TYPE_MISMATCH: Final = "FACT_TYPE_MISMATCH"
INSUFFICIENT_EVIDENCE_TIER: Final = "INSUFFICIENT_EVIDENCE_TIER"
STALE_FACTS: Final = "STALE_FACTS"
FACT_SUPERSEDED: Final = "FACT_SUPERSEDED"
DUPLICATE_PROPOSAL: Final = "DUPLICATE_PROPOSAL"
CONFLICTING_DECISION: Final = "CONFLICTING_DECISION"
EVALUATION_ERROR: Final = "EVALUATION_ERROR"
ENGINE_DISAGREEMENT: Final = "ENGINE_DISAGREEMENT"
NO_RULE_MATCHED: Final = "NO_RULE_MATCHED"
COUNTER_FULL: Final = "COUNTER_FULL"
OUTRANKED: Final = "OUTRANKED"
# First decisions that no stage gives.
REJECTION_LIMIT: Final = "REJECTION_LIMIT"
NOT_JUDGED: Final = "NOT_JUDGED"
# Later decisions.
APPROVAL_EXPIRED: Final = "APPROVAL_EXPIRED"
ATTEMPTS_EXHAUSTED: Final = "ATTEMPTS_EXHAUSTED"
EXECUTION_ABANDONED: Final = "EXECUTION_ABANDONED"
PARTIAL_EXECUTION: Final = "PARTIAL_EXECUTION"
COMPENSATION_INVALID: Final = "COMPENSATION_INVALID"
COMPENSATION_FAILED: Final = "COMPENSATION_FAILED"
LATE_EXECUTION_REPORT: Final = "LATE_EXECUTION_REPORT"
RETRY_FACTS_CHANGED: Final = "RETRY_FACTS_CHANGED"
REVIEW_RELEASED: Final = "REVIEW_RELEASED"
REVIEW_REJECTED: Final = "REVIEW_REJECTED"
REVOKED: Final = "REVOKED"
# Attempts that do not start.
STALE_FACT: Final = "STALE_FACT"
EXPIRED: Final = "EXPIRED"
ALREADY_RUNNING: Final = "ALREADY_RUNNING"
ALREADY_FINISHED: Final = "ALREADY_FINISHED"
NOT_APPROVED: Final = "NOT_APPROVED"
EXECUTION_VERSION_MISMATCH: Final = "EXECUTION_VERSION_MISMATCH"


class RefusalClass(StrEnum):
    """The class of a refusal: a rule set may limit the rejections of each one (`rejection_limits`)."""

    EVIDENCE = "evidence"
    POLICY = "policy"
    CONFLICT = "conflict"


class Bearer(Enum):
    """The message that bears a reason code first. Attempts also bear codes of decisions, e.g. REVOKED."""

    FIRST_DECISION = 1
    LATER_DECISION = 2
    ATTEMPT = 3


class Arms(Enum):
    """A memory that a reason code sets in the state."""

    COUNT = 1  # the rejection counts against the producer's limit in the trace
    FINGERPRINT = 2  # the producer's next proposal in the trace may not be the same (stage 14)
    CLOSURE = 3  # the trace may not propose the action on the subject (stage 2)
    TRACE_REVIEW = 4  # the producer waits for a person in the trace (stage 1)
    EXECUTION_REVIEW = 5  # the decision's execution waits for a person and its conflict key stays held (stage 15)


class Release(Enum):
    """The events that lift a reason code: after one, the same work may succeed."""

    PROPOSAL = 1  # another proposal: other params, versions, citations
    EVIDENCE = 2  # a new fact or observation about the missing or declared keys
    RULE_SETS = 3  # other active rule sets
    CONFLICT_KEY = 4  # the decision that holds the conflict key ends
    TIME = 5  # a lease or the silence of a trace runs out
    PERSON = 6  # a person resolves the review
    REPAIR = 7  # operators mend a rule set, or Gavel


class ReasonCode(NamedTuple):
    """One row of the table.

    `stage` is None if no stage gives the code. `refusal_class` is None if the refusal does not count: no stage gives it, or the trace is
    closed already. `retryable` is that of the decision's retry hint. It is None if decisions before version 3 have no hint, or if the hint
    depends on more than the code. `remedies` are those of the decision's retry hint, the most promising first; what the hint requires may
    add to them.
    """

    code: str
    bearer: Bearer
    stage: int | None
    refusal_class: RefusalClass | None
    retryable: bool | None
    arms: tuple[Arms, ...]
    releases: tuple[Release, ...]
    remedies: tuple[Remedy.ValueType, ...]


_EVIDENCE: Final = RefusalClass.EVIDENCE
_POLICY: Final = RefusalClass.POLICY
_CONFLICT: Final = RefusalClass.CONFLICT
_COUNT: Final = (Arms.COUNT,)
_COUNT_AND_FINGERPRINT: Final = (Arms.COUNT, Arms.FINGERPRINT)
_TRACE_REVIEW: Final = (Arms.TRACE_REVIEW,)
_EXECUTION_REVIEW: Final = (Arms.EXECUTION_REVIEW,)
_PROPOSAL: Final = (Release.PROPOSAL,)
_NEW_EVIDENCE: Final = (Release.EVIDENCE,)
_KEY: Final = (Release.CONFLICT_KEY,)
_PERSON: Final = (Release.PERSON,)
_REPAIR: Final = (Release.REPAIR,)
_FETCH: Final = decision_pb2.REMEDY_FETCH_EVIDENCE
_REFRESH: Final = decision_pb2.REMEDY_REFRESH_EVIDENCE
_CITE: Final = decision_pb2.REMEDY_CITE_AGAIN
_WAIT: Final = decision_pb2.REMEDY_WAIT
_REVISE: Final = decision_pb2.REMEDY_REVISE_PARAMS
_ASK: Final = decision_pb2.REMEDY_ASK_PERSON
_NONE: Final = decision_pb2.REMEDY_NONE


def _stage(
    number: int,
    code: str,
    refusal_class: RefusalClass | None,
    arms: tuple[Arms, ...],
    releases: tuple[Release, ...],
    *remedies: Remedy.ValueType,
    retryable: bool = True,
) -> ReasonCode:
    return ReasonCode(code, Bearer.FIRST_DECISION, number, refusal_class, retryable, arms, releases, remedies)


def _review(bearer: Bearer, code: str, arms: tuple[Arms, ...], releases: tuple[Release, ...] = _PERSON) -> ReasonCode:
    return ReasonCode(code, bearer, None, None, False if bearer is Bearer.FIRST_DECISION else None, arms, releases, (_ASK,))


def _end(
    bearer: Bearer,
    code: str,
    remedy: Remedy.ValueType,
    releases: tuple[Release, ...] = _PROPOSAL,
    arms: tuple[Arms, ...] = (),
    *,
    retryable: bool | None = None,
) -> ReasonCode:
    return ReasonCode(code, bearer, None, None, retryable, arms, releases, (remedy,))


# Of several codes of a stage, the earlier row takes precedence.
REASON_CODES: Final = (
    _stage(1, UNDER_REVIEW, None, (), _PERSON, _ASK, retryable=False),
    # The remedy of a terminal refusal is NONE: the producer cannot change the facts that it rests on.
    _stage(2, NO_FEASIBLE_PROPOSAL, None, (), (Release.EVIDENCE, Release.RULE_SETS, Release.TIME), _NONE, retryable=False),
    _stage(3, NO_ACTIVE_POLICY, _POLICY, _COUNT, (Release.RULE_SETS,), _ASK, retryable=False),
    # Stages 3 to 5 arm no fingerprint. While their cause lasts they refuse the same proposal again; once it is gone, the later stages have
    # yet to judge the proposal. Versions are not part of the fingerprint.
    _stage(4, INVALID_PARAMS, _POLICY, _COUNT, _PROPOSAL, _REVISE),
    # A person has to run the producer in a version that the rule set accepts.
    _stage(5, VERSION_MISMATCH, _POLICY, _COUNT, _PROPOSAL, _ASK),
    _stage(6, UNKNOWN_EVENT, _EVIDENCE, _COUNT_AND_FINGERPRINT, _PROPOSAL, _CITE),
    _stage(7, NO_FACT_INPUT, _EVIDENCE, _COUNT_AND_FINGERPRINT, _PROPOSAL, _CITE, _FETCH),
    _stage(8, PROJECTION_CHANGED, _CONFLICT, _COUNT, _PROPOSAL, _CITE),
    _stage(9, CONFLICTING_EVIDENCE, _EVIDENCE, _TRACE_REVIEW, (Release.PERSON, Release.EVIDENCE), _ASK, _REFRESH, retryable=False),
    _stage(10, NEED_MORE_FACTS, _EVIDENCE, _COUNT_AND_FINGERPRINT, _NEW_EVIDENCE, _FETCH),
    _stage(10, FACT_TYPE_MISMATCH, _EVIDENCE, _COUNT_AND_FINGERPRINT, _NEW_EVIDENCE, _REFRESH),
    _stage(11, INSUFFICIENT_EVIDENCE_TIER, _EVIDENCE, _COUNT_AND_FINGERPRINT, _NEW_EVIDENCE, _REFRESH),
    _stage(12, STALE_FACTS, _EVIDENCE, _COUNT_AND_FINGERPRINT, _NEW_EVIDENCE, _REFRESH),
    _stage(13, FACT_SUPERSEDED, _EVIDENCE, _COUNT_AND_FINGERPRINT, _PROPOSAL, _CITE),
    # The refusal that it repeats has armed the fingerprint; a proposal that waits for its contest has not been refused.
    _stage(14, DUPLICATE_PROPOSAL, _POLICY, _COUNT, _PROPOSAL, _REVISE, _REFRESH),
    _stage(15, CONFLICTING_DECISION, _CONFLICT, _COUNT, _KEY, _WAIT),
    _stage(16, COUNTER_FULL, _POLICY, _COUNT, (Release.TIME, Release.RULE_SETS), _WAIT, _ASK),
    _stage(16, EVALUATION_ERROR, _POLICY, _COUNT_AND_FINGERPRINT, _REPAIR, _ASK, retryable=False),
    _stage(16, ENGINE_DISAGREEMENT, _POLICY, _COUNT_AND_FINGERPRINT, _REPAIR, _ASK, retryable=False),
    # A terminal one (stage 17) is not retryable and arms CLOSURE; so does a rule's own reason code.
    _stage(16, NO_RULE_MATCHED, _POLICY, _COUNT_AND_FINGERPRINT, (Release.PROPOSAL, Release.EVIDENCE, Release.RULE_SETS), _REVISE),
    _stage(18, OUTRANKED, _CONFLICT, _COUNT, _KEY, _WAIT),
    _review(Bearer.FIRST_DECISION, REJECTION_LIMIT, _TRACE_REVIEW),
    _review(Bearer.FIRST_DECISION, NOT_JUDGED, _TRACE_REVIEW, (Release.PERSON, Release.REPAIR)),
    _end(Bearer.LATER_DECISION, APPROVAL_EXPIRED, _CITE, retryable=True),
    _review(Bearer.LATER_DECISION, ATTEMPTS_EXHAUSTED, _EXECUTION_REVIEW),
    _review(Bearer.LATER_DECISION, EXECUTION_ABANDONED, _EXECUTION_REVIEW),
    _review(Bearer.LATER_DECISION, PARTIAL_EXECUTION, _EXECUTION_REVIEW),
    _review(Bearer.LATER_DECISION, COMPENSATION_INVALID, _EXECUTION_REVIEW),
    _review(Bearer.LATER_DECISION, COMPENSATION_FAILED, _EXECUTION_REVIEW),
    _review(Bearer.LATER_DECISION, LATE_EXECUTION_REPORT, _EXECUTION_REVIEW),
    _review(Bearer.LATER_DECISION, RETRY_FACTS_CHANGED, _EXECUTION_REVIEW),
    _end(Bearer.LATER_DECISION, REVIEW_RELEASED, _CITE),
    _end(Bearer.LATER_DECISION, REVIEW_REJECTED, _NONE, (), (Arms.CLOSURE,)),
    _end(Bearer.LATER_DECISION, REVOKED, _ASK),
    _end(Bearer.ATTEMPT, STALE_FACT, _REFRESH),
    _end(Bearer.ATTEMPT, EXPIRED, _CITE),
    _end(Bearer.ATTEMPT, ALREADY_RUNNING, _WAIT, (Release.TIME,)),
    _end(Bearer.ATTEMPT, ALREADY_FINISHED, _NONE, ()),
    _end(Bearer.ATTEMPT, NOT_APPROVED, _NONE, ()),
    # An executor that runs the bound versions may start; so may this one, once a person has given it those.
    _end(Bearer.ATTEMPT, EXECUTION_VERSION_MISMATCH, _ASK, (Release.PERSON,)),
)

# The remedies of a rule set's own reason code: its rules judge params and facts, and the producer chooses the params.
REMEDIES_OF_RULES: Final = (_REVISE,)

_TABLE: Final[Mapping[str, ReasonCode]] = {row.code: row for row in REASON_CODES}

RESERVED_CODES: Final = frozenset(_TABLE)
# Reviews of a trace that no rule demands: a person's approval lets the trace go on and approves no action.
RELEASING_CODES: Final = frozenset([row.code for row in REASON_CODES if Arms.TRACE_REVIEW in row.arms])
# Faults of a rule set or of Gavel: operators are alarmed.
ALARMING: Final = frozenset([row.code for row in REASON_CODES if Release.REPAIR in row.releases])

_NUMBERS: Final[Mapping[str, reason_code_pb2.ReasonCode.ValueType]] = {
    row.code: reason_code_pb2.ReasonCode.Value(f"REASON_CODE_{row.code}") for row in REASON_CODES
}
_RETRYABLE: Final = frozenset([row.code for row in REASON_CODES if row.retryable])
_WITHOUT_FINGERPRINT: Final = frozenset([row.code for row in REASON_CODES if Arms.FINGERPRINT not in row.arms])


def codes_of_stage(number: int) -> tuple[str, ...]:
    """Return the reason codes of a stage, in their order of precedence."""
    return tuple([row.code for row in REASON_CODES if row.stage == number])


def refusal_class(reason_code: str) -> RefusalClass | None:
    """Return the class of a refusal, or None if it does not count. Reason codes of rule sets are of class POLICY."""
    row = _TABLE.get(reason_code)
    return _POLICY if row is None else row.refusal_class


def arms_fingerprint(reason_code: str) -> bool:
    """Return whether a refusal with this reason code arms the fingerprint: evidence is missing, or rules refuse."""
    return reason_code not in _WITHOUT_FINGERPRINT


def calls_person(reason_code: str) -> bool:
    """Return whether a first decision with a reason code of Gavel's asks for a person instead of refusing."""
    return reason_code in RELEASING_CODES


def is_retryable(reason_code: str) -> bool:
    """Return whether a refusal with a reason code of Gavel's may be retried."""
    return reason_code in _RETRYABLE


def remedies_of(reason_code: str) -> tuple[Remedy.ValueType, ...]:
    """Return what helps after a refusal with a reason code, Gavel's or a rule set's."""
    row = _TABLE.get(reason_code)
    return REMEDIES_OF_RULES if row is None else row.remedies


def number_of(reason_code: str) -> reason_code_pb2.ReasonCode.ValueType:
    """Return a reason code of Gavel's as a number of the contract; unspecified for a rule set's own code."""
    return _NUMBERS.get(reason_code, reason_code_pb2.REASON_CODE_UNSPECIFIED)
