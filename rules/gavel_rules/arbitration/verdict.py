"""The content of decisions: why one refuses, what is missing, and what an approval is bound to.

These functions fill a Decision; none of them decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from gavel.v1.decision_pb2 import Decision, RetryHint
from gavel.v1.decision_pb2 import Warning as DecisionWarning
from google.protobuf.struct_pb2 import Struct

from gavel_rules import reason_codes
from gavel_rules.arbitration import retry_hint
from gavel_rules.arbitration.action_view import ActionView
from gavel_rules.arbitration.evidence import EvidenceSelection
from gavel_rules.codec.decision_fragments import encode_evaluation, encode_valid_until, merge_fragments
from gavel_rules.codec.evidence_fragments import encode_absent_fact, encode_pinned_fact
from gavel_rules.events.citation import Citation
from gavel_rules.events.kinds import GAVEL, OUTCOME_NEEDS_HUMAN_REVIEW, OUTCOME_REJECTED
from gavel_rules.events.proposal_view import ProposalView
from gavel_rules.events.timestamps import set_timestamp
from gavel_rules.language.document.models import DERIVATION_FACTS_BYTES_MAX
from gavel_rules.language.rule_set import CompiledAction
from gavel_rules.state.counters import Absence
from gavel_rules.state.state import State
from gavel_rules.text import clip
from gavel_rules.values import python_to_value

VIOLATIONS_NAMED_MAX: Final = 100
POINTER_LENGTH_MAX: Final = 256

# Bound once: docs/performance.md#module-constants
merge: Final = merge_fragments
_copy_struct: Final = Struct.CopyFrom
_TERMINAL: Final = retry_hint.NOT_RETRYABLE + Decision(
    terminal=True,
    warnings=[
        DecisionWarning(code=reason_codes.NO_FEASIBLE_PROPOSAL, message="while these facts hold, no proposal of it can pass the rules")
    ],
).SerializeToString(deterministic=True)


def begin(decision: Decision, arbiter_version: int, proposal: ProposalView, now_ms: int, actions: Sequence[CompiledAction]) -> None:
    """Fill the fields of every decision on a proposal: its semantics, its action and params, its time, and the rule sets consulted."""
    fragments = encode_evaluation(arbiter_version, now_ms)
    for action in actions:
        fragments = fragments + action.reference_fragment
    merge(decision, fragments)
    decision.action_type = proposal.action_type
    _copy_struct(decision.params, proposal.struct)


def refuse(decision: Decision, reason_code: str, hint: RetryHint | None = None) -> None:
    """Make the decision a refusal by Gavel, or a call for a person, as the reason code says. `hint` defaults to the code's."""
    decision.outcome = OUTCOME_NEEDS_HUMAN_REVIEW if reason_codes.calls_person(reason_code) else OUTCOME_REJECTED
    decision.reason_code = reason_code
    decision.policy_id = GAVEL
    decision.policy_version = decision.arbiter_version
    decision.retry_hint.CopyFrom(hint or retry_hint.of_reason_code(reason_code))


def refuse_for_evidence(decision: Decision, reason_code: str, views: list[ActionView], unmet: list[EvidenceSelection]) -> None:
    """Refuse, with everything that is missing."""
    selections = (selection for view in views for selection in view.evidence.selections)
    refuse(decision, reason_code, retry_hint.of_evidence(reason_code, unmet, selections))
    unresolved = dict.fromkeys(declaration.key for view in views for declaration in view.evidence.unresolved)
    decision.warnings.extend(
        DecisionWarning(code="SUBJECT_UNRESOLVED", message=f"whose {key} is needed depends on facts that are not as required")
        for key in unresolved
    )


def refuse_for_open_duplicate(decision: Decision, state: State, waiting_id: str, views: list[ActionView], now_ms: int) -> None:
    """Refuse because the same proposal, with the event_id `waiting_id`, waits for its contest, whose close will decide it."""
    refuse_for_evidence(decision, reason_codes.DUPLICATE_PROPOSAL, views, [])
    contest = state.contest_of(waiting_id)
    if contest is not None:
        retry_hint.delay_retry(decision, contest.closes_at_ms - now_ms)
    decision.conflict_with_proposal_ids.append(waiting_id)


