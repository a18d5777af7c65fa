"""From a proposal to exactly one decision: the stages, in their order of precedence (seeds 002 §6).

`arbitrate` is total and pure. The first stage that refuses gives the reason code; the evidence stages are looked at even
when an earlier one refuses, so that one rejection names everything that is missing. Missing is never permission: what
cannot be evaluated is refused. `stages` has them in one table.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Final

from gavel.v1 import decision_pb2
from gavel.v1.arbitration_service_pb2 import RuleExplanation
from gavel.v1.common_pb2 import EventReference, ProducerType
from gavel.v1.decision_pb2 import (
    Decision,
    FactRequirementState,
    RetryHint,
)
from gavel.v1.decision_pb2 import (
    Warning as DecisionWarning,
)
from gavel.v1.envelope_pb2 import Envelope

from gavel_rules import evidence as evidence_module
from gavel_rules import reasons
from gavel_rules.case import Case
from gavel_rules.events import ARBITER_VERSION, GAVEL, set_timestamp
from gavel_rules.evidence import Cited, Evidence, Piece, certain, citations_of, gather, hint, superseded
from gavel_rules.fingerprint import fingerprint
from gavel_rules.limits import CONDITIONS_QUOTED_MAX, REJECTION_LIMIT_DEFAULT
from gavel_rules.projection import APPROVED, EXECUTING, State, contest_name
from gavel_rules.records import Rejections
from gavel_rules.ruleset import CompiledAction, Rule, Verdict
from gavel_rules.stages import RefusalClass, refusal_class
from gavel_rules.values import struct_to_dict

# How an action's rules are asked: Rete with or without the cross-check, or the reference engine alone.
Judge = Callable[[CompiledAction, Case], Verdict]

VIOLATIONS_NAMED_MAX: Final = 100
POINTER_LENGTH_MAX: Final = 256

_PRODUCER_PREFIX: Final = "PRODUCER_TYPE_"
_PRODUCER_NAME: Final = {number: name.removeprefix(_PRODUCER_PREFIX) for name, number in ProducerType.items()}
_EFFECT_RANK: Final = {"reject": 0, "review": 1, "approve": 2}

# Refusals of stage 16 that are no word of the rules: nothing follows from them.
_FAULTS: Final = frozenset({reasons.EVALUATION_ERROR, reasons.ENGINE_DISAGREEMENT})

# Which stage a selection's state belongs to, in order.
_EVIDENCE_STAGES: Final[Sequence[tuple[frozenset[FactRequirementState.ValueType], str]]] = (
    (frozenset({evidence_module.MISSING, evidence_module.SOURCE_NOT_ACCEPTED}), reasons.NEED_MORE_FACTS),
    (frozenset({evidence_module.WRONG_TYPE}), reasons.FACT_TYPE_MISMATCH),
    (frozenset({evidence_module.TIER_TOO_LOW}), reasons.INSUFFICIENT_EVIDENCE_TIER),
    (frozenset({evidence_module.STALE}), reasons.STALE_FACTS),
    (frozenset({evidence_module.SUPERSEDED}), reasons.FACT_SUPERSEDED),
)


class _Governed:
    """One governing rule set's view of a proposal."""

    def __init__(self, action: CompiledAction, params: dict[str, object], evidence: Evidence) -> None:
        self.action: Final = action
        self.params: Final = params
        self.evidence: Final = evidence


def arbitrate(
    state: State,
    envelope: Envelope,
    known: Mapping[int, Cited],
    now_ms: int,
    judge: Judge,
    governing: tuple[CompiledAction, ...] | None = None,
    into: Decision | None = None,
) -> Decision:
    """Return the decision on a proposal, without the identifiers that its place in the log gives.

    `known` holds the events that the proposal cites, by sequence number, as far as the log has them. `governing` stands
    in for the state's rule sets (dry runs). `into` is an empty decision to fill, so that none need be copied. An approval that
    has `contest` is none yet: the proposal has to compete first, in the contest that is described there.
    """
    actions = state.governing.get(envelope.proposal.action_type, ()) if governing is None else governing
    decision = weigh(state, envelope, known, now_ms, judge, actions, into)
    count_rejection(decision, state, envelope.trace_id, now_ms, actions)
    return decision


