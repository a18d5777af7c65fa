"""Whose share of the compiler a call uses."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from gavel.v1.arbitration_service_pb2 import PreflightRequest
from gavel.v1.fact_pb2 import CrossCheck
from gavel.v1.rule_set_service_pb2 import DeployRuleSetRequest, SimulateRuleSetRequest, ValidateRuleSetRequest, ValidateRuleSetResponse
from gavel_server.bus.sequencer import Sequencer
from gavel_server.errors import ServiceError, invalid
from gavel_server.fairness.work_slots import replay_slots
from gavel_server.log.memory import MemoryLog
from gavel_server.process.clock import GuardedClock
from gavel_server.rpc.call_context import CallContext, Caller
from gavel_server.services.preflight import Preflight
from gavel_server.services.rule_set import RuleSetServicer

from tests.support.driver import START_MS

PEER = "ipv4:10.0.0.1:5"


class Compilations:
    """A compiler that refuses every document and notes its callers."""

    def __init__(self) -> None:
        self.callers: list[str] = []

    async def check(self, _: str, caller: str, *, with_analysis: bool) -> ValidateRuleSetResponse:
        """Note a validation."""
        self.callers.append(caller)
        return ValidateRuleSetResponse(valid=with_analysis)

    async def compile(self, _: str, caller: str, field: str = "document") -> Any:
        """Note a compilation, and refuse it."""
        self.callers.append(caller)
        raise invalid([(field, "is refused")])


async def test_compilations_use_the_share_of_their_caller() -> None:
    """Each call that compiles a document names its caller to the compiler, which shares its places between callers."""
    compilations: Any = Compilations()

    clock = GuardedClock(lambda: START_MS, lambda: START_MS)
    # A real one, which the compiled build requires; it is not started.
    bus = Sequencer(MemoryLog("default", lambda: START_MS), clock, cross_check=CrossCheck(), idempotency_window_ms=1)

    async def existing(*_: object) -> Any:
        return bus

    buses: Any = SimpleNamespace(check_name=lambda _: None, find_open=lambda *_: None, existing=existing, open=existing)
    context = CallContext("gavel.v1.RuleSetService/ValidateRuleSet", lambda: Caller("grpc.aio", PEER, (), None))
    servicer = RuleSetServicer(buses, compilations, replay_slots())
    await servicer.ValidateRuleSet(ValidateRuleSetRequest(document="x"), context)
    with pytest.raises(ServiceError):
        await servicer.DeployRuleSet(DeployRuleSetRequest(document="x"), context)
    with pytest.raises(ServiceError):
        await anext(servicer.SimulateRuleSet(SimulateRuleSetRequest(document="x"), context))
    override = PreflightRequest(rule_set_override="x").SerializeToString()
    with pytest.raises(ServiceError):
        await Preflight(buses, compilations).preflight(override, context)
    assert [context.caller] * 4 == compilations.callers
