"""What a decision says: why it refuses, what is missing, and what an approval is bound to.

Every function here fills in a Decision that somebody else has come to; none of them decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from gavel.v1.decision_pb2 import Decision, RetryHint
from gavel.v1.decision_pb2 import Warning as DecisionWarning

from gavel_rules import reasons
from gavel_rules.events import ARBITER_VERSION, GAVEL, OUTCOME_NEEDS_HUMAN_REVIEW, OUTCOME_REJECTED
from gavel_rules.evidence import Piece, hint
from gavel_rules.governed import Governed
from gavel_rules.pins import absent, pinned
from gavel_rules.projection import State
from gavel_rules.proposed import Citation
from gavel_rules.records import APPROVED, EXECUTING
from gavel_rules.serialized import Field
from gavel_rules.texts import clipped

VIOLATIONS_NAMED_MAX: Final = 100
POINTER_LENGTH_MAX: Final = 256

# A decision takes in parts that are bytes. Looked up once: to find a method of a message takes longer than to set a field.
merge: Final = Decision.MergeFromString
_VALID_UNTIL: Final = Field(Decision, "valid_until")
# Written out, since a field that has its default is left out of a message: what a rule said before is to be overridden.
_NOT_RETRYABLE: Final = Field(Decision, "retry_hint").message(Field(RetryHint, "retryable").number(0))
_TERMINAL: Final = _NOT_RETRYABLE + Decision(
    terminal=True,
    warnings=[DecisionWarning(code=reasons.NO_FEASIBLE_PROPOSAL, message="while these facts hold, no proposal of it can pass the rules")],
).SerializeToString(deterministic=True)


def refuse(decision: Decision, reason_code: str, retry_hint: RetryHint) -> None:
    """Make the decision a refusal of Gavel's own."""
    decision.outcome = OUTCOME_REJECTED
    decision.reason_code = reason_code
    decision.policy_id = GAVEL
    decision.policy_version = ARBITER_VERSION
    decision.retry_hint.CopyFrom(retry_hint)


def refuse_for_evidence(decision: Decision, reason_code: str, governed: list[Governed], unmet: list[Piece]) -> None:
    """Refuse, with everything that is missing. Contradicting readings are for a person to look at."""
    pieces = (piece for view in governed for piece in view.evidence.pieces)
    refuse(decision, reason_code, hint(unmet, pieces, retryable=True))
    unresolved = dict.fromkeys(declared.key for view in governed for declared in view.evidence.unresolved)
    decision.warnings.extend(
        DecisionWarning(code="SUBJECT_UNRESOLVED", message=f"whose {key} is needed depends on facts that are not as required")
        for key in unresolved
    )
    if reason_code == reasons.CONFLICTING_EVIDENCE:
        decision.outcome = OUTCOME_NEEDS_HUMAN_REVIEW
        decision.retry_hint.retryable = False


def refuse_for_conflict(decision: Decision, state: State, holder: str, now_ms: int) -> None:
    """Refuse because another decision holds the conflict key, and say when it may be free."""
    refuse(decision, reasons.CONFLICTING_DECISION, RetryHint(retryable=True, retry_after_ms=_free_after_ms(state, holder, now_ms)))
    decision.conflict_with_proposal_ids.append(state.decisions[holder].decision.decision.proposal_id)


def refuse_for_repetition(decision: Decision, state: State, waiting_id: str, governed: list[Governed], now_ms: int) -> None:
    """Refuse because the same proposal, named by its event_id, waits for its contest; it is decided when that closes."""
    refuse_for_evidence(decision, reasons.DUPLICATE_PROPOSAL, governed, [])
    contest = state.contest_of(waiting_id)
    if contest is not None:
        decision.retry_hint.retry_after_ms = contest.closes_at_ms - now_ms
    decision.conflict_with_proposal_ids.append(waiting_id)


def _free_after_ms(state: State, holder: str, now_ms: int) -> int:
    """Return when a held conflict key may be free again, as far as the log can tell."""
    live = state.decisions[holder]
    if live.phase == APPROVED and not live.compensates:
        return max(0, live.timer_due_ms - now_ms)
    if live.phase == EXECUTING:
        return max(0, live.lease_until_ms - now_ms)
    return 0


