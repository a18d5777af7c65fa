"""ToolService: the registry of tool contracts (constitution 004). This release does not have it: every call is UNIMPLEMENTED.

Tool calls and results are events all the same; EventService records them.
"""

from __future__ import annotations

from gavel.v1.tool_service_pb2 import (
    BindToolRequest,
    BindToolResponse,
    ListContractsRequest,
    ListContractsResponse,
    RegisterContractRequest,
    RegisterContractResponse,
    RegisterProviderRequest,
    RegisterProviderResponse,
    ResolveToolRequest,
    ResolveToolResponse,
)

from gavel_server.errors import not_implemented
from gavel_server.rpc.call_context import CallContext


class ToolServicer:
    """Answers every call of ToolService with UNIMPLEMENTED."""

    async def RegisterContract(self, request: RegisterContractRequest, context: CallContext) -> RegisterContractResponse:
        """Refuse: not in this release."""
        raise not_implemented("registering a tool contract")

    async def RegisterProvider(self, request: RegisterProviderRequest, context: CallContext) -> RegisterProviderResponse:
        """Refuse: not in this release."""
        raise not_implemented("registering a tool provider")

    async def BindTool(self, request: BindToolRequest, context: CallContext) -> BindToolResponse:
        """Refuse: not in this release."""
        raise not_implemented("binding a tool to a provider")

    async def ResolveTool(self, request: ResolveToolRequest, context: CallContext) -> ResolveToolResponse:
        """Refuse: not in this release."""
        raise not_implemented("resolving a tool's name")

    async def ListContracts(self, request: ListContractsRequest, context: CallContext) -> ListContractsResponse:
        """Refuse: not in this release."""
        raise not_implemented("listing tool contracts")
