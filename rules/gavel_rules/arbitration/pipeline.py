"""From a proposal to exactly one decision: the walk through the table of stages (constitution §6).

`arbitrate` is total and pure. The first stage that refuses gives the reason code. Nothing is approved by default: a proposal that cannot be
evaluated is refused. `stages` holds the table, `verdict` fills decisions, `rejection_limit` ends loops.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gavel.v1.decision_pb2 import Decision
from gavel.v1.envelope_pb2 import Envelope

from gavel_rules import reason_codes
from gavel_rules.arbitration.action_view import view_actions
from gavel_rules.arbitration.evaluation import Evaluate, evaluate_by_rete
from gavel_rules.arbitration.rejection_limit import count_rejection
from gavel_rules.arbitration.retry_hint import complete
from gavel_rules.arbitration.review_policy import assign_policy
from gavel_rules.arbitration.stages import REREAD_STAGES, STAGES, Context, Stage
from gavel_rules.arbitration.verdict import begin, bind, refuse
from gavel_rules.events.citation import CitedEvent
from gavel_rules.events.kinds import OUTCOME_APPROVED, OUTCOME_NEEDS_HUMAN_REVIEW
from gavel_rules.events.proposal_view import ProposalView
from gavel_rules.language.rule_set import CompiledAction
from gavel_rules.state.state import State


def arbitrate(
    state: State,
    proposal: ProposalView,
    cited_events: Mapping[int, CitedEvent],
    now_ms: int,
    evaluate: Evaluate,
    actions: tuple[CompiledAction, ...] | None = None,
    empty_decision: Decision | None = None,
) -> Decision:
    """Return the decision on a proposal, without the ids that its place in the log gives.

    `cited_events` holds the events that the proposal cites, by sequence number, except those that the log lacks. `actions` replace the
    active rule sets (dry runs). `empty_decision` is filled and returned if it is given, which saves a copy. An approval with a `contest` is
    not final: the proposal has to compete in it first.
    """
    if actions is None:
        actions = state.active_actions.get(proposal.action_type, ())
    decision = Decision() if empty_decision is None else empty_decision
    _walk_all(decision, state, proposal, cited_events, now_ms, evaluate, actions)
    count_rejection(decision, state, proposal.trace_id, proposal.producer_type, proposal.producer_id, now_ms, actions)
    complete(decision, state)
    if decision.outcome == OUTCOME_NEEDS_HUMAN_REVIEW:
        assign_policy(decision, state, actions)
    return decision


def arbitrate_candidate(
    state: State,
    envelope: Envelope,
    cited_events: Mapping[int, CitedEvent],
    now_ms: int,
    evaluate: Evaluate,
    actions: tuple[CompiledAction, ...],
) -> Decision:
    """Return the decision on a candidate of a contest, before a rejection is counted.

    `cited_events` are the cited events that the log held when the candidate entered.
    """
    decision = Decision()
    _walk_all(decision, state, ProposalView(envelope), cited_events, now_ms, evaluate, actions)
    return decision


def leave_to_person(state: State, envelope: Envelope, now_ms: int, actions: tuple[CompiledAction, ...]) -> Decision:
    """Return the decision on a candidate whose arbitration fails: a person has to look."""
    decision = Decision()
    begin(decision, state.semantics.arbiter_version, ProposalView(envelope), now_ms, actions)
    refuse(decision, reason_codes.NOT_JUDGED)
    decision.conflict_key = envelope.proposal.contest.conflict_key
    return decision


def reread(
    decision: Decision,
    state: State,
    envelope: Envelope,
    cited_events: Mapping[int, CitedEvent],
    now_ms: int,
    actions: Sequence[CompiledAction],
    own_decision_id: str,
    rule_set_digest: str,
) -> bool:
    """Check what a person approves against the latest evidence, without rules: REREAD_STAGES. Return whether it passes.

    `decision` has its conflict key; it becomes an approval bound to the evidence, or a refusal. `own_decision_id` is the decision that may
    hold the key, because its execution goes on, or "". `rule_set_digest` is that of the rule set that derives facts, or "".
    """
    proposal = ProposalView(envelope)
    views = view_actions(state, proposal, now_ms, actions)
    context = Context(
        decision,
        state,
        proposal,
        cited_events,
        now_ms,
        evaluate_by_rete,
        actions,
        own_decision_id=own_decision_id,
        views=views,
        is_reread=True,
    )
    context.conflict_key = decision.conflict_key
    if not _walk(context, REREAD_STAGES):
        return False
    decision.outcome = OUTCOME_APPROVED
    bind(decision, now_ms, views, rule_set_digest)
    return True


def _walk_all(
    decision: Decision,
    state: State,
    proposal: ProposalView,
    cited_events: Mapping[int, CitedEvent],
    now_ms: int,
    evaluate: Evaluate,
    actions: tuple[CompiledAction, ...],
) -> None:
    begin(decision, state.semantics.arbiter_version, proposal, now_ms, actions)
    context = Context(decision, state, proposal, cited_events, now_ms, evaluate, actions)
    if _walk(context, STAGES):
        bind(decision, now_ms, context.views, decision.rule_set_digest)


def _walk(context: Context, stages: tuple[Stage, ...]) -> bool:
    """Return whether the proposal passes all stages."""
    for stage in stages:  # noqa: SIM110  # a loop, not a generator: docs/performance.md#lists
        if stage.check(context):
            return False
    return True
