"""Attempts belong to the executor and the caller that began them."""

from __future__ import annotations

import pytest
from gavel.v1 import error_pb2
from gavel.v1.envelope_pb2 import Envelope
from gavel_rules.commands import AttemptRefusal, EventAnswer, Fault, LeasedAttempt
from gavel_rules.identity.principal import ANONYMOUS, Principal

from tests.support.driver import FAILED, SUCCESS, Core, document

NOT_ALLOWED = error_pb2.ERROR_REASON_PRODUCER_NOT_ALLOWED
ADA = Principal("ada", "jwt", "https://one.example", ("executors",), credential_id="jti-1")
OTHERS = [
    Principal("mallory", "jwt", "https://one.example", ("executors",)),
    Principal("ada", "jwt", "https://other.example"),
    Principal("ada", "token"),
    ANONYMOUS,
]


def begun(caller: Principal = ADA) -> tuple[Core, Envelope, Envelope]:
    """Return a bus with an approval and an attempt that a caller has begun."""
    core = Core(document())
    decision = core.approve()
    core.principal = caller
    return core, decision, core.start(decision)


@pytest.mark.parametrize("other", OTHERS)
def test_only_the_caller_renews_and_reports_its_attempt(other: Principal) -> None:
    """Another caller with the same producer neither renews nor reports an attempt, late reports included; its own caller does."""
    core, _, started = begun()
    for command in (core.renewal(started), core.report_command(started, SUCCESS)):
        answer = core.run(command, principal=other)
        assert isinstance(answer, Fault), answer
        assert (NOT_ALLOWED, True) == (answer.reason, "another caller" in answer.message)
    renewed = core.run(core.renewal(started), principal=Principal("ada", "jwt", "https://one.example", credential_id="jti-2"))
    assert isinstance(renewed, EventAnswer), renewed
    core.report(started, SUCCESS)
    core.prove()


def test_takeover_after_the_lease() -> None:
    """Once the lease has lapsed another caller begins an attempt of its own, and each reports its own one alone."""
    core, decision, first = begun()
    mallory = OTHERS[0]
    core.principal = mallory
    assert isinstance(core.begin(decision), AttemptRefusal)
    core.now_ms += 1_000
    takeover = core.begin(decision)
    assert isinstance(takeover, LeasedAttempt), takeover
    for started, caller in ((first, mallory), (takeover.envelope, ADA)):
        answer = core.run(core.report_command(started, SUCCESS), principal=caller)
        assert isinstance(answer, Fault), answer
        assert NOT_ALLOWED == answer.reason
    core.report(takeover.envelope, FAILED)
    core.principal = ADA
    assert "LateExecutionReport" == core.report(first, SUCCESS).event_name
    core.prove()


def test_attempts_from_before_authentication() -> None:
    """An attempt that was begun without authentication may be reported by an authenticated caller as the same producer."""
    core, _, started = begun(ANONYMOUS)
    core.principal = ADA
    core.report(started, SUCCESS)
    core.prove()


def test_the_state_without_authentication_is_unchanged() -> None:
    """Without authentication the state keeps type and id of the executor alone, as earlier builds did, so that its digest is the same."""
    core, decision, _ = begun(ANONYMOUS)
    producer = core.events[-1].producer
    assert ((producer.type, producer.id),) == core.state.decisions[decision.event_id].holders
