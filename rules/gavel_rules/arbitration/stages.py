"""The stages of arbitration: one function per check, in the table of `STAGES` (constitution §6).

A function returns True to end the walk: it has refused the proposal or left it to a person. To add a stage, add its function, its row in
`STAGES`, and the rows of its reason codes in `reason_codes`. docs/arbitration.md explains each stage.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from gavel.v1 import decision_pb2
from gavel.v1.decision_pb2 import Decision, FactRequirementState
from gavel.v1.decision_pb2 import Warning as DecisionWarning

from gavel_rules import reason_codes
from gavel_rules.arbitration import retry_hint
from gavel_rules.arbitration.action_view import ActionView, case_of, view_actions
from gavel_rules.arbitration.drift import mismatch_drift, refuses, trace_drifts, warn_of_drift
from gavel_rules.arbitration.evaluation import Evaluate
from gavel_rules.arbitration.evidence import (
    MISSING,
    SOURCE_NOT_ACCEPTED,
    STALE,
    SUPERSEDED,
    TIER_TOO_LOW,
    WRONG_TYPE,
    EvidenceSelection,
    known_facts,
    superseded_selections,
)
from gavel_rules.arbitration.history import delay_for_counter, read_history
from gavel_rules.arbitration.verdict import (
    make_terminal,
    merge,
    refuse,
    refuse_for_conflict,
    refuse_for_counters,
    refuse_for_evidence,
    refuse_for_open_duplicate,
    refuse_score,
    show_details,
    warn_of_unknown,
    warn_of_violations,
)
from gavel_rules.codec.rule_set_fragments import encode_rule_match
from gavel_rules.events.citation import CitedEvent, resolve_citations
from gavel_rules.events.fingerprint import fingerprint
from gavel_rules.events.kinds import FACT, FACT_DERIVATION_REACTOR, execution_status_key
from gavel_rules.events.proposal_view import ProposalView
from gavel_rules.events.timestamps import set_timestamp
from gavel_rules.language.engines.case import Case
from gavel_rules.language.fact_declaration import FactDeclaration
from gavel_rules.language.rule_set import CompiledAction, Rule
from gavel_rules.limits import CONDITIONS_QUOTED_MAX
from gavel_rules.state.counters import Absence
from gavel_rules.state.keys import action_key
from gavel_rules.state.state import State
from gavel_rules.state.versions import TraceVersions

_EFFECT_RANK: Final = {"reject": 0, "review": 1, "approve": 2}


class Context:
    """One walk through the stages: its input, and what earlier stages find for later ones."""

    def __init__(
        self,
        decision: Decision,
        state: State,
        proposal: ProposalView,
        cited_events: Mapping[int, CitedEvent],  # by sequence number, as far as the log has them
        now_ms: int,
        evaluate: Evaluate,
        actions: Sequence[CompiledAction],
        *,
        own_decision_id: str = "",  # the decision that may hold the conflict key
        views: list[ActionView] | None = None,
        is_reread: bool = False,
    ) -> None:
        self.decision: Final = decision
        self.state: Final = state
        self.proposal: Final = proposal
        self.cited_events: Final = cited_events
        self.now_ms: Final = now_ms
        self.evaluate: Final = evaluate
        self.actions: Final = actions
        self.own_decision_id: Final = own_decision_id
        self.is_reread: Final = is_reread
        # Stage 4.
        self.views: list[ActionView] = [] if views is None else views
        self.conflict_key = ""
        # Stage 6.
        self.citations: list[CitedEvent] = []
        self.selections: list[EvidenceSelection] = []
        self.unmet: list[EvidenceSelection] = []
        self.is_contradicted = False
        # Stage 16.
        self.effect = ""


class Stage:
    """A row of the table: docs/performance.md#plain-classes. `number` is that of docs/arbitration.md and of `reason_codes`."""

    def __init__(self, number: int, check: Callable[[Context], bool], *, is_reread: bool = False) -> None:
        self.number: Final = number
        self.check: Final = check
        self.is_reread: Final = is_reread  # whether a person's approval is checked by it, too


def check_review(context: Context) -> bool:
    """Refuse while the producer waits for a person in the trace."""
    proposal = context.proposal
    if not context.state.open_review(proposal.trace_id, proposal.producer_type, proposal.producer_id):
        return False
    refuse(context.decision, reason_codes.UNDER_REVIEW)
    return True


