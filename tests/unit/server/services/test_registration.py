"""Servicers and the contract: the interceptor registers methods by name, so their signatures are compared with the contract here."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator
from typing import Any, get_type_hints

import pytest
from gavel_server.rpc import service_descriptors
from gavel_server.rpc.call_context import CallContext
from gavel_server.rpc.encoded_response import EncodedResponse
from gavel_server.services.administration import AdministrationServicer
from gavel_server.services.arbitration import Arbitration
from gavel_server.services.audit import AuditServicer
from gavel_server.services.event import EventServicer
from gavel_server.services.execution import ExecutionServicer
from gavel_server.services.projection import ProjectionServicer
from gavel_server.services.proof import ProofServicer
from gavel_server.services.replay import ReplayServicer
from gavel_server.services.rule_set import RuleSetServicer
from gavel_server.services.tool import ToolServicer
from gavel_server.services.work import WorkServicer
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message_factory import GetMessageClass

SERVICERS: dict[ServiceDescriptor, type[object]] = {
    service_descriptors.ADMINISTRATION: AdministrationServicer,
    service_descriptors.AUDIT: AuditServicer,
    service_descriptors.EVENT: EventServicer,
    service_descriptors.EXECUTION: ExecutionServicer,
    service_descriptors.RULE_SET: RuleSetServicer,
    service_descriptors.PROJECTION: ProjectionServicer,
    service_descriptors.PROOF: ProofServicer,
    service_descriptors.REPLAY: ReplayServicer,
    service_descriptors.TOOL: ToolServicer,
    service_descriptors.WORK: WorkServicer,
}


def test_every_service_has_a_servicer() -> None:
    """The servicers and the callback methods of ArbitrationService are all services of the contract."""
    assert {*service_descriptors.SERVICES} == {*SERVICERS, service_descriptors.ARBITRATION}


@pytest.mark.parametrize("service", SERVICERS, ids=lambda service: service.name)
def test_methods_have_the_types_of_the_contract(service: ServiceDescriptor) -> None:
    """A method takes its request and a CallContext, and returns its response or yields responses, as the contract has it."""
    for method in service.methods:
        behaviour = getattr(SERVICERS[service], method.name)
        hints = get_type_hints(behaviour, vars(inspect.getmodule(behaviour)))
        request: Any = GetMessageClass(method.input_type)
        received = hints["requests"] if method.client_streaming else hints["request"]
        assert [AsyncGenerator[request, None] if method.client_streaming else request, CallContext] == [received, hints["context"]]
        response: Any = GetMessageClass(method.output_type)
        if method.server_streaming:
            assert inspect.isasyncgenfunction(behaviour)
            assert hints["return"] in (AsyncGenerator[response, None], AsyncGenerator[EncodedResponse[response], None])
        else:
            assert inspect.iscoroutinefunction(behaviour)
            assert hints["return"] in (response, EncodedResponse[response])


def test_every_method_of_arbitration_is_a_plain_method() -> None:
    """ArbitrationService has a callback method for each method of the contract."""
    methods = Arbitration(None, None).methods  # type: ignore[arg-type]  # no method is called
    assert {method.name for method in service_descriptors.ARBITRATION.methods} == {*methods}