def weigh(
    state: State,
    envelope: Envelope,
    known: Mapping[int, Cited],
    now_ms: int,
    judge: Judge,
    actions: tuple[CompiledAction, ...],
    into: Decision | None = None,
) -> Decision:
    """Return what `arbitrate` does, before rejections are counted: stages 1 to 17, by the rule sets given.

    A proposal that has entered a contest is not asked for its citations again: `known` is what the log had when it entered.
    """
    proposal = envelope.proposal
    decision = Decision() if into is None else into
    _begin(decision, envelope, now_ms, actions)
    if state.open_review(envelope.trace_id):
        _refuse(decision, reasons.UNDER_REVIEW, RetryHint())
    elif state.ended and state.is_ended(envelope.trace_id, proposal.action_type, envelope.subject, actions, now_ms):
        _refuse(decision, reasons.NO_FEASIBLE_PROPOSAL, RetryHint())
        decision.terminal = True
    elif not actions:
        _refuse(decision, reasons.NO_ACTIVE_POLICY, RetryHint())
    else:
        _judge_governed(decision, state, envelope, known, now_ms, judge, actions)
    return decision


def leave_to_person(envelope: Envelope, now_ms: int, actions: tuple[CompiledAction, ...]) -> Decision:
    """Return the decision on a proposal that cannot be judged and must be decided: a person has to look."""
    decision = Decision()
    _begin(decision, envelope, now_ms, actions)
    _refuse(decision, reasons.NOT_JUDGED, RetryHint())
    decision.outcome = decision_pb2.OUTCOME_NEEDS_HUMAN_REVIEW
    decision.conflict_key = envelope.proposal.contest.conflict_key
    return decision


def _begin(decision: Decision, envelope: Envelope, now_ms: int, actions: tuple[CompiledAction, ...]) -> None:
    """Say in a decision what it is about, when it is made, and which rule sets are consulted."""
    decision.arbiter_version = ARBITER_VERSION
    decision.action_type = envelope.proposal.action_type
    decision.params.CopyFrom(envelope.proposal.params)
    set_timestamp(decision.evaluated_at, now_ms)
    for action in actions:
        decision.active_policy_ids.append(action.policy_id)
        decision.active_rule_sets.add(policy_id=action.policy_id, version=action.version, digest=action.digest)


def explain(state: State, envelope: Envelope, now_ms: int, governing: tuple[CompiledAction, ...] | None = None) -> list[RuleExplanation]:
    """Return how every rule of the governing rule sets comes out for a proposal; nothing if its params fit no schema."""
    actions = state.governing.get(envelope.proposal.action_type, ()) if governing is None else governing
    params = struct_to_dict(envelope.proposal.params)
    explanations: list[RuleExplanation] = []
    for action in actions:
        if not action.violations(params):
            view = _governed(state, action, actions, envelope, params, now_ms)
            explanations.extend(action.explain(_case(state, envelope, now_ms, view)))
    return explanations


def reread(
    decision: Decision,
    state: State,
    proposal: Envelope,
    known: Mapping[int, Cited],
    now_ms: int,
    actions: Sequence[CompiledAction],
    holder: str,
) -> bool:
    """Judge what a person approves by its evidence alone, whatever rules say: stages 6, 9 to 12, and 15. Returns whether it passes.

    `decision` has its conflict key; it becomes an approval bound to the latest evidence, or a refusal. `holder` is the decision
    that may hold the key: the one whose execution is to go on, or "".
    """
    params = struct_to_dict(proposal.proposal.params)
    governed = [_governed(state, action, actions, proposal, params, now_ms) for action in actions]
    if _names_refuse(decision, governed):
        return False
    citations, unknown = citations_of(proposal, known)
    _warn_of_unknown(decision, unknown)
    pieces = [piece for view in governed for piece in view.evidence.pieces]
    unmet = [piece for piece in pieces if piece.state]
    if unknown:
        reason_code = reasons.UNKNOWN_EVENT
    elif _contradictions(decision, state, citations, pieces):
        reason_code = reasons.CONFLICTING_EVIDENCE
    else:
        reason_code = _evidence_refusal(unmet)
    if reason_code:
        _refuse_for_evidence(decision, reason_code, governed, unmet)
        return False
    held_by = state.holds.get(decision.conflict_key, holder)
    if held_by != holder:
        _refuse_for_conflict(decision, state, held_by, now_ms)
        return False
    decision.outcome = decision_pb2.OUTCOME_APPROVED
    _pin(decision, governed)
    _bind(decision, now_ms, governed)
    return True