def check_closure(context: Context) -> bool:
    """Refuse what a person or a terminal refusal has closed for the trace."""
    state, proposal = context.state, context.proposal
    if not state.closed_actions or not state.is_action_closed(
        proposal.trace_id, proposal.action_type, proposal.subject, context.actions, context.now_ms
    ):
        return False
    refuse(context.decision, reason_codes.NO_FEASIBLE_PROPOSAL)
    context.decision.terminal = True
    return True


def check_policy(context: Context) -> bool:
    """Refuse an action that no active rule set governs."""
    if context.actions:
        return False
    refuse(context.decision, reason_codes.NO_ACTIVE_POLICY)
    return True


def check_params(context: Context) -> bool:
    """Refuse params that violate a schema of the action."""
    params, searches_long_texts = context.proposal.params, context.state.semantics.searches_long_texts
    violations = {
        violation for action in context.actions for violation in action.violations(params, searches_long_texts=searches_long_texts)
    }
    if not violations:
        return False
    refuse(context.decision, reason_codes.INVALID_PARAMS)
    warn_of_violations(context.decision, sorted(violations))
    return True


def check_conflict_key(context: Context) -> bool:
    """Refuse params for which the conflict key has no value. Selects the evidence, which the key may depend on."""
    context.views = view_actions(context.state, context.proposal, context.now_ms, context.actions)
    view = context.views[0]  # rule sets that share an action agree on the key
    if view.action.conflict_key_is_subject:
        context.conflict_key = context.proposal.subject
        return False
    conflict_key = view.action.conflict_key(case_of(context.state, context.proposal, context.now_ms, view))
    if conflict_key is not None:
        context.conflict_key = conflict_key
        return False
    refuse(context.decision, reason_codes.INVALID_PARAMS)
    message = "the action's conflict_key has no value for these params"
    context.decision.warnings.append(DecisionWarning(code="CONFLICT_KEY", message=message))
    return True


def check_fact_subjects(context: Context) -> bool:
    """Refuse if the subject of a declared fact has no name."""
    unnamed = [declaration for view in context.views for declaration in view.evidence.unnamed]
    if not unnamed:
        return False
    refuse(context.decision, reason_codes.INVALID_PARAMS)
    context.decision.warnings.extend(
        DecisionWarning(code="FACT_SUBJECT", message=message) for message in dict.fromkeys(map(_describe_unnamed, unnamed))
    )
    return True


def check_versions(context: Context) -> bool:
    """Warn of drift, and of versions that a rule set does not accept; refuse if one of the rule sets demands it.

    A proposal inherits the versions that its trace is bound to.
    """
    proposal = context.proposal
    bound = context.state.trace_versions.get(proposal.trace_id) if context.state.trace_versions else None
    is_refused = False
    messages: dict[str, None] = {}
    for action in context.actions:
        for name, accepted in action.required_versions:
            version = getattr(proposal.envelope.version_binding, name) or ("" if bound is None else bound.version(name))
            if version not in accepted:
                messages[f"{name} is {version or 'not given'}; {action.policy_id} requires {' or '.join(accepted)}"] = None
                is_refused = is_refused or action.on_version_mismatch == "fail"
    for message in messages:
        context.decision.warnings.add(code=reason_codes.VERSION_MISMATCH, message=message)
    if bound is not None:
        is_refused = _warn_of_drift(context, bound) or is_refused
    if is_refused:
        refuse(context.decision, reason_codes.VERSION_MISMATCH)
    return is_refused


def check_citations(context: Context) -> bool:
    """Refuse citations that the log does not have.

    Selects the evidence too: a refusal by this stage also names the unmet requirements for which later stages would refuse.
    """
    context.citations, unknown = resolve_citations(context.proposal.citations, context.cited_events)
    context.selections = [selection for view in context.views for selection in view.evidence.selections]
    context.unmet = [selection for selection in context.selections if selection.state]
    if not context.is_reread:
        context.unmet.extend(superseded_selections(context.selections, context.citations))
    if unknown:
        warn_of_unknown(context.decision, unknown)
    context.is_contradicted = _warn_of_contradictions(context)
    return bool(unknown) and _refuse(context, reason_codes.UNKNOWN_EVENT)


def check_input(context: Context) -> bool:
    """Refuse a proposal that cites nothing about its subject or a declared fact: no input, no inference (constitution §9.1)."""
    if context.proposal.competes:
        return False
    subject = context.proposal.subject
    for citation in context.citations:
        if citation.subject == subject:
            return False
        if any(citation.subject == selection.subject and selection.declaration.key in citation.keys for selection in context.selections):
            return False
    return _refuse(context, reason_codes.NO_FACT_INPUT)