def refuse_for_conflict(decision: Decision, state: State, holder_id: str, now_ms: int) -> None:
    """Refuse because another decision holds the conflict key."""
    code = reason_codes.CONFLICTING_DECISION
    refuse(decision, code, retry_hint.of_conflict(code, state, holder_id, now_ms))
    decision.conflict_with_proposal_ids.append(state.decisions[holder_id].decision.decision.proposal_id)


def outrank(decision: Decision, winner_id: str, free_after_ms: int) -> None:
    """Refuse a candidate that passes when its contest closes, because the proposal `winner_id` scores higher."""
    code = reason_codes.OUTRANKED
    refuse(decision, code, retry_hint.of_reason_code(code, free_after_ms))
    decision.conflict_with_proposal_ids.append(winner_id)
    for field in ("rule_set_digest", "rule_id", "pinned_facts", "absent_facts", "valid_until", "retry_policy", "details", "fact_values"):
        decision.ClearField(field)


def hold(decision: Decision) -> None:
    """Refuse a candidate whose producer has come under review in the trace during the close of its contest."""
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
    refuse(decision, reason_codes.UNDER_REVIEW)


def refuse_for_counters(decision: Decision, absences: Mapping[str, Mapping[str, Absence]], now_ms: int) -> None:
    """Refuse because counters give no number, or have no room for an approval, as `absences` says by policy_id and name."""
    refuse(decision, reason_codes.COUNTER_FULL)
    times = []
    for policy_id, of_policy in absences.items():
        for name, absence in of_policy.items():
            decision.warnings.add(code=reason_codes.COUNTER_FULL, message=f"{policy_id}/{name}: {absence.cause}")
            times.append(absence.until_ms)
    if all(times):
        retry_hint.delay_retry(decision, max(times) - now_ms)


def refuse_score(decision: Decision, policy_id: str) -> None:
    """Refuse a proposal that the rules approve but whose score cannot be computed."""
    refuse(decision, reason_codes.EVALUATION_ERROR)
    decision.ClearField("rule_set_digest")
    decision.ClearField("rule_id")
    decision.warnings.append(DecisionWarning(code=reason_codes.EVALUATION_ERROR, message=f"{policy_id}/score"))


def show_details(decision: Decision, policy_id: str, values: Mapping[str, object]) -> None:
    """Add what the deciding rule shows; warn of values that could not be computed."""
    decision.details.SetInParent()
    for name, value in values.items():
        if value is None:
            message = f"{policy_id}/{decision.rule_id}: {name} could not be computed"
            decision.warnings.add(code="DETAIL_FAILED", message=message)
        else:
            decision.details.fields[name].CopyFrom(python_to_value(value))


def make_terminal(decision: Decision, views: list[ActionView]) -> None:
    """Make a refusal terminal, with the facts that it rests on: only a change of these can lift it (constitution §6.4)."""
    merge(decision, _TERMINAL + _basis_fragments(views))


def bind(decision: Decision, now_ms: int, views: list[ActionView], rule_set_digest: str) -> None:
    """Bind an approval to the evidence that it rests on, to a time limit and to a retry policy.

    The rule set with `rule_set_digest` derives facts from its execution: what its derivations read of the evidence is recorded.
    """
    valid_until = encode_valid_until(now_ms + min([view.action.decision_ttl_ms for view in views]))
    merge(decision, views[0].action.retry_policy_fragment + valid_until + _basis_fragments(views))
    for view in views:
        if view.action.derivation_facts and view.action.digest == rule_set_digest:
            _add_fact_values(decision, view)


