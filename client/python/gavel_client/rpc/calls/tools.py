"""The calls of ToolService: the registry of tools."""

from __future__ import annotations

from gavel.v1 import tool_service_pb2 as tools
from gavel.v1.tool_pb2 import ToolBinding, ToolContract, ToolProvider
from gavel.v1.tool_service_pb2_grpc import ToolServiceStub

from gavel_client.envelopes import new_event_id
from gavel_client.rpc.calls.call import UnaryCall, unary_call
from gavel_client.rpc.deadlines import READ_TIMEOUT_MS, WRITE_TIMEOUT_MS


def register_contract(
    contract: ToolContract, *, event_id: str = "", bus: str = "", timeout_ms: int = WRITE_TIMEOUT_MS
) -> UnaryCall[tools.RegisterContractResponse]:
    """Register a tool contract. Registering what is registered changes nothing."""
    request = tools.RegisterContractRequest(bus=bus, contract=contract, event_id=event_id or new_event_id())
    return unary_call(ToolServiceStub, lambda stub: stub.RegisterContract, request, timeout_ms)


def register_provider(
    provider: ToolProvider, *, event_id: str = "", bus: str = "", timeout_ms: int = WRITE_TIMEOUT_MS
) -> UnaryCall[tools.RegisterProviderResponse]:
    """Register a tool provider. Registering what is registered changes nothing."""
    request = tools.RegisterProviderRequest(bus=bus, provider=provider, event_id=event_id or new_event_id())
    return unary_call(ToolServiceStub, lambda stub: stub.RegisterProvider, request, timeout_ms)


def bind_tool(
    binding: ToolBinding, *, event_id: str = "", bus: str = "", timeout_ms: int = WRITE_TIMEOUT_MS
) -> UnaryCall[tools.BindToolResponse]:
    """Bind a tool to a provider, for the bus or for one session."""
    request = tools.BindToolRequest(bus=bus, binding=binding, event_id=event_id or new_event_id())
    return unary_call(ToolServiceStub, lambda stub: stub.BindTool, request, timeout_ms)


def unbind_tool(
    tool_name: str, *, session_id: str = "", event_id: str = "", bus: str = "", timeout_ms: int = WRITE_TIMEOUT_MS
) -> UnaryCall[tools.UnbindToolResponse]:
    """End the binding of a tool, for the bus or for one session."""
    request = tools.UnbindToolRequest(bus=bus, tool_name=tool_name, session_id=session_id, event_id=event_id or new_event_id())
    return unary_call(ToolServiceStub, lambda stub: stub.UnbindTool, request, timeout_ms)


def resolve_tool(
    tool_name: str, *, session_id: str = "", canonical_only: bool = False, bus: str = "", timeout_ms: int = READ_TIMEOUT_MS
) -> UnaryCall[tools.ResolveToolResponse]:
    """Find the contract and provider behind a canonical name or an alias, and whether an agent may call the tool."""
    request = tools.ResolveToolRequest(bus=bus, tool_name=tool_name, session_id=session_id, canonical_only=canonical_only)
    return unary_call(ToolServiceStub, lambda stub: stub.ResolveTool, request, timeout_ms)


def list_contracts(
    *, page_size: int = 0, page_token: str = "", bus: str = "", timeout_ms: int = READ_TIMEOUT_MS
) -> UnaryCall[tools.ListContractsResponse]:
    """Read a page of tool contracts, by name."""
    request = tools.ListContractsRequest(bus=bus, page_size=page_size, page_token=page_token)
    return unary_call(ToolServiceStub, lambda stub: stub.ListContracts, request, timeout_ms)


def list_providers(
    *, page_size: int = 0, page_token: str = "", bus: str = "", timeout_ms: int = READ_TIMEOUT_MS
) -> UnaryCall[tools.ListProvidersResponse]:
    """Read a page of tool providers, by provider_id."""
    request = tools.ListProvidersRequest(bus=bus, page_size=page_size, page_token=page_token)
    return unary_call(ToolServiceStub, lambda stub: stub.ListProviders, request, timeout_ms)


def list_bindings(
    *, page_size: int = 0, page_token: str = "", bus: str = "", timeout_ms: int = READ_TIMEOUT_MS
) -> UnaryCall[tools.ListBindingsResponse]:
    """Read a page of bindings of tools: those of the bus first, then by session and tool."""
    request = tools.ListBindingsRequest(bus=bus, page_size=page_size, page_token=page_token)
    return unary_call(ToolServiceStub, lambda stub: stub.ListBindings, request, timeout_ms)