def _judge_governed(
    decision: Decision,
    state: State,
    envelope: Envelope,
    known: Mapping[int, Cited],
    now_ms: int,
    judge: Judge,
    actions: tuple[CompiledAction, ...],
) -> None:
    params = struct_to_dict(envelope.proposal.params)
    violations = sorted({violation for action in actions for violation in action.violations(params)})
    if violations:
        _refuse(decision, reasons.INVALID_PARAMS, RetryHint(retryable=True))
        warn_of_violations(decision, violations)
        return
    governed = [_governed(state, action, actions, envelope, params, now_ms) for action in actions]
    conflict_key = _conflict_key(governed, state, envelope, now_ms)
    if conflict_key is None:
        _refuse(decision, reasons.INVALID_PARAMS, RetryHint(retryable=True))
        decision.warnings.append(DecisionWarning(code="CONFLICT_KEY", message="the action's conflict_key has no value for these params"))
        return
    if _names_refuse(decision, governed):
        return
    if _versions_refuse(decision, envelope, actions):
        return
    citations, unknown = citations_of(envelope, known)
    pieces = [piece for view in governed for piece in view.evidence.pieces]
    unmet = [piece for piece in pieces if piece.state]
    unmet.extend(superseded(pieces, citations))
    _warn_of_unknown(decision, unknown)
    contradicted = bool(state.contradicted) and _contradictions(decision, state, citations, pieces)
    reason_code = _first_refusal(state, envelope, citations, bool(unknown), pieces, unmet, conflict_key, contradicted)
    if not reason_code and _repeated(state, envelope, now_ms):
        reason_code = reasons.DUPLICATE_PROPOSAL
    if reason_code:
        _refuse_for_evidence(decision, reason_code, governed, unmet)
        return
    decision.conflict_key = conflict_key
    holder = state.holds.get(conflict_key)
    if holder is not None:
        _refuse_for_conflict(decision, state, holder, now_ms)
        return
    _ask_rules(decision, state, envelope, now_ms, judge, governed)
    if decision.outcome == decision_pb2.OUTCOME_APPROVED:
        _contend(decision, state, envelope, now_ms, governed)
    if decision.outcome == decision_pb2.OUTCOME_APPROVED:
        _pin(decision, governed)
        _bind(decision, now_ms, governed)
    elif decision.outcome == decision_pb2.OUTCOME_REJECTED and decision.reason_code not in _FAULTS and not _feasible(state, governed):
        _end(decision, governed)


def _names_refuse(decision: Decision, governed: list[_Governed]) -> bool:
    """Refuse if the subject of a declared fact has no name."""
    unnamed = [declared for view in governed for declared in view.evidence.unnamed]
    if unnamed:
        _refuse(decision, reasons.INVALID_PARAMS, RetryHint(retryable=True))
        decision.warnings.extend(
            DecisionWarning(code="FACT_SUBJECT", message=f"the subject of {key} has no value, or none of the form type/id")
            for key in dict.fromkeys(declared.key for declared in unnamed)
        )
    return bool(unnamed)


def _warn_of_unknown(decision: Decision, unknown: Iterable[EventReference]) -> None:
    for reference in unknown:
        message = f"{reference.event_id} is no fact or observation at {reference.sequence_number}"
        decision.warnings.add(code=reasons.UNKNOWN_EVENT, message=message)


def _refuse_for_evidence(decision: Decision, reason_code: str, governed: list[_Governed], unmet: list[Piece]) -> None:
    """Refuse, with everything that is missing. Contradicting readings are for a person to look at."""
    pieces = (piece for view in governed for piece in view.evidence.pieces)
    _refuse(decision, reason_code, hint(unmet, pieces, retryable=True))
    unresolved = dict.fromkeys(declared.key for view in governed for declared in view.evidence.unresolved)
    decision.warnings.extend(
        DecisionWarning(code="SUBJECT_UNRESOLVED", message=f"whose {key} is needed depends on facts that are not as required")
        for key in unresolved
    )
    if reason_code == reasons.CONFLICTING_EVIDENCE:
        decision.outcome = decision_pb2.OUTCOME_NEEDS_HUMAN_REVIEW
        decision.retry_hint.retryable = False


