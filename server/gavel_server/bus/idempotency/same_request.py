"""Compares two requests with one event_id: producer, category, subject, cause and payload as sent.

Fields that the server completes do not count, nor do times and names that the caller left to the server.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, cast

from gavel.v1.common_pb2 import VersionBinding
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.execution_pb2 import Execution
from gavel.v1.fact_pb2 import Fact, ReviewResolved
from gavel.v1.observation_pb2 import Observation
from gavel.v1.proposal_pb2 import Proposal
from gavel_rules.commands import BeginExecution, RenewExecution
from gavel_rules.events.kinds import EXECUTION_RENEWED
from gavel_rules.events.timestamps import milliseconds
from google.protobuf.message import Message

# The fields of tool events that the server fills in if their producer does not.
_COMPLETED_FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "tool_call": ("execution_id", "tool_version", "request_schema_hash"),
    "tool_result": ("tool_version", "response_schema_hash"),
}


def is_same_request(recorded: Envelope, sent: Envelope) -> bool:
    """Return whether `sent`, an admitted envelope, repeats `recorded`, an event of the log."""
    payload = sent.WhichOneof("payload")
    if payload == "execution":
        return _is_same_report(recorded, sent)
    if sent.fact.WhichOneof("system") is not None:
        return _is_same_system_fact(recorded.fact, sent.fact)
    if (
        recorded.WhichOneof("payload") != payload
        or recorded.producer != sent.producer
        or recorded.subject != sent.subject
        or recorded.causation_id != sent.causation_id
    ):
        return False
    if payload == "proposal":
        return _without_contest(recorded.proposal) == _without_contest(sent.proposal)
    if payload in ("tool_call", "tool_result"):
        return bool(_without_completed(recorded, sent, payload) == getattr(sent, payload))
    if payload != "observation":
        return bool(getattr(recorded, str(payload)) == getattr(sent, str(payload)))
    return _without_server_fields(recorded.observation, sent.observation) == _without_server_fields(sent.observation, sent.observation)


def is_same_start(recorded: Envelope, command: BeginExecution | RenewExecution, decision_id: str) -> bool:
    """Return whether a command repeats the one that recorded an event: same decision, executor, versions, lease; for a renewal, attempt."""
    execution = recorded.execution
    is_renewal = isinstance(command, RenewExecution)
    return (
        recorded.HasField("execution")
        and execution.request_id == recorded.event_id
        and (recorded.event_name == EXECUTION_RENEWED) == is_renewal
        and execution.decision_id == decision_id
        and (not isinstance(command, RenewExecution) or execution.execution_id == command.execution_id)
        and recorded.producer == command.producer
        and (isinstance(command, RenewExecution) or recorded.version_binding == (command.version_binding or VersionBinding()))
        and milliseconds(execution.lease_until) - milliseconds(recorded.recorded_at) == command.lease_ms
    )


def _is_same_system_fact(recorded: Fact, sent: Fact) -> bool:
    """Return whether two facts about Gavel say the same. The rest of such an event is the server's."""
    resolved = recorded.review_resolved
    if recorded.HasField("review_voted"):
        voted = recorded.review_voted
        resolved = ReviewResolved(decision_id=voted.decision_id, verdict=voted.verdict, reviewer=voted.reviewer, reason=voted.reason)
    kind = str(sent.WhichOneof("system"))
    return resolved == sent.review_resolved if kind == "review_resolved" else bool(getattr(recorded, kind) == getattr(sent, kind))


def _without_contest(proposal: Proposal) -> Proposal:
    """Return a proposal without the contest that it entered: the server sets that field."""
    if not proposal.HasField("contest"):
        return proposal
    copy = Proposal()
    copy.CopyFrom(proposal)
    copy.ClearField("contest")
    return copy


def _without_server_fields(observation: Observation, sent: Observation) -> Observation:
    """Return an observation without the fields that the server completes. A failed attempt may have completed the sent one too."""
    copy = Observation()
    copy.CopyFrom(observation)
    copy.ClearField("trust_tier")
    copy.ClearField("evidence_recorded_at")
    if not sent.HasField("observed_at"):
        copy.ClearField("observed_at")
    return copy


def _without_completed(recorded: Envelope, sent: Envelope, payload: str) -> Message:
    """Return the recorded tool event without the fields that its producer left to the server."""
    copy = Envelope()
    copy.CopyFrom(recorded)
    event, as_sent = getattr(copy, payload), getattr(sent, payload)
    for field in _COMPLETED_FIELDS[payload]:
        if not getattr(as_sent, field):
            event.ClearField(field)
    return cast("Message", event)


def _is_same_report(recorded: Envelope, sent: Envelope) -> bool:
    late = recorded.agent_diagnostic.late_execution
    if recorded.HasField("agent_diagnostic"):
        # The notice of a late report has a cause of its own.
        executor, report, same_cause = (late.executor_id, late.executor_version), late.execution, True
    else:
        executor, report = (recorded.producer.id, recorded.producer.version), recorded.execution
        same_cause = recorded.causation_id == (sent.causation_id or recorded.execution.decision_id)
    if not same_cause or executor != (sent.producer.id, sent.producer.version) or sent.subject not in ("", recorded.subject):
        return False
    execution = Execution()
    execution.CopyFrom(report)
    # A failed attempt may have set this field in the sent report.
    execution.will_retry = sent.execution.will_retry
    execution.ClearField("counters")
    # The report may name a person's grant. The execution_id, a hash of the approval's id, identifies the attempt as well.
    execution.decision_id = sent.execution.decision_id
    if not sent.execution.attempt:
        execution.ClearField("attempt")
    if not sent.execution.HasField("finished_at"):
        execution.ClearField("finished_at")
    return execution == sent.execution
