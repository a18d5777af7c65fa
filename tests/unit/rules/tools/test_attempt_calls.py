"""Tool calls that carry out a decision: recorded only while their attempt runs under its lease, with the decision's params."""

from __future__ import annotations

from typing import Any

import pytest
from gavel.v1 import common_pb2, error_pb2
from gavel.v1.common_pb2 import Producer
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.tool_pb2 import ToolCall
from gavel_rules.commands import PublishEvent
from gavel_rules.identity.principal import ANONYMOUS, Principal
from gavel_rules.language.document.canonical_form import compute_digest, to_canonical_json
from gavel_rules.values import struct_to_dict

from tests.support.driver import AGENT, FAILED, SUBJECT, SUCCESS, Core, document
from tests.support.hashes import sha256_of

ADA = Principal("ada", "token")
MALLORY = Principal("mallory", "token")
RUNTIME = Producer(type=common_pb2.PRODUCER_TYPE_TOOL_RUNTIME, id="tools-1")


def call(core: Core, decision: Envelope, producer: Producer = RUNTIME, **changes: Any) -> Envelope:
    """Return the TOOL_CALL of attempt 1 with the decision's params."""
    digest = compute_digest(to_canonical_json(struct_to_dict(decision.decision.params)))
    fields = {"tool_name": "psp.refund", "decision_id": decision.event_id, "attempt": 1, "arguments_hash": digest, **changes}
    return core.admit(Envelope(subject=SUBJECT, trace_id=decision.trace_id, producer=producer, tool_call=ToolCall(**fields)))


def refused(core: Core, decision: Envelope, **changes: Any) -> str:
    """Return the message of a call that must be refused."""
    fault = core.fault(PublishEvent(call(core, decision, **changes)))
    assert error_pb2.ERROR_REASON_WRONG_STATE == fault.reason
    return fault.message


def test_a_call_of_the_running_attempt_is_recorded() -> None:
    """Up to the last millisecond of its lease an attempt may call tools, any number of times, and the log replays."""
    core = Core(document())
    decision = core.approve()
    core.start(decision, lease_ms=1_000)
    core.pass_time(999)
    recorded = [core.publish(call(core, decision)) for _ in range(2)]
    assert [decision.event_id] * 2 == [event.tool_call.decision_id for event in recorded]
    core.prove()


@pytest.mark.parametrize("state", ["approved", "lapsed", "failed", "finished", "revoked"])
def test_no_call_without_a_running_attempt(state: str) -> None:
    """Before its start, after its lease and after its report, an attempt has no calls."""
    core = Core(document())
    decision = core.approve()
    if state == "revoked":
        core.revoke(decision)
    elif state != "approved":
        started = core.start(decision, lease_ms=1_000)
        if state == "lapsed":
            core.tick(1_000)
        else:
            core.report(started, FAILED if state == "failed" else SUCCESS)
    assert "does not run under its lease" in refused(core, decision)


def test_only_the_attempt_that_runs() -> None:
    """A former attempt, a later one and another decision's attempt have no calls while an attempt runs."""
    core = Core(document())
    decision = core.approve()
    core.report(core.start(decision), FAILED)
    core.pass_time(1_000)
    core.start(decision)
    for attempt in (1, 3):
        assert f"attempt {attempt} of" in refused(core, decision, attempt=attempt)
    assert "does not run" in refused(core, decision, decision_id=core.new_id(), attempt=2)
    assert core.publish(call(core, decision, attempt=2))


def test_only_the_params_of_the_decision() -> None:
    """Other arguments, and none, are refused."""
    core = Core(document())
    decision = core.approve()
    core.start(decision)
    for arguments_hash in ("", sha256_of("other")):
        assert "are not the params" in refused(core, decision, arguments_hash=arguments_hash)


def test_an_agent_calls_only_for_its_own_attempt() -> None:
    """Of agents, only one whose caller began the attempt records calls of it; a tool runtime of any caller does."""
    core = Core(document())
    decision = core.approve()
    core.principal = ADA
    core.start(decision)
    for caller in (MALLORY, ANONYMOUS):
        core.principal = caller
        fault = core.fault(PublishEvent(call(core, decision, AGENT)))
        assert (error_pb2.ERROR_REASON_PRODUCER_NOT_ALLOWED, True) == (fault.reason, "by another caller" in fault.message)
        assert core.publish(call(core, decision))
    core.principal = ADA
    assert core.publish(call(core, decision, AGENT))
    core.prove()


def test_agents_without_authentication() -> None:
    """An agent records calls of an attempt that was begun without authentication."""
    core = Core(document())
    decision = core.approve()
    core.start(decision)
    assert core.publish(call(core, decision, AGENT))
    core.prove()