def _refuse_for_conflict(decision: Decision, state: State, holder: str, now_ms: int) -> None:
    _refuse(decision, reasons.CONFLICTING_DECISION, RetryHint(retryable=True, retry_after_ms=_free_after_ms(state, holder, now_ms)))
    decision.conflict_with_proposal_ids.append(state.decisions[holder].decision.decision.proposal_id)


def _governed(
    state: State,
    action: CompiledAction,
    actions: Sequence[CompiledAction],
    envelope: Envelope,
    params: dict[str, object],
    now_ms: int,
) -> _Governed:
    """Return an action's view of a proposal whose params fit its schema."""
    typed = action.typed_params(params)
    return _Governed(action, typed, gather(state, action, actions, envelope, typed, now_ms))


def warn_of_violations(decision: Decision, violations: Sequence[tuple[str, str]]) -> None:
    """Name what does not fit a schema, as far as a decision has room for it: an agent sends what it likes."""
    for pointer, keyword in violations[:VIOLATIONS_NAMED_MAX]:
        place = pointer if len(pointer) <= POINTER_LENGTH_MAX else f"{pointer[: POINTER_LENGTH_MAX - 1]}…"
        decision.warnings.add(code="SCHEMA_VIOLATION", message=f"{place or '/'}: {keyword}")
    more = len(violations) - VIOLATIONS_NAMED_MAX
    if more > 0:
        decision.warnings.add(code="SCHEMA_VIOLATION", message=f"and {more} more")


def _versions_refuse(decision: Decision, envelope: Envelope, actions: tuple[CompiledAction, ...]) -> bool:
    """Warn of every version that is not as a rule set requires it; refuse if one of them says so. The strictest speaks."""
    failed = False
    messages: dict[str, None] = {}
    for action in actions:
        for name, accepted in action.required_versions:
            version = getattr(envelope.version_binding, name)
            if version not in accepted:
                messages[f"{name} is {version or 'not given'}; {action.policy_id} requires {' or '.join(accepted)}"] = None
                failed = failed or action.on_version_mismatch == "fail"
    for message in messages:
        decision.warnings.add(code=reasons.VERSION_MISMATCH, message=message)
    if failed:
        _refuse(decision, reasons.VERSION_MISMATCH, RetryHint(retryable=True))
    return failed


def _conflict_key(governed: list[_Governed], state: State, envelope: Envelope, now_ms: int) -> str | None:
    """Return what the action must hold alone. Rule sets that share an action agree on it, so the first one speaks."""
    first = governed[0]
    if first.action.conflict_key_is_subject:
        return envelope.subject
    return first.action.conflict_key(_case(state, envelope, now_ms, first))


def _first_refusal(
    state: State,
    envelope: Envelope,
    citations: list[Cited],
    unknown: bool,
    pieces: list[Piece],
    unmet: list[Piece],
    conflict_key: str,
    contradicted: bool,
) -> str:
    """Return the reason code of the first of stages 6 to 13 that refuses, or ""."""
    proposal = envelope.proposal
    if unknown:
        return reasons.UNKNOWN_EVENT
    if not proposal.HasField("contest") and not _cites_input(envelope, citations, pieces):
        return reasons.NO_FACT_INPUT
    if proposal.HasField("projection_version") and _changed_since(state, proposal.projection_version, citations, pieces, conflict_key):
        return reasons.PROJECTION_CHANGED
    if contradicted:
        return reasons.CONFLICTING_EVIDENCE
    return _evidence_refusal(unmet) if unmet else ""


def _evidence_refusal(unmet: list[Piece]) -> str:
    """Return the reason code of the first of stages 10 to 13 that refuses, or ""."""
    states = {piece.state for piece in unmet}
    return next((reason_code for of_stage, reason_code in _EVIDENCE_STAGES if states & of_stage), "")


def _contradictions(decision: Decision, state: State, citations: list[Cited], pieces: list[Piece]) -> bool:
    """Warn of tool results that the evidence rests on and that were read in two ways (seeds 002 §4.6); return whether there are any."""
    refs = [citation.evidence_ref for citation in citations]
    refs.extend(piece.candidate.evidence_ref for piece in pieces if piece.candidate is not None)
    contradicted = [evidence_ref for evidence_ref in dict.fromkeys(refs) if evidence_ref in state.contradicted]
    for evidence_ref in contradicted:
        message = f"observations read different values of {state.contradicted[evidence_ref]} in {evidence_ref}"
        decision.warnings.add(code=reasons.CONFLICTING_EVIDENCE, message=message)
    return bool(contradicted)