def outrank(decision: Decision, winner_id: str, free_after_ms: int) -> None:
    """Refuse a proposal that still passed when its contest closed, because another one, named by its event_id, scored higher."""
    refuse(decision, reasons.OUTRANKED, RetryHint(retryable=True, retry_after_ms=free_after_ms))
    decision.conflict_with_proposal_ids.append(winner_id)
    for field in ("rule_set_digest", "rule_id", "pinned_facts", "absent_facts", "valid_until", "retry_policy"):
        decision.ClearField(field)


def close_trace(decision: Decision) -> None:
    """Refuse what was judged already, because its trace has come under review meanwhile."""
    decision.CopyFrom(
        Decision(
            arbiter_version=decision.arbiter_version,
            action_type=decision.action_type,
            params=decision.params,
            evaluated_at=decision.evaluated_at,
            active_policy_ids=decision.active_policy_ids,
            active_rule_sets=decision.active_rule_sets,
            contest=decision.contest,
        )
    )
    refuse(decision, reasons.UNDER_REVIEW, RetryHint())


def fail(decision: Decision, what: str) -> None:
    """Refuse what could not be evaluated."""
    refuse(decision, reasons.EVALUATION_ERROR, RetryHint())
    decision.ClearField("rule_set_digest")
    decision.ClearField("rule_id")
    decision.warnings.append(DecisionWarning(code=reasons.EVALUATION_ERROR, message=what))


def make_terminal(decision: Decision, governed: list[Governed]) -> None:
    """Make a refusal terminal, with the facts that it rests on: they alone can lift it (seeds 002 §6.4)."""
    merge(decision, _TERMINAL + _rests_on(governed))


def warn_of_unknown(decision: Decision, unknown: Iterable[Citation]) -> None:
    """Name what is cited and not there, or is no evidence."""
    for number, event_id in unknown:
        message = f"{event_id} is no fact or observation at {number}"
        decision.warnings.add(code=reasons.UNKNOWN_EVENT, message=message)


def warn_of_violations(decision: Decision, violations: Sequence[tuple[str, str]]) -> None:
    """Name what does not fit a schema, as far as a decision has room for it: an agent sends what it likes."""
    for pointer, keyword in violations[:VIOLATIONS_NAMED_MAX]:
        place = clipped(pointer, POINTER_LENGTH_MAX)
        decision.warnings.add(code="SCHEMA_VIOLATION", message=f"{place or '/'}: {keyword}")
    more = len(violations) - VIOLATIONS_NAMED_MAX
    if more > 0:
        decision.warnings.add(code="SCHEMA_VIOLATION", message=f"and {more} more")


def bind(decision: Decision, now_ms: int, governed: list[Governed]) -> None:
    """Bind an approval to the evidence that it rests on, to a time limit and to a retry policy."""
    valid_until = _VALID_UNTIL.moment(now_ms + min([view.action.decision_ttl_ms for view in governed]))
    merge(decision, governed[0].action.retried + valid_until + _rests_on(governed))


def _rests_on(governed: list[Governed]) -> bytes:
    """Return the part of a decision that names its evidence, and the optional facts that were absent: each once, with whose it is."""
    named = b""
    for piece, policy_ids in _distinct(governed):
        candidate = piece.candidate
        if candidate is None:
            named = named + absent(piece.declared.key, piece.subject, policy_ids)
        else:
            named = named + pinned(candidate.pin, piece.fresh_until_ms, policy_ids)
    return named


_ALL: Final[list[str]] = []


def _distinct(governed: list[Governed]) -> list[tuple[Piece, list[str]]]:
    """Return each piece of evidence once, as it is fresh for the shortest, with the policy_ids of who sees it; none: all do."""
    if len(governed) == 1 and governed[0].action.keys_differ:
        return [(piece, _ALL) for piece in governed[0].evidence.pieces]
    found: dict[tuple[str, str, str], Piece] = {}
    seen_by: dict[tuple[str, str, str], list[str]] = {}
    for view in governed:
        policy_id = view.action.policy_id
        for piece in view.evidence.pieces:
            candidate = piece.candidate
            identity = (piece.declared.key, piece.subject, candidate.event_id if candidate is not None else "")
            known = found.get(identity)
            if known is None or piece.fresh_until_ms < known.fresh_until_ms:
                found[identity] = piece
            policy_ids = seen_by.setdefault(identity, [])
            if policy_id not in policy_ids:
                policy_ids.append(policy_id)
    everybody = len(governed)
    return [(piece, seen_by[identity] if len(seen_by[identity]) < everybody else _ALL) for identity, piece in found.items()]
