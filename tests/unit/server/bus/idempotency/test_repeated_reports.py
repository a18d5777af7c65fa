"""Repeated reports: the executor, cause and content as sent must be the same."""

from __future__ import annotations

import pytest
from gavel.v1.envelope_pb2 import Envelope
from gavel_rules.commands import ReportExecution
from gavel_server.bus.idempotency.same_request import is_same_request

from tests.support.driver import OTHER_EXECUTOR, SUCCESS, Core, copy_command, document


def report(cause: str, late: bool) -> tuple[ReportExecution, Envelope, Envelope]:
    """Report an attempt with a cause; return the report as sent, the recorded one, and its start."""
    core = Core(document())
    approval = core.approve()
    started = core.start(approval)
    if late:
        core.pass_time(1_000)
        core.start(approval, OTHER_EXECUTOR)
    command = core.report_command(started, SUCCESS)
    command.envelope.causation_id = {"": "", "decision": approval.event_id, "start": started.event_id}[cause]
    core.run(copy_command(command))
    return command, core.by_id[command.envelope.event_id], started


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("cause", ["", "decision", "start"])
def test_the_same_cause_is_the_same_report(cause: str, late: bool) -> None:
    """A repeated report with the same cause is the same; without a cause its decision is meant."""
    command, original, _ = report(cause, late)
    assert is_same_request(original, command.envelope)


@pytest.mark.parametrize("cause", ["", "decision"])
def test_another_cause_is_another_report(cause: str) -> None:
    """A report with another cause under a known event_id is another report."""
    command, original, started = report(cause, False)
    command.envelope.causation_id = started.event_id
    assert not is_same_request(original, command.envelope)


@pytest.mark.parametrize("late", [False, True])
def test_another_version_of_the_executor_is_another_producer(late: bool) -> None:
    """A producer is its type, id and version."""
    command, original, _ = report("", late)
    command.envelope.producer.version = "2.0"
    assert not is_same_request(original, command.envelope)