def _repeated(state: State, envelope: Envelope, now_ms: int) -> bool:
    """Whether the trace was refused this very proposal last, for lack of evidence or by policy."""
    refused = state.refused(envelope.trace_id, now_ms)
    return bool(refused) and fingerprint(envelope) == refused


def _cites_input(envelope: Envelope, citations: list[Cited], pieces: list[Piece]) -> bool:
    """No input, no inference (seeds 002 §9.1): something cited is about the subject or a declared key."""
    subject = envelope.subject
    for citation in citations:
        if citation.subject == subject:
            return True
        if any(citation.subject == piece.subject and piece.declared.key in citation.keys for piece in pieces):
            return True
    return False


def _changed_since(state: State, version: int, citations: list[Cited], pieces: list[Piece], conflict_key: str) -> bool:
    """Return whether declared evidence, or the decision that holds the key, changed after `version` by an uncited event."""
    cited_ids = {citation.event_id for citation in citations}
    for piece in pieces:
        declared = piece.declared
        for candidate in state.evidence.get(piece.subject, {}).get(declared.key, ()):
            if (
                candidate.sequence_number > version
                and candidate.event_id not in cited_ids
                and (not declared.sources or candidate.source in declared.sources)
            ):
                return True
    holder = state.holds.get(conflict_key)
    return holder is not None and state.decisions[holder].last_sequence_number > version


def _free_after_ms(state: State, holder: str, now_ms: int) -> int:
    """Return when a held conflict key may be free again, as far as the log can tell."""
    live = state.decisions[holder]
    if live.phase == APPROVED and live.timer_due_ms:
        return max(0, live.timer_due_ms - now_ms)
    if live.phase == EXECUTING:
        return max(0, live.lease_until_ms - now_ms)
    return 0


def _case(state: State, envelope: Envelope, now_ms: int, view: _Governed) -> Case:
    proposal = envelope.proposal
    producer = envelope.producer
    # By position: sixteen arguments by name cost as much again as the whole function.
    return Case(
        view.params,
        view.evidence.facts,
        proposal.risk,
        proposal.cost,
        proposal.confidence,
        proposal.priority,
        proposal.expected_outcome,
        envelope.subject,
        _PRODUCER_NAME[producer.type],
        producer.id,
        producer.version,
        view.evidence.present,
        view.evidence.worst_trust,
        view.evidence.oldest_age_ms,
        state.rejections(envelope.trace_id, now_ms).total,
        now_ms,
    )


def _ask_rules(decision: Decision, state: State, envelope: Envelope, now_ms: int, judge: Judge, governed: list[_Governed]) -> None:
    erring: list[tuple[str, str]] = []
    disagreed = False
    room = CONDITIONS_QUOTED_MAX
    deciding: tuple[int, str, CompiledAction, Rule] | None = None
    for view in governed:
        action = view.action
        verdict = judge(action, _case(state, envelope, now_ms, view))
        if verdict.error:
            erring.append((action.policy_id, verdict.error))
            continue
        if verdict.disagreement is not None:
            disagreed = True
            rete, reference = verdict.disagreement
            decision.engine_verdicts.add(engine=decision_pb2.ENGINE_RETE, policy_id=action.policy_id, rule_ids=rete)
            decision.engine_verdicts.add(engine=decision_pb2.ENGINE_REFERENCE, policy_id=action.policy_id, rule_ids=reference)
        for rank_of_rule, rule in enumerate(verdict.matched):
            room -= len(rule.condition)
            condition = rule.condition if room >= 0 or rank_of_rule == 0 else ""
            decision.rule_matches.add(policy_id=action.policy_id, rule_id=rule.id, effect=rule.effect, condition=condition)
        if verdict.matched:
            speaker = verdict.matched[0]
            rank = _EFFECT_RANK[speaker.effect]
            if deciding is None or (rank, action.policy_id) < deciding[:2]:
                deciding = (rank, action.policy_id, action, speaker)
    if erring:
        _refuse(decision, reasons.EVALUATION_ERROR, RetryHint())
        decision.rule_id = erring[0][1]
        decision.warnings.extend(
            DecisionWarning(code=reasons.EVALUATION_ERROR, message=f"{policy_id}/{rule_id}") for policy_id, rule_id in erring
        )
        return
    if disagreed:
        _refuse(decision, reasons.ENGINE_DISAGREEMENT, RetryHint())
        return
    if deciding is None:
        _refuse(decision, reasons.NO_RULE_MATCHED, RetryHint(retryable=True))
        return
    _, _, action, rule = deciding
    decision.policy_id = action.policy_id
    decision.policy_version = action.version
    decision.rule_set_digest = action.digest
    decision.rule_id = rule.id
    decision.reason_code = rule.reason_code
    if rule.effect == "approve":
        decision.outcome = decision_pb2.OUTCOME_APPROVED
    elif rule.effect == "review":
        decision.outcome = decision_pb2.OUTCOME_NEEDS_HUMAN_REVIEW
    else:
        decision.outcome = decision_pb2.OUTCOME_REJECTED
        decision.retry_hint.retryable = True


