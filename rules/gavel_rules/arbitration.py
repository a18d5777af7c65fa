"""From a proposal to exactly one decision: the stages, in their order of precedence (seeds 002 §6).

`arbitrate` is total and pure. The first stage that refuses gives the reason code; the evidence stages are looked at even
when an earlier one refuses, so that one rejection names everything that is missing. Missing is never permission: what
cannot be evaluated is refused. `stages` has them in one table, `outcomes` what a decision says,
`budget` when a person is called instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Final

from gavel.v1 import decision_pb2
from gavel.v1.arbitration_service_pb2 import RuleExplanation
from gavel.v1.decision_pb2 import Decision, FactRequirementState, RetryHint
from gavel.v1.decision_pb2 import Warning as DecisionWarning
from gavel.v1.envelope_pb2 import Envelope
from google.protobuf.struct_pb2 import Struct

from gavel_rules import evidence as evidence_module
from gavel_rules import reasons
from gavel_rules.budget import count_rejection
from gavel_rules.events import (
    ARBITER_VERSION,
    MOMENTS_KEPT_MAX,
    OUTCOME_APPROVED,
    OUTCOME_NEEDS_HUMAN_REVIEW,
    set_timestamp,
    timestamp,
)
from gavel_rules.evidence import Cited, Piece, certain, citations_of, superseded
from gavel_rules.fingerprint import fingerprint
from gavel_rules.governed import Governed, case_of, view_of
from gavel_rules.language.case import Case
from gavel_rules.language.quoting import matched
from gavel_rules.language.ruleset import CompiledAction, Rule, Verdict
from gavel_rules.limits import CONDITIONS_QUOTED_MAX
from gavel_rules.outcomes import (
    bind,
    fail,
    make_terminal,
    merge,
    refuse,
    refuse_for_conflict,
    refuse_for_evidence,
    refuse_for_repetition,
    warn_of_unknown,
    warn_of_violations,
)
from gavel_rules.projection import State
from gavel_rules.proposed import Proposed
from gavel_rules.tables import action_on

# How an action's rules are asked: Rete with or without the cross-check, or the reference engine alone.
Judge = Callable[[CompiledAction, Case], Verdict]

# Looked up once: to find a method of a message takes longer than to set a field.
_copy: Final = Struct.CopyFrom

_EFFECT_RANK: Final = {"reject": 0, "review": 1, "approve": 2}

# Which stage a selection's state belongs to, in order.
_EVIDENCE_STAGES: Final[Sequence[tuple[frozenset[FactRequirementState.ValueType], str]]] = (
    (frozenset({evidence_module.MISSING, evidence_module.SOURCE_NOT_ACCEPTED}), reasons.NEED_MORE_FACTS),
    (frozenset({evidence_module.WRONG_TYPE}), reasons.FACT_TYPE_MISMATCH),
    (frozenset({evidence_module.TIER_TOO_LOW}), reasons.INSUFFICIENT_EVIDENCE_TIER),
    (frozenset({evidence_module.STALE}), reasons.STALE_FACTS),
    (frozenset({evidence_module.SUPERSEDED}), reasons.FACT_SUPERSEDED),
)


def arbitrate(
    state: State,
    asked: Proposed,
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
    actions = state.governing.get(asked.action_type, ()) if governing is None else governing
    decision = Decision() if into is None else into
    _weigh(decision, state, asked, known, now_ms, judge, actions)
    count_rejection(decision, state, asked.trace_id, now_ms, actions)
    return decision


def weigh(
    state: State,
    envelope: Envelope,
    known: Mapping[int, Cited],
    now_ms: int,
    judge: Judge,
    actions: tuple[CompiledAction, ...],
) -> Decision:
    """Return what `arbitrate` does, before rejections are counted: stages 1 to 17, by the rule sets given.

    A proposal that has entered a contest is not asked for its citations again: `known` is what the log had when it entered.
    """
    decision = Decision()
    _weigh(decision, state, Proposed(envelope), known, now_ms, judge, actions)
    return decision


def leave_to_person(envelope: Envelope, now_ms: int, actions: tuple[CompiledAction, ...]) -> Decision:
    """Return the decision on a proposal that cannot be judged and must be decided: a person has to look."""
    decision = Decision()
    _begin(decision, Proposed(envelope), now_ms, actions)
    refuse(decision, reasons.NOT_JUDGED, RetryHint())
    decision.outcome = OUTCOME_NEEDS_HUMAN_REVIEW
    decision.conflict_key = envelope.proposal.contest.conflict_key
    return decision


def _weigh(
    decision: Decision,
    state: State,
    asked: Proposed,
    known: Mapping[int, Cited],
    now_ms: int,
    judge: Judge,
    actions: tuple[CompiledAction, ...],
) -> None:
    _begin(decision, asked, now_ms, actions)
    if state.open_review(asked.trace_id):
        refuse(decision, reasons.UNDER_REVIEW, RetryHint())
    elif state.ended and state.is_ended(asked.trace_id, asked.action_type, asked.subject, actions, now_ms):
        refuse(decision, reasons.NO_FEASIBLE_PROPOSAL, RetryHint())
        decision.terminal = True
    elif not actions:
        refuse(decision, reasons.NO_ACTIVE_POLICY, RetryHint())
    else:
        _judge_governed(decision, state, asked, known, now_ms, judge, actions)


def _begin(decision: Decision, asked: Proposed, now_ms: int, actions: tuple[CompiledAction, ...]) -> None:
    """Say in a decision what it is about, when it is made, and which rule sets are consulted."""
    said = _made_at(now_ms)
    for action in actions:
        said = said + action.consulted
    merge(decision, said)
    decision.action_type = asked.action_type
    _copy(decision.params, asked.struct)


@lru_cache(MOMENTS_KEPT_MAX)
def _made_at(now_ms: int) -> bytes:
    """Return the part of a decision that says when and by which semantics it is made, serialized."""
    return Decision(arbiter_version=ARBITER_VERSION, evaluated_at=timestamp(now_ms)).SerializeToString(deterministic=True)


def explain(state: State, envelope: Envelope, now_ms: int, governing: tuple[CompiledAction, ...] | None = None) -> list[RuleExplanation]:
    """Return how every rule of the governing rule sets comes out for a proposal; nothing if its params fit no schema."""
    actions = state.governing.get(envelope.proposal.action_type, ()) if governing is None else governing
    asked = Proposed(envelope)
    params = asked.params
    explanations: list[RuleExplanation] = []
    for action in actions:
        if not action.violations(params):
            view = view_of(state, action, actions, asked, params, now_ms)
            explanations.extend(action.explain(case_of(state, asked, now_ms, view)))
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
    asked = Proposed(proposal)
    params = asked.params
    governed = [view_of(state, action, actions, asked, params, now_ms) for action in actions]
    if _names_refuse(decision, governed):
        return False
    citations, unknown = citations_of(asked, known)
    warn_of_unknown(decision, unknown)
    pieces = [piece for view in governed for piece in view.evidence.pieces]
    unmet = [piece for piece in pieces if piece.state]
    if unknown:
        reason_code = reasons.UNKNOWN_EVENT
    elif _contradictions(decision, state, citations, pieces):
        reason_code = reasons.CONFLICTING_EVIDENCE
    else:
        reason_code = _evidence_refusal(unmet)
    if reason_code:
        refuse_for_evidence(decision, reason_code, governed, unmet)
        return False
    held_by = state.holds.get(decision.conflict_key, holder)
    if held_by != holder:
        refuse_for_conflict(decision, state, held_by, now_ms)
        return False
    decision.outcome = OUTCOME_APPROVED
    bind(decision, now_ms, governed)
    return True


def _judge_governed(
    decision: Decision,
    state: State,
    asked: Proposed,
    known: Mapping[int, Cited],
    now_ms: int,
    judge: Judge,
    actions: tuple[CompiledAction, ...],
) -> None:
    params = asked.params
    violations = {violation for action in actions for violation in action.violations(params)}
    if violations:
        refuse(decision, reasons.INVALID_PARAMS, RetryHint(retryable=True))
        warn_of_violations(decision, sorted(violations))
        return
    governed = [view_of(state, action, actions, asked, params, now_ms) for action in actions]
    conflict_key = _conflict_key(governed, state, asked, now_ms)
    if conflict_key is None:
        refuse(decision, reasons.INVALID_PARAMS, RetryHint(retryable=True))
        decision.warnings.append(DecisionWarning(code="CONFLICT_KEY", message="the action's conflict_key has no value for these params"))
        return
    if _names_refuse(decision, governed):
        return
    if _versions_refuse(decision, asked, actions):
        return
    citations, unknown = citations_of(asked, known)
    pieces = [piece for view in governed for piece in view.evidence.pieces]
    unmet = [piece for piece in pieces if piece.state]
    unmet.extend(superseded(pieces, citations))
    if unknown:
        warn_of_unknown(decision, unknown)
    contradicted = bool(state.contradicted) and _contradictions(decision, state, citations, pieces)
    reason_code = _first_refusal(state, asked, citations, bool(unknown), pieces, unmet, conflict_key, contradicted)
    if reason_code:
        refuse_for_evidence(decision, reason_code, governed, unmet)
        return
    # Who competes was no repetition when it entered; what was refused since was a repetition of it.
    if not asked.competes and _repetition_refuses(decision, state, asked, conflict_key, now_ms, governed):
        return
    decision.conflict_key = conflict_key
    holder = state.holds.get(conflict_key)
    if holder is not None:
        refuse_for_conflict(decision, state, holder, now_ms)
        return
    effect = _ask_rules(decision, state, asked, now_ms, judge, governed)
    if effect == "approve" and _contend(decision, state, asked, now_ms, governed):
        bind(decision, now_ms, governed)
    elif effect == "reject" and not _feasible(state, governed):
        make_terminal(decision, governed)


def _names_refuse(decision: Decision, governed: list[Governed]) -> bool:
    """Refuse if the subject of a declared fact has no name."""
    unnamed = [declared for view in governed for declared in view.evidence.unnamed]
    if unnamed:
        refuse(decision, reasons.INVALID_PARAMS, RetryHint(retryable=True))
        decision.warnings.extend(
            DecisionWarning(code="FACT_SUBJECT", message=f"the subject of {key} has no value, or none of the form type/id")
            for key in dict.fromkeys(declared.key for declared in unnamed)
        )
    return bool(unnamed)


def _versions_refuse(decision: Decision, asked: Proposed, actions: tuple[CompiledAction, ...]) -> bool:
    """Warn of every version that is not as a rule set requires it; refuse if one of them says so. The strictest speaks."""
    failed = False
    messages: dict[str, None] = {}
    for action in actions:
        for name, accepted in action.required_versions:
            version = getattr(asked.envelope.version_binding, name)
            if version not in accepted:
                messages[f"{name} is {version or 'not given'}; {action.policy_id} requires {' or '.join(accepted)}"] = None
                failed = failed or action.on_version_mismatch == "fail"
    for message in messages:
        decision.warnings.add(code=reasons.VERSION_MISMATCH, message=message)
    if failed:
        refuse(decision, reasons.VERSION_MISMATCH, RetryHint(retryable=True))
    return failed


def _conflict_key(governed: list[Governed], state: State, asked: Proposed, now_ms: int) -> str | None:
    """Return what the action must hold alone. Rule sets that share an action agree on it, so the first one speaks."""
    first = governed[0]
    if first.action.conflict_key_is_subject:
        return asked.subject
    return first.action.conflict_key(case_of(state, asked, now_ms, first))


def _first_refusal(
    state: State,
    asked: Proposed,
    citations: list[Cited],
    unknown: bool,
    pieces: list[Piece],
    unmet: list[Piece],
    conflict_key: str,
    contradicted: bool,
) -> str:
    """Return the reason code of the first of stages 6 to 13 that refuses, or ""."""
    if unknown:
        return reasons.UNKNOWN_EVENT
    if not asked.competes and not _cites_input(asked.subject, citations, pieces):
        return reasons.NO_FACT_INPUT
    version = asked.projection_version
    if version is not None and _changed_since(state, version, citations, pieces, conflict_key):
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


def _repetition_refuses(
    decision: Decision, state: State, asked: Proposed, conflict_key: str, now_ms: int, governed: list[Governed]
) -> bool:
    """Refuse if this very proposal of the trace competes for the key, or is what the trace was refused last, by evidence or policy."""
    waiting_id = state.waits_already(asked, conflict_key) if state.waiting_of_trace else ""
    if waiting_id:
        refuse_for_repetition(decision, state, waiting_id, governed, now_ms)
        return True
    refused = state.refused(asked.trace_id, now_ms)
    if not refused or fingerprint(asked) != refused:
        return False
    refuse_for_evidence(decision, reasons.DUPLICATE_PROPOSAL, governed, [])
    return True


def _cites_input(subject: str, citations: list[Cited], pieces: list[Piece]) -> bool:
    """No input, no inference (seeds 002 §9.1): something cited is about the proposal's subject or a declared key."""
    for citation in citations:
        if citation.subject == subject:
            return True
        if any(citation.subject == piece.subject and piece.declared.key in citation.keys for piece in pieces):
            return True
    return False


