"""Which requests with a known event_id ask for the same: what the server filled in does not count."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from gavel.v1.common_pb2 import Producer
from gavel.v1.diagnostic_pb2 import AgentDiagnostic
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.tool_pb2 import ToolCall, ToolResult
from gavel_rules.commands import PublishEvent, ReportExecution, SubmitProposal
from gavel_rules.decider import handle
from gavel_rules.events import timestamp
from gavel_rules.values import python_to_value
from gavel_server.bus.idempotency import same_content

from tests.unit.core.driver import (
    AGENT,
    EXECUTOR,
    FAILED,
    OTHER_EXECUTOR,
    START_MS,
    SUBJECT,
    SUCCESS,
    Core,
    copied,
    document,
    fact_envelope,
    observation_envelope,
    proposal_envelope,
)

Make = Callable[[Core], Envelope]


def _fact(core: Core) -> Envelope:
    return fact_envelope("k.value", 1)


def _observation(core: Core) -> Envelope:
    return observation_envelope("k.value", 1, evidence=core.tool_result())


def _bare_observation(core: Core) -> Envelope:
    return observation_envelope("k.value", 1, observed_at_ms=START_MS - 5)


def _tool_call(core: Core) -> Envelope:
    return Envelope(subject=SUBJECT, producer=AGENT, tool_call=ToolCall(tool_name="fraud-tool"))


def _tool_result(core: Core) -> Envelope:
    return Envelope(subject=SUBJECT, producer=AGENT, tool_result=ToolResult(tool_name="fraud-tool", content_hash="sha256:1"))


def _diagnostic(core: Core) -> Envelope:
    return Envelope(subject=SUBJECT, producer=AGENT, agent_diagnostic=AgentDiagnostic(kind="NodeEntered"))


def _proposal(core: Core) -> Envelope:
    return proposal_envelope([core.fact("order.status", "delivered")])


MAKERS: list[Make] = [_fact, _observation, _bare_observation, _tool_call, _tool_result, _diagnostic, _proposal]


def command_for(envelope: Envelope) -> PublishEvent | SubmitProposal:
    """The command that records an envelope."""
    return SubmitProposal(envelope) if envelope.HasField("proposal") else PublishEvent(envelope)


def recorded(core: Core, envelope: Envelope) -> Envelope:
    """Record a copy of an admitted envelope, a while later, and return it as the log has it."""
    core.pass_time(1_234)
    core.run(copied(command_for(envelope)))
    return core.by_id[envelope.event_id]


@pytest.mark.parametrize("make", MAKERS)
def test_a_repetition_is_the_same(make: Make) -> None:
    """What was sent once and is sent again asks for the same, although the log has more of it by now."""
    core = Core(document())
    sent = core.admitted(make(core))
    assert same_content(recorded(core, sent), sent)


@pytest.mark.parametrize("make", MAKERS)
def test_a_repetition_that_was_tried_before_is_the_same(make: Make) -> None:
    """A command whose first append met another server's is undone and looked up again: what the try filled in does not count."""
    core = Core(document())
    sent = core.admitted(make(core))
    original = recorded(core, sent)
    command = command_for(sent)
    mark = core.state.mark()
    handle(core.state, command, core.references(command), core.now_ms)
    core.state.undo(mark)
    assert same_content(original, sent)


CHANGES: dict[str, Callable[[Any], object]] = {
    "producer.id": lambda envelope: setattr(envelope.producer, "id", "another"),
    "producer.version": lambda envelope: setattr(envelope.producer, "version", "9"),
    "subject": lambda envelope: setattr(envelope, "subject", "order/2"),
    "causation_id": lambda envelope: setattr(envelope, "causation_id", "00000000-0000-4000-8000-0000000000ff"),
    "fact": lambda envelope: envelope.fact.value.CopyFrom(python_to_value(2)),
    "max_age": lambda envelope: setattr(envelope.fact, "max_age_ms", 1),
    "observation": lambda envelope: setattr(envelope.observation, "confidence", 0.1),
    "observed_at": lambda envelope: envelope.observation.observed_at.CopyFrom(timestamp(START_MS - 6)),
    "tool_call": lambda envelope: setattr(envelope.tool_call, "tool_name", "other"),
    "proposal": lambda envelope: setattr(envelope.proposal, "risk", 0.5),
    "params": lambda envelope: envelope.proposal.params.update({"amount": 51}),
    "payload": lambda envelope: envelope.agent_diagnostic.SetInParent(),
}
APPLICABLE = [
    (make, name)
    for make in MAKERS
    for name in CHANGES
    if name in ("producer.id", "producer.version", "subject", "causation_id")
    or (make is not _diagnostic and name == "payload")
    or (make is _fact and name in ("fact", "max_age"))
    or (make is _bare_observation and name in ("observation", "observed_at"))
    or (make is _observation and name == "observation")
    or (make is _tool_call and name == "tool_call")
    or (make is _proposal and name in ("proposal", "params"))
]