def _describe_unnamed(declaration: FactDeclaration) -> str:
    """Return what is wrong with the subjects of a fact."""
    if declaration.subjects:
        return f"the subjects of {declaration.key} have no value, are more than {declaration.subjects_max}, or not all of the form type/id"
    return f"the subject of {declaration.key} has no value, or none of the form type/id"


def check_projection_version(context: Context) -> bool:
    """Refuse if an uncited event after the proposal's projection_version changed the evidence, or what was decided and done meanwhile.

    That is the decision that holds the key, or an execution on the subject, whose decision has let go of the key.
    """
    version = context.proposal.projection_version
    if version is None:
        return False
    state = context.state
    cited_numbers = {citation.sequence_number for citation in context.citations}
    for selection in context.selections:
        declaration = selection.declaration
        for candidate in state.evidence_of(selection.subject).get(declaration.key, ()):
            # A value of another type counts too: it has replaced the one that its source stated before.
            if (
                candidate.sequence_number > version
                and candidate.sequence_number not in cited_numbers
                and (not declaration.sources or candidate.source in declaration.sources)
                and (candidate.trust_tier <= declaration.min_trust or not state.semantics.ignores_lower_tiers)
            ):
                return _refuse(context, reason_codes.PROJECTION_CHANGED)
    holder = state.conflict_keys.get(context.conflict_key)
    if holder is not None and state.decisions[holder].last_sequence_number > version:
        return _refuse(context, reason_codes.PROJECTION_CHANGED)
    if state.semantics.sees_executions:
        evidence = state.evidence_of(context.proposal.subject)
        for action_type in state.active_actions:  # a subject may have more keys than a bus has actions
            for candidate in evidence.get(execution_status_key(action_type), ()):
                # Others may state facts of any key, and agents observations of any key and tool.
                is_derived = candidate.category == FACT and candidate.source == FACT_DERIVATION_REACTOR
                if is_derived and candidate.sequence_number > version and candidate.sequence_number not in cited_numbers:
                    return _refuse(context, reason_codes.PROJECTION_CHANGED)
    return False


def check_contradictions(context: Context) -> bool:
    """Request a human review if observations read different values in a tool result that the evidence rests on (constitution §4.6)."""
    return context.is_contradicted and _refuse(context, reason_codes.CONFLICTING_EVIDENCE)


def check_presence(context: Context) -> bool:
    """Refuse if evidence is missing."""
    return _has_unmet(context, MISSING, SOURCE_NOT_ACCEPTED) and _refuse(context, reason_codes.NEED_MORE_FACTS)


def check_types(context: Context) -> bool:
    """Refuse if evidence is of another type than declared. Of values with structure, a warning names what violates the schema."""
    if not _has_unmet(context, WRONG_TYPE):
        return False
    context.decision.warnings.extend(
        [
            DecisionWarning(code=reason_codes.FACT_TYPE_MISMATCH, message=message)
            for message in dict.fromkeys([selection.violation for selection in context.selections if selection.violation])
        ]
    )
    return _refuse(context, reason_codes.FACT_TYPE_MISMATCH)


def check_trust(context: Context) -> bool:
    """Refuse if evidence is less trusted than required."""
    return _has_unmet(context, TIER_TOO_LOW) and _refuse(context, reason_codes.INSUFFICIENT_EVIDENCE_TIER)


def check_freshness(context: Context) -> bool:
    """Refuse if evidence is stale."""
    return _has_unmet(context, STALE) and _refuse(context, reason_codes.STALE_FACTS)


def check_supersession(context: Context) -> bool:
    """Refuse if the proposal cites an old version of the evidence."""
    return _has_unmet(context, SUPERSEDED) and _refuse(context, reason_codes.FACT_SUPERSEDED)


def check_repetition(context: Context) -> bool:
    """Refuse a proposal that is waiting for a contest already, or that repeats one that was refused.

    The fingerprint of the producer's last proposal in the trace that was refused for its evidence or by policy is compared. A candidate of
    a contest passes: it was no repetition when it entered, and equal proposals refused since then repeat the candidate.
    """
    state, proposal = context.state, context.proposal
    if proposal.competes:
        return False
    waiting_id = state.open_duplicate(proposal, context.conflict_key) if state.open_proposals_by_trace else ""
    if waiting_id:
        refuse_for_open_duplicate(context.decision, state, waiting_id, context.views, context.now_ms)
        return True
    last_refusal = state.last_refusal(proposal.trace_id, proposal.producer_type, proposal.producer_id, context.now_ms)
    if not last_refusal or fingerprint(proposal) != last_refusal:
        return False
    refuse_for_evidence(context.decision, reason_codes.DUPLICATE_PROPOSAL, context.views, [])
    return True