def _contend(decision: Decision, state: State, envelope: Envelope, now_ms: int, governed: list[_Governed]) -> None:
    """Score what the rules approve and say which contest it would enter, if it has to compete for its conflict key."""
    view = governed[0]  # rule sets that share an action agree on its window and score
    window_ms = view.action.contest_window_ms
    contest = state.contests.get(contest_name(envelope.proposal.action_type, decision.conflict_key)) if state.contests else None
    if not window_ms and contest is None and not envelope.proposal.HasField("contest"):
        return
    score = view.action.score(_case(state, envelope, now_ms, view))
    if score is None:
        fail(decision, f"{view.action.policy_id}/score")
        return
    opened_at_ms, closes_at_ms = (contest.opened_at_ms, contest.closes_at_ms) if contest is not None else (now_ms, now_ms + window_ms)
    set_timestamp(decision.contest.opened_at, opened_at_ms)
    set_timestamp(decision.contest.closed_at, closes_at_ms)
    decision.contest.candidates.add(score=score)


def outrank(decision: Decision, winner_id: str, free_after_ms: int) -> None:
    """Refuse a proposal that still passed when its contest closed, because another one, named by its event_id, scored higher."""
    _refuse(decision, reasons.OUTRANKED, RetryHint(retryable=True, retry_after_ms=free_after_ms))
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
    _refuse(decision, reasons.UNDER_REVIEW, RetryHint())


def fail(decision: Decision, what: str) -> None:
    """Refuse what could not be evaluated."""
    _refuse(decision, reasons.EVALUATION_ERROR, RetryHint())
    decision.ClearField("rule_set_digest")
    decision.ClearField("rule_id")
    decision.warnings.append(DecisionWarning(code=reasons.EVALUATION_ERROR, message=what))


def _feasible(state: State, governed: list[_Governed]) -> bool:
    """Whether the rules could approve or review any proposal of the action on the subject while its facts are what they are."""
    prospects = [view.action.prospect(certain(state, view.action, view.evidence)) for view in governed]
    return any(prospect.may_pass for prospect in prospects) and not any(prospect.surely_rejects for prospect in prospects)


def _end(decision: Decision, governed: list[_Governed]) -> None:
    """Make a refusal terminal, with the facts that it rests on: they alone can lift it (seeds 002 §6.4)."""
    _pin(decision, governed)
    decision.terminal = True
    decision.retry_hint.retryable = False
    decision.warnings.append(
        DecisionWarning(code=reasons.NO_FEASIBLE_PROPOSAL, message="while these facts hold, no proposal of it can pass the rules")
    )


def _bind(decision: Decision, now_ms: int, governed: list[_Governed]) -> None:
    """Bind an approval to a time limit and a retry policy."""
    set_timestamp(decision.valid_until, now_ms + min([view.action.decision_ttl_ms for view in governed]))
    decision.retry_policy.CopyFrom(governed[0].action.retry)


