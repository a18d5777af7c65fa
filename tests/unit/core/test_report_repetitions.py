"""When a report under a known event_id is the same report: executor, cause and content, as they were sent."""

from __future__ import annotations

import pytest
from gavel.v1.envelope_pb2 import Envelope
from gavel_rules.commands import ReportExecution
from gavel_server.bus.idempotency import same_content

from tests.unit.core.driver import OTHER_EXECUTOR, SUCCESS, Core, copied, document


def reported(cause: str, late: bool) -> tuple[ReportExecution, Envelope, Envelope]:
    """Report an attempt with a cause; return the report as it was sent, the one in the log, and the start it belongs to."""
    core = Core(document())
    approval = core.approve()
    started = core.start(approval)
    if late:
        core.pass_time(1_000)
        core.start(approval, OTHER_EXECUTOR)
    sent = core.reporting(started, SUCCESS)
    sent.envelope.causation_id = {"": "", "decision": approval.event_id, "start": started.event_id}[cause]
    core.run(copied(sent))
    return sent, core.by_id[sent.envelope.event_id], started


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("cause", ["", "decision", "start"])
def test_the_same_cause_is_the_same_report(cause: str, late: bool) -> None:
    """A report that is repeated with the cause it had is the same; without one its decision was meant."""
    sent, original, _ = reported(cause, late)
    assert same_content(original, sent.envelope)


@pytest.mark.parametrize("cause", ["", "decision"])
def test_another_cause_is_another_report(cause: str) -> None:
    """Another cause under a known id is something else."""
    sent, original, started = reported(cause, False)
    sent.envelope.causation_id = started.event_id
    assert not same_content(original, sent.envelope)


@pytest.mark.parametrize("late", [False, True])
def test_another_version_of_the_executor_is_another_producer(late: bool) -> None:
    """A producer is its type, id and version."""
    sent, original, _ = reported("", late)
    sent.envelope.producer.version = "2.0"
    assert not same_content(original, sent.envelope)