def check_conflict(context: Context) -> bool:
    """Refuse if another decision holds the conflict key."""
    decision = context.decision
    if not context.is_reread:
        decision.conflict_key = context.conflict_key
    holder = context.state.conflict_keys.get(context.conflict_key, context.own_decision_id)
    if holder == context.own_decision_id:
        return False
    refuse_for_conflict(decision, context.state, holder, context.now_ms)
    return True


def apply_rules(context: Context) -> bool:
    """Evaluate the rules of every rule set; the strictest effect decides, and of equal effects the lowest policy_id."""
    decision = context.decision
    fragments = readings = b""
    errors: list[tuple[str, str]] = []
    is_disputed = False
    room = CONDITIONS_QUOTED_MAX
    deciding: tuple[int, str, CompiledAction, Rule] | None = None
    as_text = not context.state.semantics.has_remedies
    absences: dict[str, Mapping[str, Absence]] = {}  # of counters, by policy_id
    for view in context.views:
        action = view.action
        match_fragments = action.text_match_fragments() if as_text else action.match_fragments
        case = case_of(context.state, context.proposal, context.now_ms, view)
        if action.has_counters:
            history = read_history(context.state, action, case, context.now_ms, context.proposal.event_id)
            readings = readings + b"".join(history.fragments)
            if history.absences:
                absences[action.policy_id] = history.absences
                continue
            case = view.case = case.with_history(history.numbers)
        verdict = context.evaluate(action, case)
        if verdict.error:
            errors.append((action.policy_id, verdict.error))
            continue
        if verdict.disagreement is not None:
            is_disputed = True
            rete, reference = verdict.disagreement
            decision.engine_verdicts.add(engine=decision_pb2.ENGINE_RETE, policy_id=action.policy_id, rule_ids=rete)
            decision.engine_verdicts.add(engine=decision_pb2.ENGINE_REFERENCE, policy_id=action.policy_id, rule_ids=reference)
        for position, rule in enumerate(verdict.matches):
            room -= len(rule.condition)
            is_quoted = room >= 0 or position == 0
            fragments = fragments + (
                match_fragments[rule.id] if is_quoted else encode_rule_match(action.policy_id, rule.id, rule.effect, "", as_text=as_text)
            )
        if verdict.matches:
            first = verdict.matches[0]
            rank = _EFFECT_RANK[first.effect]
            if deciding is None or (rank, action.policy_id) < deciding[:2]:
                deciding = (rank, action.policy_id, action, first)
    if absences and not is_disputed:
        merge(decision, readings)
        refuse_for_counters(decision, absences, context.now_ms)
        return True
    fragments = fragments + readings
    if deciding is not None and not errors and not is_disputed:
        _, _, action, rule = deciding
        context.effect = rule.effect
        fragments = fragments + action.outcome_fragments[rule.id]
        merge(decision, fragments + retry_hint.RETRYABLE if rule.effect == "reject" else fragments)
        retry = action.retries.get(rule.id) if action.retries else None
        if retry is not None:
            delay_for_counter(decision, context.state, retry, _case_of(context, action), context.now_ms)
        details = action.details.get(rule.id) if action.details else None
        if details is not None:
            show_details(decision, action.policy_id, details.values(_case_of(context, action)))
        return rule.effect == "review"
    merge(decision, fragments)
    if errors:
        refuse(decision, reason_codes.EVALUATION_ERROR)
        decision.rule_id = errors[0][1]
        decision.warnings.extend(
            DecisionWarning(code=reason_codes.EVALUATION_ERROR, message=f"{policy_id}/{rule_id}") for policy_id, rule_id in errors
        )
        return True
    if is_disputed:
        refuse(decision, reason_codes.ENGINE_DISAGREEMENT)
        return True
    refuse(decision, reason_codes.NO_RULE_MATCHED)
    context.effect = "reject"
    return False