def _changed_since(state: State, version: int, citations: list[Cited], pieces: list[Piece], conflict_key: str) -> bool:
    """Return whether declared evidence, or the decision that holds the key, changed after `version` by an uncited event."""
    cited_numbers = {citation.sequence_number for citation in citations}
    for piece in pieces:
        declared = piece.declared
        for candidate in state.evidence.get(piece.subject, {}).get(declared.key, ()):
            if (
                candidate.sequence_number > version
                and candidate.sequence_number not in cited_numbers
                and (not declared.sources or candidate.source in declared.sources)
            ):
                return True
    holder = state.holds.get(conflict_key)
    return holder is not None and state.decisions[holder].last_sequence_number > version


def _ask_rules(decision: Decision, state: State, asked: Proposed, now_ms: int, judge: Judge, governed: list[Governed]) -> str:
    """Say in a decision what the rules say, and return the effect of that; "" where they could not be asked: nothing follows from it."""
    said = b""
    erring: list[tuple[str, str]] = []
    disagreed = False
    room = CONDITIONS_QUOTED_MAX
    deciding: tuple[int, str, CompiledAction, Rule] | None = None
    for view in governed:
        action = view.action
        verdict = judge(action, case_of(state, asked, now_ms, view))
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
            said = said + (action.matched[rule.id] if room >= 0 or rank_of_rule == 0 else matched(action.policy_id, rule, ""))
        if verdict.matched:
            speaker = verdict.matched[0]
            rank = _EFFECT_RANK[speaker.effect]
            if deciding is None or (rank, action.policy_id) < deciding[:2]:
                deciding = (rank, action.policy_id, action, speaker)
    if deciding is not None and not erring and not disagreed:
        _, _, action, rule = deciding
        merge(decision, said + action.spoken[rule.id])
        return rule.effect
    merge(decision, said)
    if erring:
        refuse(decision, reasons.EVALUATION_ERROR, RetryHint())
        decision.rule_id = erring[0][1]
        decision.warnings.extend(
            DecisionWarning(code=reasons.EVALUATION_ERROR, message=f"{policy_id}/{rule_id}") for policy_id, rule_id in erring
        )
    elif disagreed:
        refuse(decision, reasons.ENGINE_DISAGREEMENT, RetryHint())
    else:
        refuse(decision, reasons.NO_RULE_MATCHED, RetryHint(retryable=True))
        return "reject"
    return ""


