"""Whether two requests with one event_id ask for the same: producer, category, subject, cause and payload as sent.

What the server fills in does not count, and neither do times and names that the caller left to it.
"""

from __future__ import annotations

from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.execution_pb2 import Execution


def same_content(recorded: Envelope, sent: Envelope) -> bool:
    """Return whether `sent`, an admitted envelope, repeats `recorded`, an event of the log."""
    payload = sent.WhichOneof("payload")
    if payload == "execution":
        return _same_report(recorded, sent)
    if (
        recorded.WhichOneof("payload") != payload
        or recorded.producer != sent.producer
        or recorded.subject != sent.subject
        or recorded.causation_id != sent.causation_id
    ):
        return False
    if payload != "observation":
        return bool(getattr(recorded, str(payload)) == getattr(sent, str(payload)))
    observation = type(recorded.observation)()
    observation.CopyFrom(recorded.observation)
    observation.ClearField("trust_tier")
    observation.ClearField("evidence_recorded_at")
    if not sent.observation.HasField("observed_at"):
        observation.ClearField("observed_at")
    return observation == sent.observation


def _same_report(recorded: Envelope, sent: Envelope) -> bool:
    late = recorded.agent_diagnostic.late_execution
    if recorded.HasField("agent_diagnostic"):
        producer_id, report = late.executor_id, late.execution
    else:
        producer_id, report = recorded.producer.id, recorded.execution
    if producer_id != sent.producer.id or sent.subject not in ("", recorded.subject):
        return False
    execution = Execution()
    execution.CopyFrom(report)
    execution.ClearField("will_retry")
    if not sent.execution.attempt:
        execution.ClearField("attempt")
    if not sent.execution.HasField("finished_at"):
        execution.ClearField("finished_at")
    return execution == sent.execution