def _pin(decision: Decision, governed: list[_Governed]) -> None:
    """Name the evidence that a decision rests on, and the optional facts that were absent: each once, with whose it is."""
    pinned: dict[tuple[str, str, str], Piece] = {}
    absent: dict[tuple[str, str, str], Piece] = {}
    seen_by: dict[tuple[str, str, str], dict[str, None]] = {}
    several = len(governed) > 1
    for view in governed:
        for piece in view.evidence.pieces:
            candidate = piece.candidate
            identity = (piece.declared.key, piece.subject, candidate.event_id if candidate is not None else "")
            if several:
                seen_by.setdefault(identity, {})[view.action.policy_id] = None
            if candidate is None:
                absent[identity] = piece
                continue
            known = pinned.get(identity)
            if known is None or piece.fresh_until_ms < known.fresh_until_ms:
                pinned[identity] = piece
    for identity, piece in pinned.items():
        candidate = piece.candidate
        assert candidate is not None  # noqa: S101  # for the type checker: only present pieces are pinned
        # One by one: arguments by name cost more.
        pin = decision.pinned_facts.add()
        pin.key = piece.declared.key
        pin.subject = piece.subject
        pin.event_id = candidate.event_id
        pin.sequence_number = candidate.sequence_number
        pin.trust_tier = candidate.trust_tier  # type: ignore[assignment]  # an int of the closed enum
        pin.evidence_hash = candidate.evidence_hash
        set_timestamp(pin.fresh_until, piece.fresh_until_ms)
        if several and len(seen_by[identity]) < len(governed):
            pin.policy_ids.extend(seen_by[identity])
    for identity, piece in absent.items():
        lacking = decision.absent_facts.add()
        lacking.key = piece.declared.key
        lacking.subject = piece.subject
        if several and len(seen_by[identity]) < len(governed):
            lacking.policy_ids.extend(seen_by[identity])


def _refuse(decision: Decision, reason_code: str, retry_hint: RetryHint) -> None:
    """Make the decision a refusal of Gavel's own."""
    decision.outcome = decision_pb2.OUTCOME_REJECTED
    decision.reason_code = reason_code
    decision.policy_id = GAVEL
    decision.policy_version = ARBITER_VERSION
    decision.retry_hint.CopyFrom(retry_hint)


def count_rejection(decision: Decision, state: State, trace_id: str, now_ms: int, actions: Sequence[CompiledAction]) -> None:
    """Count a rejection and, at a limit, call a person instead of letting the trace loop (seeds 002 §5.6, §6.3)."""
    if decision.outcome == decision_pb2.OUTCOME_APPROVED:
        return
    rejections = state.rejections(trace_id, now_ms)
    of_class = refusal_class(decision.reason_code) if decision.outcome == decision_pb2.OUTCOME_REJECTED else None
    if of_class is not None:
        rejections = rejections._replace(**{of_class: getattr(rejections, of_class) + 1})
    note_rejections(decision, rejections)
    if of_class is not None and _limit_reached(rejections, of_class, actions):
        _call_person(decision)


def note_rejections(decision: Decision, rejections: Rejections) -> None:
    """Say in a decision how many rejections in a row its trace has had."""
    if rejections.total:
        decision.consecutive_rejections = rejections.total
        decision.rejection_counts.evidence = rejections.evidence
        decision.rejection_counts.policy = rejections.policy
        decision.rejection_counts.conflict = rejections.conflict


def _limit_reached(rejections: Rejections, of_class: RefusalClass, actions: Sequence[CompiledAction]) -> bool:
    """Whether a rejection of a class was one too many for any rule set.

    A class that a rule set limits is counted by itself; its `rejection_limit` is for the classes that it does not limit. Where
    no rule set says anything about the class, Gavel's own limit holds.
    """
    limited = False
    for action in actions:
        if of_class in action.rejection_limits:
            limited = True
            if getattr(rejections, of_class) >= action.rejection_limits[of_class]:
                return True
        elif action.rejection_limit is not None:
            limited = True
            if _outside(rejections, action.rejection_limits) >= action.rejection_limit:
                return True
    own = {name for action in actions for name in action.rejection_limits}
    return not limited and _outside(rejections, own) >= REJECTION_LIMIT_DEFAULT


def _outside(rejections: Rejections, classes: Container[str]) -> int:
    """Return how many rejections there were of other classes than these."""
    return sum(count for name, count in zip(Rejections._fields, rejections, strict=True) if name not in classes)


def _call_person(decision: Decision) -> None:
    """Make a rejection a call for a person; what was wrong becomes a warning."""
    count = decision.consecutive_rejections
    decision.warnings.append(
        DecisionWarning(code=decision.reason_code, message=f"rejection {count} in a row of this trace; the limit calls a person")
    )
    decision.outcome = decision_pb2.OUTCOME_NEEDS_HUMAN_REVIEW
    decision.reason_code = reasons.REJECTION_LIMIT
    decision.policy_id = GAVEL
    decision.policy_version = ARBITER_VERSION
    decision.rule_set_digest = ""
    decision.rule_id = ""
    decision.retry_hint.retryable = False