def _contend(decision: Decision, state: State, asked: Proposed, now_ms: int, governed: list[Governed]) -> bool:
    """Score what the rules approve and say which contest it would enter, if it has to compete for its conflict key.

    Returns whether it is still approved: what has no score is refused.
    """
    view = governed[0]  # rule sets that share an action agree on its window and score
    window_ms = view.action.contest_window_ms
    contest = state.contests.get(action_on(asked.action_type, decision.conflict_key)) if state.contests else None
    if not window_ms and contest is None and not asked.competes:
        return True
    score = view.action.score(case_of(state, asked, now_ms, view))
    if score is None:
        fail(decision, f"{view.action.policy_id}/score")
        return False
    opened_at_ms, closes_at_ms = (contest.opened_at_ms, contest.closes_at_ms) if contest is not None else (now_ms, now_ms + window_ms)
    set_timestamp(decision.contest.opened_at, opened_at_ms)
    set_timestamp(decision.contest.closed_at, closes_at_ms)
    decision.contest.candidates.add(score=score)
    return True


def _feasible(state: State, governed: list[Governed]) -> bool:
    """Whether the rules could approve or review any proposal of the action on the subject while its facts are what they are."""
    prospects = [view.action.prospect(certain(state, view.action, view.evidence)) for view in governed]
    return any(prospect.may_pass for prospect in prospects) and not any(prospect.surely_rejects for prospect in prospects)
