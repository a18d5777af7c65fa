"""Which services the server has, as the contract describes them: for reflection, health, and the front."""

from __future__ import annotations

from typing import Any, Final

from gavel.v1 import (
    arbitration_service_pb2,
    event_service_pb2,
    execution_service_pb2,
    projection_service_pb2,
    replay_service_pb2,
    rule_set_service_pb2,
    tool_service_pb2,
)
from google.protobuf.descriptor import ServiceDescriptor
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection

HEALTH: Final[Any] = health_pb2.DESCRIPTOR.services_by_name["Health"]
ARBITRATION: Final[ServiceDescriptor] = arbitration_service_pb2.DESCRIPTOR.services_by_name["ArbitrationService"]
SERVICES: Final[tuple[ServiceDescriptor, ...]] = (
    ARBITRATION,
    event_service_pb2.DESCRIPTOR.services_by_name["EventService"],
    execution_service_pb2.DESCRIPTOR.services_by_name["ExecutionService"],
    rule_set_service_pb2.DESCRIPTOR.services_by_name["RuleSetService"],
    projection_service_pb2.DESCRIPTOR.services_by_name["ProjectionService"],
    replay_service_pb2.DESCRIPTOR.services_by_name["ReplayService"],
    tool_service_pb2.DESCRIPTOR.services_by_name["ToolService"],
)
# What reflection names.
NAMES: Final = (*(service.full_name for service in SERVICES), HEALTH.full_name, reflection.SERVICE_NAME)
