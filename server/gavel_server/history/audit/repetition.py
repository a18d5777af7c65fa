"""Repeats the decisions of an audit: once as recorded, and once under the rule sets that are active now.

The log is read from its start, as in a replay: events before the first audited proposal build the state, later ones are recomputed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gavel.v1 import replay_service_pb2
from gavel.v1.audit_service_pb2 import DecisionRecomputation, DecisionToday
from gavel.v1.decision_pb2 import Decision, Outcome
from gavel.v1.envelope_pb2 import Envelope
from gavel_rules.arbitration.shadow import same_verdict
from gavel_rules.events.arbiter_versions import implemented_versions, is_implemented
from gavel_rules.language.rule_set import CompiledAction
from gavel_rules.replay import DamagedError, DivergedError, VersionNotImplementedError

from gavel_server.history.disposal import temporary_states
from gavel_server.history.replay import pages, verdict_of
from gavel_server.history.verification import replay_part
from gavel_server.log import EventLog, LogCorruptError, Record

ActionsByType = Mapping[str, tuple[CompiledAction, ...]]


class Repetition:
    """The results, by the sequence number of the decision."""

    def __init__(self) -> None:
        self.today: dict[int, DecisionToday] = {}
        self.recomputed: dict[int, DecisionRecomputation] = {}
        self.evidence: dict[int, list[tuple[int, str]]] = {}  # (sequence number, key) of what was selected for a first decision


async def repeat_decisions(
    log: EventLog, arbiter_version: int, proposals: Sequence[Envelope], decisions: Sequence[Envelope], actions: ActionsByType
) -> Repetition:
    """Make decisions of a log again. `proposals` belong to the first decisions among `decisions`; `actions` are those in force today."""
    repetition = Repetition()
    if not proposals:
        return repetition
    if not is_implemented(arbiter_version):
        message = f"the bus has arbiter version {arbiter_version}; this build implements {implemented_versions()}"
        unknown = DecisionRecomputation(status=replay_service_pb2.REPLAY_STATUS_VERSION_NOT_IMPLEMENTED, message=message)
        repetition.recomputed = {decision.sequence_number: unknown for decision in decisions}
        return repetition
    first = min(proposal.sequence_number for proposal in proposals)
    last = max(decision.sequence_number for decision in decisions)
    first_decisions = {one.decision.proposal_id: one for one in decisions if not one.decision.previous_decision_id}
    decision_of = {proposal.sequence_number: first_decisions.get(proposal.event_id) for proposal in proposals}
    proposal_of = {one.sequence_number: proposal_id for proposal_id, one in first_decisions.items()}
    contents: dict[str, bytes] = {}  # of proposals, by event_id
    recomputation, before = replay_part(log.bus, compare_from=first)

    def feed(record: Record) -> None:
        decision = decision_of.get(record.sequence_number)
        if decision is not None:
            alternative = recomputation.decide_under(record.envelope, actions.get(decision.decision.action_type, ()))
            repetition.today[decision.sequence_number] = _today(decision.decision, alternative, actions)
            contents[decision.decision.proposal_id] = record.envelope
        event = recomputation.feed(record.sequence_number, record.envelope)
        content = contents.pop(proposal_of.get(record.sequence_number, ""), None)
        if content is not None:
            repetition.evidence[record.sequence_number] = recomputation.reselect_evidence(content, event.decision)

    status = replay_service_pb2.REPLAY_STATUS_PROVED
    message = ""
    reached = 0
    async with temporary_states() as states:
        states.append(recomputation.state)
        try:
            async for number in pages(log, last, feed, lambda record: before(record.envelope)):
                reached = number
        except (DamagedError, DivergedError, VersionNotImplementedError, LogCorruptError) as error:
            verdict = verdict_of(error)
            status, message = verdict.status, verdict.message
            reached = (verdict.divergence.sequence_number or reached + 1) - 1
    for decision in decisions:
        number = decision.sequence_number
        if number <= reached:
            proved = DecisionRecomputation(
                status=replay_service_pb2.REPLAY_STATUS_PROVED, message=f"decision {number} is recomputed equal in every field"
            )
            repetition.recomputed[number] = proved
        else:
            repetition.recomputed[number] = DecisionRecomputation(status=status, message=message)
    return repetition


def _today(recorded: Decision, alternative: Decision | str, actions: ActionsByType) -> DecisionToday:
    """Return the decision on a proposal today. `alternative` may be the reason why it is unknown; the same rule sets decide as recorded."""
    if isinstance(alternative, str):
        consulted = {(one.policy_id, one.version) for one in recorded.active_rule_sets}
        if consulted != {(action.policy_id, action.version) for action in actions.get(recorded.action_type, ())}:
            return DecisionToday(differs=True, message=f"not known: other rule sets are active now, and {alternative}")
        alternative = recorded
    differs = not same_verdict(recorded, alternative)
    answer = Outcome.Name(alternative.outcome).removeprefix("OUTCOME_")
    if alternative.reason_code:
        answer += f" ({alternative.reason_code})"
    return DecisionToday(
        differs=differs,
        outcome=alternative.outcome,
        reason_code=alternative.reason_code,
        policy_id=alternative.policy_id,
        policy_version=alternative.policy_version,
        rule_id=alternative.rule_id,
        message=f"the rule sets that are active now decide {'differently' if differs else 'alike'}: {answer}",
    )