@pytest.mark.parametrize(("make", "change"), APPLICABLE)
def test_other_content_is_not_the_same(make: Make, change: str) -> None:
    """Another producer, category, subject, cause or payload under a known id is something else."""
    core = Core(document())
    sent = core.admitted(make(core))
    original = recorded(core, sent)
    CHANGES[change](sent)
    assert not same_content(original, sent)


@pytest.mark.parametrize("name", ["trace_id", "event_name", "occurred_at", "version_binding"])
def test_what_does_not_count(name: str) -> None:
    """Trace, name, claimed time and version binding are left aside."""
    core = Core()
    sent = core.admitted(_fact(core))
    original = recorded(core, sent)
    if name == "occurred_at":
        sent.occurred_at.CopyFrom(timestamp(START_MS - 1))
    elif name == "version_binding":
        sent.version_binding.planner_version = "7"
    else:
        setattr(sent, name, "Another")
    assert same_content(original, sent)


# Reports


def reported(late: bool, **changes: Any) -> tuple[Core, ReportExecution, Envelope]:
    """Report an attempt; return the report as it was sent and as the log has it. `late`: after somebody took over."""
    core = Core(document())
    approval = core.approve()
    started = core.start(approval)
    if late:
        core.pass_time(1_000)
        core.start(approval, OTHER_EXECUTOR)
    sent = core.reporting(started, changes.pop("status", FAILED), **changes)
    core.run(copied(sent))
    return core, sent, core.by_id[sent.envelope.event_id]


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("changes", [{}, {"attempt": 1}, {"finished_at": timestamp(START_MS)}, {"status": SUCCESS}])
def test_a_repeated_report_is_the_same(late: bool, changes: dict[str, Any]) -> None:
    """A report that is sent again is the same, also where it was late and is kept as a diagnostic."""
    _, sent, original = reported(late, **changes)
    assert ("agent_diagnostic" if late else "execution") == original.WhichOneof("payload")
    assert same_content(original, sent.envelope)


def test_a_repeated_report_that_was_tried_before_is_the_same() -> None:
    """What a failed try filled into a report, e.g. that another attempt follows, does not count."""
    core = Core(document())
    started = core.start(core.approve())
    sent = core.reporting(started, FAILED)
    mark = core.state.mark()
    handle(core.state, sent, core.references(sent), core.now_ms)
    core.state.undo(mark)
    core.run(copied(sent))
    assert same_content(core.by_id[sent.envelope.event_id], sent.envelope)


@pytest.mark.parametrize("late", [False, True])
def test_another_report_is_not_the_same(late: bool) -> None:
    """Another status, result, executor or subject under a known id is something else."""
    _, sent, original = reported(late)
    for change in (
        lambda envelope: setattr(envelope.execution, "status", SUCCESS),
        lambda envelope: setattr(envelope.execution, "reason_code", "OTHER"),
        lambda envelope: setattr(envelope.execution, "attempt", 2),
        lambda envelope: envelope.execution.result.update({"amount": 1}),
        lambda envelope: setattr(envelope, "subject", "order/2"),
        lambda envelope: envelope.producer.CopyFrom(Producer(type=EXECUTOR.type, id="another")),
    ):
        other = Envelope.FromString(sent.envelope.SerializeToString())
        change(other)
        assert not same_content(original, other)


def test_a_decision_is_never_the_same_as_what_somebody_sends() -> None:
    """An id of Gavel's own events cannot be repeated by anybody."""
    core = Core(document())
    approval = core.approve()
    sent = core.admitted(_fact(core))
    assert not same_content(approval, sent)
    report = core.reporting(core.start(approval), SUCCESS)
    assert not same_content(approval, report.envelope)