def check_feasibility(context: Context) -> bool:
    """Make a rejection by rules terminal if no proposal of the action on the subject can pass while its facts are what they are."""
    if context.effect != "reject":
        return False
    state = context.state
    prospects = [view.action.assess_feasibility(known_facts(state, view.action, view.evidence)) for view in context.views]
    if not any(prospect.may_pass for prospect in prospects) or any(prospect.surely_rejects for prospect in prospects):
        make_terminal(context.decision, context.views)
    return True


def enter_contest(context: Context) -> bool:
    """Score an approval that has to compete for its conflict key, and describe its contest; refuse if it has no score."""
    state, decision = context.state, context.decision
    view = context.views[0]  # rule sets that share an action agree on window and score
    window_ms = view.action.contest_window_ms
    contest = state.contests.get(action_key(context.proposal.action_type, context.conflict_key)) if state.contests else None
    if not window_ms and contest is None and not context.proposal.competes:
        return False
    score = view.action.score(view.case or case_of(state, context.proposal, context.now_ms, view))
    if score is None:
        refuse_score(decision, view.action.policy_id)
        return True
    opened_at_ms, closes_at_ms = context.now_ms, context.now_ms + window_ms
    if contest is not None:
        opened_at_ms, closes_at_ms = contest.opened_at_ms, contest.closes_at_ms
    set_timestamp(decision.contest.opened_at, opened_at_ms)
    set_timestamp(decision.contest.closed_at, closes_at_ms)
    decision.contest.candidates.add(score=score)
    return False


STAGES: Final = (
    Stage(1, check_review),
    Stage(2, check_closure),
    Stage(3, check_policy),
    Stage(4, check_params),
    Stage(4, check_conflict_key),
    Stage(4, check_fact_subjects, is_reread=True),
    Stage(5, check_versions),
    Stage(6, check_citations, is_reread=True),
    Stage(7, check_input),
    Stage(8, check_projection_version),
    Stage(9, check_contradictions, is_reread=True),
    Stage(10, check_presence, is_reread=True),
    Stage(10, check_types, is_reread=True),
    Stage(11, check_trust, is_reread=True),
    Stage(12, check_freshness, is_reread=True),
    Stage(13, check_supersession),
    Stage(14, check_repetition),
    Stage(15, check_conflict, is_reread=True),
    Stage(16, apply_rules),
    Stage(17, check_feasibility),
    Stage(18, enter_contest),
)
REREAD_STAGES: Final = tuple([stage for stage in STAGES if stage.is_reread])


def _case_of(context: Context, action: CompiledAction) -> Case:
    """Return the case that the rules of an action have evaluated."""
    (view,) = [view for view in context.views if view.action is action]
    return view.case or case_of(context.state, context.proposal, context.now_ms, view)


def _refuse(context: Context, reason_code: str) -> bool:
    """Refuse with everything that is missing, and return True."""
    refuse_for_evidence(context.decision, reason_code, context.views, context.unmet)
    return True


def _has_unmet(context: Context, state: FactRequirementState.ValueType, other: FactRequirementState.ValueType | None = None) -> bool:
    for selection in context.unmet:  # noqa: SIM110  # a loop, not a generator: docs/performance.md#lists
        if selection.state == state or selection.state == other:
            return True
    return False


def _warn_of_drift(context: Context, versions: TraceVersions) -> bool:
    """Warn of drift, unless every rule set ignores it; return whether one refuses the proposal's own versions."""
    if all(action.on_drift == "ignore" for action in context.actions):
        return False
    own = versions.find_mismatches(context.proposal.envelope.version_binding, 0)
    warnings: list[DecisionWarning] = []
    warn_of_drift(warnings, [*trace_drifts(context.state, versions), *[mismatch_drift(mismatch) for mismatch in own]])
    context.decision.warnings.extend(warnings)
    return any(refuses(action, own) for action in context.actions)


def _warn_of_contradictions(context: Context) -> bool:
    """Warn of contradictory tool results that the evidence rests on; return whether there are any."""
    refs = [citation.evidence_ref for citation in context.citations if citation.evidence_ref]
    candidates = [selection.candidate for selection in context.selections if selection.candidate is not None]
    refs.extend([candidate.evidence_ref for candidate in candidates if candidate.evidence_ref])
    is_contradicted = False
    for evidence_ref in dict.fromkeys(refs):
        key = context.state.contradiction_of(evidence_ref)
        if key:
            is_contradicted = True
            message = f"observations read different values of {key} in {evidence_ref}"
            context.decision.warnings.add(code=reason_codes.CONFLICTING_EVIDENCE, message=message)
    return is_contradicted
