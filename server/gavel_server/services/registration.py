"""Registers every service of the contract with a grpc.aio server, behind the interceptor."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from gavel_client.supervision import Supervisor

from gavel_server.bus.registry import BusRegistry
from gavel_server.compile.compiler import Compiler
from gavel_server.fairness.work_slots import replay_slots, scan_slots
from gavel_server.history.replay import impact, verify
from gavel_server.history.replay_process import ReplayProcesses
from gavel_server.index.event_index import EventIndex
from gavel_server.rpc import service_descriptors
from gavel_server.rpc.callback_methods import Method
from gavel_server.rpc.identity.access import AccessControl
from gavel_server.rpc.interceptor import HandlerRegistry, Interceptor
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


def register_services(
    server: HandlerRegistry,
    interceptor: Interceptor,
    buses: BusRegistry,
    supervisor: Supervisor | None = None,
    access: AccessControl | None = None,
    proofs: Path | None = None,
    index: EventIndex | None = None,
    replays: ReplayProcesses | None = None,
) -> Mapping[str, Method]:
    """Serve all services on some buses. Return the methods of ArbitrationService by name, for the native front.

    `supervisor` runs the background tasks that GetStatus shows; default: none. `access` checks the rights of callers; default: there
    are no administrators. `proofs` is the directory of the trees of ProofService; None: a temporary one.
    `index` finds events; default: reads scan the log. `replays` replays and simulates; default: this process does.
    """
    compiler = Compiler()
    access = access or AccessControl(buses)
    interceptor.access = access
    slots = replay_slots()
    methods = interceptor.intercept(service_descriptors.ARBITRATION, Arbitration(buses, compiler, access.refusals).methods)
    interceptor.register_methods(server, service_descriptors.ARBITRATION, methods)
    interceptor.register(server, service_descriptors.EVENT, EventServicer(buses, access.refusals, index))
    interceptor.register(server, service_descriptors.EXECUTION, ExecutionServicer(buses))
    interceptor.register(
        server, service_descriptors.RULE_SET, RuleSetServicer(buses, compiler, slots, impact if replays is None else replays.impact)
    )
    projection = ProjectionServicer(buses, supervisor or Supervisor(), interceptor.quotas, access)
    interceptor.register(server, service_descriptors.PROJECTION, projection)
    interceptor.register(server, service_descriptors.REPLAY, ReplayServicer(buses, slots, verify if replays is None else replays.verify))
    interceptor.register(server, service_descriptors.AUDIT, AuditServicer(buses, slots, scan_slots(), access, index))
    interceptor.register(server, service_descriptors.ADMINISTRATION, AdministrationServicer(buses, access))
    interceptor.register(server, service_descriptors.TOOL, ToolServicer(buses))
    interceptor.register(server, service_descriptors.WORK, WorkServicer(buses, access.refusals))
    interceptor.register(server, service_descriptors.PROOF, ProofServicer(buses, scan_slots(), proofs))
    return methods
