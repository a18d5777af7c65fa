"""Witnesses: with authentication, an agent's own word for what a tool returned is no evidence."""

from __future__ import annotations

import pytest
from gavel.v1 import common_pb2
from gavel.v1.common_pb2 import Producer
from gavel_rules.identity.principal import ANONYMOUS, Principal
from gavel_rules.replay import DivergedError

from tests.support.driver import AGENT, Core, document, replay_log
from tests.support.entries import rechain

RUNTIME = Producer(type=common_pb2.PRODUCER_TYPE_TOOL_RUNTIME, id="tools-1")
REFUNDS = Principal("refund-agent", "jwt", actors=("planner",))
TOOLS = Principal("tools", "mtls")


def tier(observer: Principal, recorder: Principal, producer: Producer, arbiter_version: int = 3) -> int:
    """Return the tier of an observation of a tool result that `recorder` recorded as `producer`."""
    core = Core(document(), arbiter_version=arbiter_version)
    core.principal = recorder
    result = core.tool_result(producer=producer)
    core.principal = observer
    observed = core.observe("order.score", 0.1, evidence=result).observation
    core.prove()
    assert observed.HasField("evidence_recorded_at") == (observed.trust_tier == 2)
    return observed.trust_tier


@pytest.mark.parametrize(
    ("observer", "recorder", "producer", "expected"),
    [
        (REFUNDS, TOOLS, RUNTIME, 2),
        (REFUNDS, REFUNDS, AGENT, 3),
        (REFUNDS, REFUNDS, RUNTIME, 3),
        (REFUNDS, TOOLS, AGENT, 3),
        (REFUNDS, Principal("refund-agent", "mtls"), RUNTIME, 3),
        (REFUNDS, Principal("planner", "mtls"), RUNTIME, 3),
        (REFUNDS, Principal("tools", "jwt", actors=("refund-agent",)), RUNTIME, 3),
        (REFUNDS, ANONYMOUS, RUNTIME, 3),
        (ANONYMOUS, TOOLS, RUNTIME, 3),
        (ANONYMOUS, ANONYMOUS, AGENT, 2),
        (ANONYMOUS, ANONYMOUS, RUNTIME, 2),
    ],
)
def test_tiers(observer: Principal, recorder: Principal, producer: Producer, expected: int) -> None:
    """With authentication tier 2 needs a tool runtime that has nothing to do with the observer; without it nothing changes."""
    assert expected == tier(observer, recorder, producer)


def test_older_semantics() -> None:
    """A bus of arbiter version 2 asks for no witness."""
    assert 2 == tier(ANONYMOUS, ANONYMOUS, AGENT, arbiter_version=2)


def test_a_witness_is_proved() -> None:
    """A replay finds a tool result whose witness was put there afterwards."""
    core = Core(document())
    core.principal = REFUNDS
    core.observe("order.score", 0.1, evidence=core.tool_result(producer=RUNTIME))
    for event in core.events:
        if event.HasField("tool_result"):
            event.attestation.principal = "tools"
            event.attestation.ClearField("actors")
    with pytest.raises(DivergedError) as diverged:
        replay_log(core.bus, rechain(core.bus, core.events))
    assert "observation.trust_tier" in diverged.value.divergence.message