def _add_fact_values(decision: Decision, view: ActionView) -> None:
    """Record the facts that derivations read: their values, and how trusted and how old the evidence is.

    One that exceeds DERIVATION_FACTS_BYTES_MAX is left out, and derivations that read it give no fact.
    """
    room = DERIVATION_FACTS_BYTES_MAX
    for name in view.action.derivation_facts:
        if name not in view.evidence.facts:
            continue  # optional and absent
        value = python_to_value(view.evidence.facts[name])
        if value.ByteSize() > room:
            continue
        room -= value.ByteSize()
        fact = decision.fact_values.add(name=name, value=value)
        selected_candidates = [selection.candidate for selection in view.evidence.selections if selection.declaration.name == name]
        candidates = [candidate for candidate in selected_candidates if candidate is not None]
        if not candidates:
            continue  # of no subjects
        # An int of the closed enum.
        fact.trust_tier = max([candidate.trust_tier for candidate in candidates])  # type: ignore[assignment]
        aged_from_ms = min([candidate.aged_from_ms for candidate in candidates])
        set_timestamp(fact.aged_from, aged_from_ms)
        limits_ms = [candidate.aged_from_ms + candidate.max_age_ms for candidate in candidates if candidate.max_age_ms > 0]
        fact.max_age_ms = min(limits_ms) - aged_from_ms if limits_ms else 0


def warn_of_unknown(decision: Decision, citations: Iterable[Citation]) -> None:
    """Warn of citations that the log does not have as a fact or observation."""
    for number, event_id in citations:
        message = f"{event_id} is no fact or observation at {number}"
        decision.warnings.add(code=reason_codes.UNKNOWN_EVENT, message=message)


def warn_of_violations(decision: Decision, violations: Sequence[tuple[str, str]]) -> None:
    """Warn of schema violations, (JSON pointer, keyword), up to VIOLATIONS_NAMED_MAX: an agent may send any number."""
    for pointer, keyword in violations[:VIOLATIONS_NAMED_MAX]:
        place = clip(pointer, POINTER_LENGTH_MAX)
        decision.warnings.add(code="SCHEMA_VIOLATION", message=f"{place or '/'}: {keyword}")
    more = len(violations) - VIOLATIONS_NAMED_MAX
    if more > 0:
        decision.warnings.add(code="SCHEMA_VIOLATION", message=f"and {more} more")


def _basis_fragments(views: list[ActionView]) -> bytes:
    """Return the serialized part of a decision that names its evidence and the absent optional facts, each once."""
    fragments = b""
    for selection, policy_ids in _distinct_selections(views):
        candidate = selection.candidate
        if candidate is None:
            fragments = fragments + encode_absent_fact(selection.declaration.key, selection.subject, policy_ids)
        else:
            fragments = fragments + encode_pinned_fact(candidate.pin, selection.fresh_until_ms, policy_ids)
    return fragments


_ALL: Final[list[str]] = []


def _distinct_selections(views: list[ActionView]) -> list[tuple[EvidenceSelection, list[str]]]:
    """Return each selection once, with its shortest freshness, and the policy_ids of its rule sets (empty: all)."""
    if len(views) == 1 and views[0].action.fact_keys_are_unique:
        return [(selection, _ALL) for selection in views[0].evidence.selections]
    distinct: dict[tuple[str, str, str], EvidenceSelection] = {}
    policy_ids_of: dict[tuple[str, str, str], list[str]] = {}
    for view in views:
        policy_id = view.action.policy_id
        for selection in view.evidence.selections:
            candidate = selection.candidate
            identity = (selection.declaration.key, selection.subject, candidate.event_id if candidate is not None else "")
            known = distinct.get(identity)
            if known is None or selection.fresh_until_ms < known.fresh_until_ms:
                distinct[identity] = selection
            policy_ids = policy_ids_of.setdefault(identity, [])
            if policy_id not in policy_ids:
                policy_ids.append(policy_id)
    return [
        (selection, policy_ids_of[identity] if len(policy_ids_of[identity]) < len(views) else _ALL)
        for identity, selection in distinct.items()
    ]
