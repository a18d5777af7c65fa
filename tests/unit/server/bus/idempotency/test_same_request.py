"""Repeated requests: fields that the server completes do not count."""

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
from gavel_rules.events.proposal_view import ProposalView
from gavel_rules.events.timestamps import timestamp
from gavel_rules.values import python_to_value
from gavel_server.bus.idempotency.same_request import is_same_request

from tests.support.driver import (
    AGENT,
    EXECUTOR,
    FAILED,
    OTHER_EXECUTOR,
    START_MS,
    SUBJECT,
    SUCCESS,
    Core,
    copy_command,
    document,
    fact_envelope,
    observation_envelope,
    proposal_envelope,
)
from tests.support.hashes import sha256_of

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
    return Envelope(subject=SUBJECT, producer=AGENT, tool_result=ToolResult(tool_name="fraud-tool", content_hash=sha256_of("1")))


def _diagnostic(core: Core) -> Envelope:
    return Envelope(subject=SUBJECT, producer=AGENT, agent_diagnostic=AgentDiagnostic(kind="NodeEntered"))


def _proposal(core: Core) -> Envelope:
    return proposal_envelope([core.fact("order.status", "delivered")])


MAKERS: list[Make] = [_fact, _observation, _bare_observation, _tool_call, _tool_result, _diagnostic, _proposal]


def command_for(envelope: Envelope) -> PublishEvent | SubmitProposal:
    """Return the command that records an envelope."""
    return SubmitProposal(ProposalView(envelope)) if envelope.HasField("proposal") else PublishEvent(envelope)


def recorded(core: Core, envelope: Envelope) -> Envelope:
    """Record a copy of an admitted envelope some time later, and return it as recorded."""
    core.pass_time(1_234)
    core.run(copy_command(command_for(envelope)))
    return core.by_id[envelope.event_id]


@pytest.mark.parametrize("make", MAKERS)
def test_a_repetition_is_the_same(make: Make) -> None:
    """A repeated request is the same, although the server has completed the recorded one."""
    core = Core(document())
    envelope = core.admit(make(core))
    assert is_same_request(recorded(core, envelope), envelope)


@pytest.mark.parametrize("make", MAKERS)
def test_fields_completed_by_a_failed_attempt_do_not_count(make: Make) -> None:
    """The fields that a failed attempt completed in a request do not count."""
    core = Core(document())
    envelope = core.admit(make(core))
    original = recorded(core, envelope)
    command = command_for(envelope)
    mark = core.state.mark()
    handle(core.state, command, core.references(command), core.now_ms)
    core.state.undo(mark)
    assert is_same_request(original, envelope)


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
    """Another producer, category, subject, cause or payload under a known event_id is another request."""
    core = Core(document())
    envelope = core.admit(make(core))
    original = recorded(core, envelope)
    CHANGES[change](envelope)
    assert not is_same_request(original, envelope)


@pytest.mark.parametrize("name", ["trace_id", "event_name", "occurred_at", "version_binding"])
def test_fields_that_are_not_compared(name: str) -> None:
    """Trace, name, claimed time and version binding are not compared."""
    core = Core()
    envelope = core.admit(_fact(core))
    original = recorded(core, envelope)
    if name == "occurred_at":
        envelope.occurred_at.CopyFrom(timestamp(START_MS - 1))
    elif name == "version_binding":
        envelope.version_binding.planner_version = "7"
    else:
        setattr(envelope, name, "Another")
    assert is_same_request(original, envelope)


# Reports


def report(late: bool, **changes: Any) -> tuple[Core, ReportExecution, Envelope]:
    """Report an attempt; return the report as sent and as recorded. With `late`, another executor has taken over before."""
    core = Core(document())
    approval = core.approve()
    started = core.start(approval)
    if late:
        core.pass_time(1_000)
        core.start(approval, OTHER_EXECUTOR)
    command = core.report_command(started, changes.pop("status", FAILED), **changes)
    core.run(copy_command(command))
    return core, command, core.by_id[command.envelope.event_id]


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("changes", [{}, {"attempt": 1}, {"finished_at": timestamp(START_MS)}, {"status": SUCCESS}])
def test_a_repeated_report_is_the_same(late: bool, changes: dict[str, Any]) -> None:
    """A repeated report is the same, even if it was late and was recorded as a diagnostic."""
    _, command, original = report(late, **changes)
    assert ("agent_diagnostic" if late else "execution") == original.WhichOneof("payload")
    assert is_same_request(original, command.envelope)


def test_report_fields_completed_by_a_failed_attempt_do_not_count() -> None:
    """The fields that a failed attempt completed in a report do not count."""
    core = Core(document())
    started = core.start(core.approve())
    command = core.report_command(started, FAILED)
    mark = core.state.mark()
    handle(core.state, command, core.references(command), core.now_ms)
    core.state.undo(mark)
    core.run(copy_command(command))
    assert is_same_request(core.by_id[command.envelope.event_id], command.envelope)


@pytest.mark.parametrize("late", [False, True])
def test_another_report_is_not_the_same(late: bool) -> None:
    """Another status, result, executor or subject under a known event_id is another report."""
    _, command, original = report(late)
    for change in (
        lambda envelope: setattr(envelope.execution, "status", SUCCESS),
        lambda envelope: setattr(envelope.execution, "reason_code", "OTHER"),
        lambda envelope: setattr(envelope.execution, "attempt", 2),
        lambda envelope: envelope.execution.result.update({"amount": 1}),
        lambda envelope: setattr(envelope, "subject", "order/2"),
        lambda envelope: envelope.producer.CopyFrom(Producer(type=EXECUTOR.type, id="another")),
    ):
        other = Envelope.FromString(command.envelope.SerializeToString())
        change(other)
        assert not is_same_request(original, other)


def test_no_request_repeats_an_event_of_gavel() -> None:
    """No request repeats an event that Gavel made."""
    core = Core(document())
    approval = core.approve()
    envelope = core.admit(_fact(core))
    assert not is_same_request(approval, envelope)
    report = core.report_command(core.start(approval), SUCCESS)
    assert not is_same_request(approval, report.envelope)
