"""Every RetryHint of Gavel: whether and when a refused proposal may be retried, the evidence that it lacks, and what helps (constitution
§6.3).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from gavel.v1 import decision_pb2
from gavel.v1.decision_pb2 import Decision, FactRequirement, FactRequirementState, Remedy, RetryHint

from gavel_rules.arbitration.evidence import (
    MISSING,
    SOURCE_NOT_ACCEPTED,
    STALE,
    SUPERSEDED,
    TIER_TOO_LOW,
    WRONG_TYPE,
    EvidenceSelection,
)
from gavel_rules.codec.decision_fragments import encode_retryable
from gavel_rules.events.kinds import OUTCOME_APPROVED, OUTCOME_NEEDS_HUMAN_REVIEW
from gavel_rules.reason_codes import is_retryable, number_of, remedies_of
from gavel_rules.state.records import APPROVED, EXECUTING
from gavel_rules.state.state import State

# Fragments of a Decision. Each overrides a hint that the decision already has.
RETRYABLE: Final = encode_retryable(True)
NOT_RETRYABLE: Final = encode_retryable(False)

# The states of requirements, by precedence of their stages.
_PRECEDENCE: Final = (MISSING, SOURCE_NOT_ACCEPTED, WRONG_TYPE, TIER_TOO_LOW, STALE, SUPERSEDED)

# The field is int32. An approval may hold its key for longer: up to ten years.
_RETRY_AFTER_MS_MAX: Final = 2**31 - 1

_FETCH: Final = decision_pb2.REMEDY_FETCH_EVIDENCE
_REFRESH: Final = decision_pb2.REMEDY_REFRESH_EVIDENCE
_ASK_PERSON: Final = decision_pb2.REMEDY_ASK_PERSON
_WAIT: Final = decision_pb2.REMEDY_WAIT
_NONE: Final = decision_pb2.REMEDY_NONE
_REMEDY_OF_STATE: Final[Mapping[FactRequirementState.ValueType, Remedy.ValueType]] = {
    MISSING: _FETCH,
    SOURCE_NOT_ACCEPTED: _REFRESH,
    WRONG_TYPE: _REFRESH,
    TIER_TOO_LOW: _REFRESH,
    STALE: _REFRESH,
    SUPERSEDED: decision_pb2.REMEDY_CITE_AGAIN,
}


def of_reason_code(reason_code: str, retry_after_ms: int = 0) -> RetryHint:
    """Return the hint of a refusal that lacks no evidence."""
    return RetryHint(retryable=is_retryable(reason_code), retry_after_ms=min(retry_after_ms, _RETRY_AFTER_MS_MAX))


def of_evidence(reason_code: str, unmet: Sequence[EvidenceSelection], selections: Iterable[EvidenceSelection]) -> RetryHint:
    """Return the hint that names every unmet requirement once.

    All requirements of one key and subject share a row, which satisfies them all; there are several rows only if no single source can. A
    row's state is the first one by precedence. `selections` are those of all requirements, met or not: a row also satisfies the
    requirements of absent optional facts, so that evidence that follows the hint does not violate them.
    """
    requirements: dict[tuple[str, str], list[_Requirement]] = {}
    for selection in unmet:
        declaration = selection.declaration
        requirement = _Requirement(selection.state, declaration.min_trust, selection.max_age_ms, declaration.sources)
        requirements.setdefault((declaration.key, selection.subject), []).append(requirement)
    absent = [selection for selection in selections if selection.candidate is None and not selection.state]
    rows: list[FactRequirement] = []
    for (key, subject), of_key in requirements.items():
        absent_of_key = [selection for selection in absent if selection.declaration.key == key and selection.subject == subject]
        for row in _merge(of_key) if len(of_key) > 1 else of_key:
            limits = [selection for selection in absent_of_key if _have_common_source(row.sources, selection.declaration.sources)]
            rows.append(
                FactRequirement(
                    key=key,
                    subject=subject,
                    state=row.state,
                    required_trust_tier=min([row.min_trust, *(limit.declaration.min_trust for limit in limits)]),  # type: ignore[arg-type]
                    max_age_ms=min([row.max_age_ms, *(limit.max_age_ms for limit in limits)]),
                    sources=sorted(row.sources),
                )
            )
    hint = RetryHint(retryable=is_retryable(reason_code), fact_requirements=rows)
    if rows:
        hint.missing_fact_keys.extend(dict.fromkeys(row.key for row in rows))
        hint.required_trust_tier = min(row.required_trust_tier for row in rows)
        hint.preferred_sources.extend(sorted({source for row in rows for source in row.sources}))
        hint.max_observation_age_ms = min(row.max_age_ms for row in rows)
    return hint


def of_conflict(reason_code: str, state: State, holder_id: str, now_ms: int) -> RetryHint:
    """Return the hint of a refusal by a held conflict key. The hint has the time until the key is free, if the log knows it."""
    holder = state.decisions[holder_id]
    retry_after_ms = 0
    if holder.phase == APPROVED and not holder.compensates:
        retry_after_ms = max(0, holder.timer_due_ms - now_ms)
    elif holder.phase == EXECUTING:
        retry_after_ms = max(0, holder.lease_until_ms - now_ms)
    return of_reason_code(reason_code, retry_after_ms)


def of_released_trace(*, is_closed: bool) -> RetryHint:
    """Return the hint after a person lets a trace go on; `is_closed`: a terminal refusal still closes the action."""
    return RetryHint(retryable=not is_closed)


def delay_retry(decision: Decision, retry_after_ms: int) -> None:
    """Delay the retry of a refusal."""
    decision.retry_hint.retry_after_ms = min(retry_after_ms, _RETRY_AFTER_MS_MAX)


def advise_waiting(decision: Decision) -> None:
    """Add to the remedies of a refusal, whose reason code gives others, that waiting may help. Nobody can foresee for how long."""
    decision.retry_hint.remedy.append(_WAIT)


def forbid_retry(decision: Decision) -> None:
    """Make a refusal not retryable, because a human review is requested."""
    decision.retry_hint.retryable = False


def complete(decision: Decision, state: State) -> None:
    """Complete a refusal with its reason code as a number and with its remedies, if the bus's arbiter version has them.

    A refusal is every decision but an approval. Call it last, when the other fields are set.
    """
    if decision.outcome == OUTCOME_APPROVED or not state.semantics.has_remedies:
        return
    reason = number_of(decision.reason_code)
    if reason:
        decision.reason = reason
    if not decision.HasField("retry_hint"):
        decision.retry_hint.retryable = is_retryable(decision.reason_code)
    decision.retry_hint.remedy[:] = _remedies(decision)


def _remedies(decision: Decision) -> list[Remedy.ValueType]:
    """Return what helps after a refusal, the most promising first; remedies that the hint has are added.

    Remedies of the reason code come first, then those of the requirements. Evidence is to be fetched or refreshed only if a requirement
    says so, or if there are no requirements.
    """
    if decision.terminal:
        return [_NONE]
    hint = decision.retry_hint
    if hint.retry_after_ms and decision.outcome != OUTCOME_NEEDS_HUMAN_REVIEW:
        return [_WAIT]
    required = [_REMEDY_OF_STATE[row.state] for row in hint.fact_requirements]
    own = (*remedies_of(decision.reason_code), *hint.remedy)
    if decision.outcome == OUTCOME_NEEDS_HUMAN_REVIEW and not number_of(decision.reason_code):
        own = (_ASK_PERSON,)  # a rule asks for a person
    remedies = [remedy for remedy in own if not required or remedy in required or (remedy != _FETCH and remedy != _REFRESH)]
    remedies += required
    if decision.outcome == OUTCOME_NEEDS_HUMAN_REVIEW:
        remedies.append(_ASK_PERSON)
    return list(dict.fromkeys(remedies))


class _Requirement(NamedTuple):
    """The requirements on a key of a subject."""

    state: FactRequirementState.ValueType
    min_trust: int
    max_age_ms: int
    sources: frozenset[str]  # empty: any


def _merge(requirements: Sequence[_Requirement]) -> list[_Requirement]:
    """Return the fewest requirements that together imply all of these."""
    rows: list[_Requirement] = []
    # Requirements with sources first: one that accepts any source then joins the first row.
    for requirement in sorted(requirements, key=lambda row: not row.sources):
        for index, row in enumerate(rows):
            if _have_common_source(row.sources, requirement.sources):
                rows[index] = _Requirement(
                    min(row.state, requirement.state, key=_PRECEDENCE.index),
                    min(row.min_trust, requirement.min_trust),
                    min(row.max_age_ms, requirement.max_age_ms),
                    row.sources & requirement.sources if requirement.sources else row.sources,
                )
                break
        else:
            rows.append(requirement)
    return rows


def _have_common_source(sources: frozenset[str], others: frozenset[str]) -> bool:
    """Return whether both accept some source; empty: any."""
    return not sources or not others or not sources.isdisjoint(others)
