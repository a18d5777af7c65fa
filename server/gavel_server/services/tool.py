"""ToolService: the registry of tool contracts (seeds 004), which this release does not have yet.

Every call says so. Tool calls and results are events all the same: EventService records them.
"""

from __future__ import annotations

from typing import Any

import grpc
from gavel.v1 import tool_service_pb2_grpc
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

_Context = grpc.aio.ServicerContext[Any, Any]


class ToolServicer(tool_service_pb2_grpc.ToolServiceServicer):
    """Answers every call of ToolService with UNIMPLEMENTED."""

    async def RegisterContract(self, request: RegisterContractRequest, context: _Context) -> RegisterContractResponse:
        """Not in this release."""
        raise not_implemented("registering a tool contract")

    async def RegisterProvider(self, request: RegisterProviderRequest, context: _Context) -> RegisterProviderResponse:
        """Not in this release."""
        raise not_implemented("registering a tool provider")

    async def BindTool(self, request: BindToolRequest, context: _Context) -> BindToolResponse:
        """Not in this release."""
        raise not_implemented("binding a tool to a provider")

    async def ResolveTool(self, request: ResolveToolRequest, context: _Context) -> ResolveToolResponse:
        """Not in this release."""
        raise not_implemented("resolving a tool's name")

    async def ListContracts(self, request: ListContractsRequest, context: _Context) -> ListContractsResponse:
        """Not in this release."""
        raise not_implemented("listing tool contracts")
