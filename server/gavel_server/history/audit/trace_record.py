"""The events of a trace as an audit reads them, without the contents that it does not show, and the acts of people about its decisions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.execution_pb2 import EXECUTION_STATUS_STARTED
from gavel.v1.fact_pb2 import Fact
from gavel_rules.limits import TRACE_EVENTS_MAX

# Settings of a model call, and the value of a fact, that an audit shows.
VALUE_BYTES_MAX: Final = 1024
# The system facts that record what people do about decisions.
_HUMAN_FACTS: Final = frozenset({"review_resolved", "review_voted", "revocation_requested"})


class TraceRecord:
    """Collects the events of a trace, in the order of the log."""

    def __init__(self, trace_id: str) -> None:
        self.trace_id: Final = trace_id
        self.events: list[Envelope] = []
        self.proposals: dict[str, Envelope] = {}  # by event_id
        self.starts: dict[str, Envelope] = {}  # the last start of an attempt, by decision_id
        self.acts: dict[str, list[Envelope]] = {}  # facts of people, by decision_id
        self.truncated = False

    def add(self, contents: Iterable[bytes]) -> None:
        """Take events of the trace, serialized. Takes milliseconds for large events: call it in a thread."""
        for content in contents:
            if len(self.events) == TRACE_EVENTS_MAX:
                self.truncated = True
                return
            # Parsed again: a message that was parsed keeps the memory of the fields that are cleared.
            envelope = Envelope.FromString(_without_contents(Envelope.FromString(content)).SerializeToString())
            self.events.append(envelope)
            if envelope.HasField("proposal"):
                self.proposals[envelope.event_id] = envelope
            elif envelope.execution.status == EXECUTION_STATUS_STARTED:
                self.starts[envelope.execution.decision_id] = envelope
            elif envelope.fact.WhichOneof("system") in _HUMAN_FACTS:
                self.acts.setdefault(_decision_of(envelope.fact), []).append(envelope)


def _decision_of(fact: Fact) -> str:
    return fact.review_resolved.decision_id or fact.review_voted.decision_id or fact.revocation_requested.decision_id


def _without_contents(envelope: Envelope) -> Envelope:
    """Return an event without its contents: values, params, results and texts."""
    match envelope.WhichOneof("payload"):
        case "fact" if envelope.fact.WhichOneof("system") is None:
            envelope.fact.ClearField("value")
        case "observation":
            envelope.observation.ClearField("extracted_fields")
        case "proposal":
            envelope.proposal.ClearField("params")
            envelope.proposal.ClearField("expected_outcome")
        case "decision":
            for field in ("params", "rule_matches", "retry_hint", "warnings"):
                envelope.decision.ClearField(field)
        case "execution":
            envelope.execution.ClearField("result")
            envelope.execution.ClearField("completed_steps")
        case "tool_call":
            envelope.tool_call.ClearField("arguments_summary")
        case "tool_result":
            envelope.tool_result.ClearField("result_summary")
        case "agent_diagnostic":
            envelope.agent_diagnostic.ClearField("attributes")
            if envelope.agent_diagnostic.llm_invocation.settings.ByteSize() > VALUE_BYTES_MAX:
                envelope.agent_diagnostic.llm_invocation.ClearField("settings")
    return envelope
