"""The services of the server, as the contract describes them: for the interceptor, reflection and health."""

from __future__ import annotations

from typing import Any, Final

from gavel.v1 import (
    administration_service_pb2,
    arbitration_service_pb2,
    audit_service_pb2,
    event_service_pb2,
    execution_service_pb2,
    projection_service_pb2,
    proof_service_pb2,
    replay_service_pb2,
    rule_set_service_pb2,
    tool_service_pb2,
    work_service_pb2,
)
from google.protobuf.descriptor import ServiceDescriptor
from grpc_health.v1 import health_pb2

from gavel_server.rpc import reflection

ARBITRATION: Final[ServiceDescriptor] = arbitration_service_pb2.DESCRIPTOR.services_by_name["ArbitrationService"]
EVENT: Final[ServiceDescriptor] = event_service_pb2.DESCRIPTOR.services_by_name["EventService"]
EXECUTION: Final[ServiceDescriptor] = execution_service_pb2.DESCRIPTOR.services_by_name["ExecutionService"]
RULE_SET: Final[ServiceDescriptor] = rule_set_service_pb2.DESCRIPTOR.services_by_name["RuleSetService"]
PROJECTION: Final[ServiceDescriptor] = projection_service_pb2.DESCRIPTOR.services_by_name["ProjectionService"]
REPLAY: Final[ServiceDescriptor] = replay_service_pb2.DESCRIPTOR.services_by_name["ReplayService"]
ADMINISTRATION: Final[ServiceDescriptor] = administration_service_pb2.DESCRIPTOR.services_by_name["AdministrationService"]
PROOF: Final[ServiceDescriptor] = proof_service_pb2.DESCRIPTOR.services_by_name["ProofService"]
TOOL: Final[ServiceDescriptor] = tool_service_pb2.DESCRIPTOR.services_by_name["ToolService"]
WORK: Final[ServiceDescriptor] = work_service_pb2.DESCRIPTOR.services_by_name["WorkService"]
AUDIT: Final[ServiceDescriptor] = audit_service_pb2.DESCRIPTOR.services_by_name["AuditService"]
SERVICES: Final = (ARBITRATION, EVENT, EXECUTION, RULE_SET, PROJECTION, REPLAY, AUDIT, ADMINISTRATION, TOOL, WORK, PROOF)

HEALTH: Final[Any] = health_pb2.DESCRIPTOR.services_by_name["Health"]
REFLECTIONS: Final[tuple[Any, ...]] = (reflection.V1, reflection.V1ALPHA)
# The services that reflection lists.
NAMES: Final[tuple[str, ...]] = tuple(service.full_name for service in (*SERVICES, HEALTH, *REFLECTIONS))
