"""The calls of AdministrationService: buses, grants and callers."""

from __future__ import annotations

from gavel.v1 import administration_service_pb2 as administration
from gavel.v1.administration_service_pb2_grpc import AdministrationServiceStub

from gavel_client.rpc.calls.call import UnaryCall, unary_call
from gavel_client.rpc.deadlines import COMPILE_TIMEOUT_MS, READ_TIMEOUT_MS, WRITE_TIMEOUT_MS


def who_am_i(*, bus: str = "", timeout_ms: int = READ_TIMEOUT_MS) -> UnaryCall[administration.WhoAmIResponse]:
    """Return the caller as the server has authenticated it, and its rights on the bus."""
    request = administration.WhoAmIRequest(bus=bus)
    return unary_call(AdministrationServiceStub, lambda stub: stub.WhoAmI, request, timeout_ms)


def validate_grants(
    document: str, *, bus: str = "", timeout_ms: int = COMPILE_TIMEOUT_MS
) -> UnaryCall[administration.ValidateGrantsResponse]:
    """Compile a grants document and return all mistakes; deploy nothing."""
    request = administration.ValidateGrantsRequest(bus=bus, document=document)
    return unary_call(AdministrationServiceStub, lambda stub: stub.ValidateGrants, request, timeout_ms)


def deploy_grants(
    document: str,
    *,
    reason: str = "",
    expected_version: int | None = None,
    bus: str = "",
    timeout_ms: int = COMPILE_TIMEOUT_MS,
) -> UnaryCall[administration.DeployGrantsResponse]:
    """Put grants in force.

    Deploying their digest again changes nothing; another digest under a known version is ALREADY_EXISTS. If `expected_version` is set and
    not the version in force (0: none), the call fails with ABORTED.
    """
    request = administration.DeployGrantsRequest(bus=bus, document=document, reason=reason, expected_version=expected_version)
    return unary_call(AdministrationServiceStub, lambda stub: stub.DeployGrants, request, timeout_ms, repeatable=expected_version is None)


def get_grants(*, version: int = 0, bus: str = "", timeout_ms: int = READ_TIMEOUT_MS) -> UnaryCall[administration.GetGrantsResponse]:
    """Read a deployed version of the grants; 0: the one in force."""
    request = administration.GetGrantsRequest(bus=bus, version=version)
    return unary_call(AdministrationServiceStub, lambda stub: stub.GetGrants, request, timeout_ms)


def list_grants(
    *, page_size: int = 0, page_token: str = "", bus: str = "", timeout_ms: int = READ_TIMEOUT_MS
) -> UnaryCall[administration.ListGrantsResponse]:
    """Read a page of the deployed versions of the grants, newest first."""
    request = administration.ListGrantsRequest(bus=bus, page_size=page_size, page_token=page_token)
    return unary_call(AdministrationServiceStub, lambda stub: stub.ListGrants, request, timeout_ms)


def create_bus(*, bus: str = "", timeout_ms: int = WRITE_TIMEOUT_MS) -> UnaryCall[administration.CreateBusResponse]:
    """Open the bus. ALREADY_EXISTS if there is one of this name."""
    request = administration.CreateBusRequest(bus=bus)
    return unary_call(AdministrationServiceStub, lambda stub: stub.CreateBus, request, timeout_ms, repeatable=False)


def upgrade_bus(
    *,
    from_arbiter_version: int,
    arbiter_version: int,
    upgraded_by: str = "",
    reason: str = "",
    bus: str = "",
    timeout_ms: int = WRITE_TIMEOUT_MS,
) -> UnaryCall[administration.UpgradeBusResponse]:
    """Change the arbiter version of the bus to a later one that the server implements. There is no way back."""
    request = administration.UpgradeBusRequest(
        bus=bus, from_arbiter_version=from_arbiter_version, arbiter_version=arbiter_version, upgraded_by=upgraded_by, reason=reason
    )
    return unary_call(AdministrationServiceStub, lambda stub: stub.UpgradeBus, request, timeout_ms, repeatable=False)


def list_buses(
    *, page_size: int = 0, page_token: str = "", timeout_ms: int = READ_TIMEOUT_MS
) -> UnaryCall[administration.ListBusesResponse]:
    """Read a page of the buses that the caller may read, by name."""
    request = administration.ListBusesRequest(page_size=page_size, page_token=page_token)
    return unary_call(AdministrationServiceStub, lambda stub: stub.ListBuses, request, timeout_ms)
