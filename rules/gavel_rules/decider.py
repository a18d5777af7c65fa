"""handle(state, command, references, now) -> events and an answer: the entry of the core.

Timers come first: every timer that is due by `now` fires, by (due time, sequence number), before the command is handled. Each event is
applied to the state when it is recorded, and the next one sees it; the caller undoes the state if the append fails. `handle` is total: it
answers a command that it cannot carry out with a `Fault`, never with an exception.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Final

from gavel.v1 import decision_pb2
from gavel.v1.decision_pb2 import Decision, Engine

from gavel_rules import administration
from gavel_rules.arbitration import contest
from gavel_rules.arbitration.evaluation import evaluator
from gavel_rules.arbitration.submission import submit
from gavel_rules.authorization import authorize
from gavel_rules.commands import (
    NO_REFERENCES,
    AcceptClock,
    AcceptLoss,
    ActivateRuleSet,
    Answer,
    BeginExecution,
    ChangeCrossCheck,
    ChangeTools,
    Command,
    CommandOutcome,
    DeactivateRuleSet,
    DeployGrants,
    DeployRuleSet,
    FillCounter,
    NoAnswer,
    OpenBus,
    OpenCounters,
    PublishEvent,
    RecordRefusals,
    References,
    RenewExecution,
    ReportExecution,
    ResolveReview,
    RevokeDecision,
    SubmitProposal,
    Tick,
    UpgradeBus,
)
from gavel_rules.execution import attempts, lifecycle, reports, review
from gavel_rules.identity.principal import ANONYMOUS, Principal
from gavel_rules.publication import publish
from gavel_rules.recorder import Recorder
from gavel_rules.state.records import OpenContest, Review
from gavel_rules.state.state import State
from gavel_rules.tools import registry

_EVENTS_UNBOUNDED: Final = 1 << 62


def handle(
    state: State,
    command: Command,
    references: References = NO_REFERENCES,
    now_ms: int = 0,
    engine: Engine.ValueType = decision_pb2.ENGINE_RETE,
    principal: Principal = ANONYMOUS,
) -> CommandOutcome:
    """Return the events that a command records at `now_ms` (milliseconds since the epoch), and its answer.

    `now_ms` is not below the state's `recorded_at_ms`. `engine` REFERENCE evaluates rules by the reference engine alone (replay).
    `principal` is the authenticated caller.
    """
    recorder = Recorder(state, now_ms)
    if isinstance(command, Tick):
        _fire_timers(recorder, command.limit, engine, command.unjudged, command.judgements)
        return CommandOutcome(recorder.events, NoAnswer(), recorder.failures, recorder.uncounted_events)
    if not isinstance(command, AcceptLoss):  # nothing is recorded between a log that has lost events and the acceptance of that
        _fire_timers(recorder, _EVENTS_UNBOUNDED, engine, (), {})
    answer = authorize(recorder, command, principal, references.decision) or _dispatch(recorder, command, references, engine)
    return CommandOutcome(recorder.events, answer, recorder.failures, recorder.uncounted_events)


def _fire_timers(
    recorder: Recorder, limit: int, engine: Engine.ValueType, unjudged: Container[str], judgements: Mapping[tuple[int, str], Decision]
) -> None:
    """Fire the timers that are due, until `limit` events are recorded: contests close, approvals expire, leases lapse, reviews escalate.

    A timer may not fail: it would fail again at every command. A contest catches its own failures; the other timers evaluate neither
    rules nor schemas nor anything that a producer sent.
    """
    state = recorder.state
    while len(recorder.events) < limit:
        due = state.next_due(recorder.now_ms)
        if due is None:
            return
        if isinstance(due, OpenContest):
            # The evaluation for the first decision of the close applies to all its candidates.
            contest.close(recorder, due, evaluator(state, state.head + 1, engine), unjudged, judgements)
        elif isinstance(due, Review):
            review.escalate(recorder, due)
        else:
            lifecycle.fire_timer(recorder, due)
        judgements = {}  # the state has changed


def _dispatch(recorder: Recorder, command: Command, references: References, engine: Engine.ValueType) -> Answer:
    match command:
        case SubmitProposal():
            return submit(recorder, command, references, engine)
        case PublishEvent():
            return publish(recorder, command.envelope)
        case BeginExecution():
            return attempts.begin(recorder, command, references)
        case RenewExecution():
            return attempts.renew(recorder, command, references)
        case ReportExecution():
            return reports.report(recorder, command, references)
        case ResolveReview():
            return review.resolve(recorder, command, references)
        case RevokeDecision():
            return review.revoke(recorder, command, references)
        case OpenBus():
            return administration.open_bus(recorder, command)
        case ChangeCrossCheck():
            return administration.change_cross_check(recorder, command)
        case AcceptClock():
            return administration.accept_clock(recorder, command)
        case AcceptLoss():
            return administration.accept_loss(recorder, command)
        case UpgradeBus():
            return administration.upgrade_bus(recorder, command)
        case DeployRuleSet():
            return administration.deploy(recorder, command)
        case ActivateRuleSet():
            return administration.activate(recorder, command)
        case OpenCounters():
            return administration.open_counters(recorder, command)
        case FillCounter():
            return administration.fill_counter(recorder, command)
        case DeactivateRuleSet():
            return administration.deactivate(recorder, command)
        case DeployGrants():
            return administration.deploy_grants(recorder, command)
        case ChangeTools():
            return registry.change(recorder, command)
        case RecordRefusals():
            return administration.record_refusals(recorder, command)
    raise TypeError(f"{command!r} is not a command of the decider")
