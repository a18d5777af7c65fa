"""Rule sets that are active together are bounded together. In virtual time."""

from __future__ import annotations

import pytest
from gavel.v1 import fact_pb2
from gavel.v1.rule_set_service_pb2 import ActivateRuleSetRequest
from gavel_rules.authoring.decision_cost import total_steps
from gavel_rules.commands import DeployRuleSet
from gavel_server.bus.registry import BusRegistry
from gavel_server.bus.sequencer import Sequencer
from gavel_server.compile.compiler import Compiler
from gavel_server.errors import ServiceError
from gavel_server.fairness.work_slots import replay_slots
from gavel_server.services import rule_set
from gavel_server.services.rule_set import RuleSetServicer

from tests.support.calls import call_context
from tests.support.driver import BUS, compile_cached, document
from tests.support.simulation.servers import Servers, reason, with_servers


@with_servers
async def test_rule_sets_that_share_an_action_are_added_up(servers: Servers) -> None:
    """A rule set that exceeds the bound together with another active one is refused; as a shadow it has a bound of its own."""
    sequencer, _ = await servers.start_with_rules()

    async def opened(name: str) -> Sequencer:
        return sequencer

    async def exists(name: str) -> bool:
        return True

    buses = BusRegistry(opened, exists)
    await buses.open(BUS)
    servicer = RuleSetServicer(buses, Compiler(), replay_slots())
    steps = 0
    for policy_id in ("auditors", "company"):
        text = document(rule_set=policy_id)
        compiled = compile_cached(text)
        steps = total_steps(compiled.actions.values())
        await sequencer.execute(DeployRuleSet(servers.new_id(), compiled, text))

    async def activate(policy_id: str, mode: fact_pb2.ActivationMode.ValueType) -> None:
        request = ActivateRuleSetRequest(policy_id=policy_id, version=1, mode=mode)
        await servicer.ActivateRuleSet(request, call_context())

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(rule_set, "DECISION_STEPS_MAX", 2 * steps + steps // 2)
        await activate("auditors", fact_pb2.ACTIVATION_MODE_ACTIVE)
        with pytest.raises(ServiceError, match="with all 3 rule sets that would govern it") as refused:
            await activate("company", fact_pb2.ACTIVATION_MODE_ACTIVE)
        assert "WRONG_STATE" == reason(refused.value)
        await activate("company", fact_pb2.ACTIVATION_MODE_SHADOW)
    await activate("company", fact_pb2.ACTIVATION_MODE_ACTIVE)
    await servers.prove()
