"""ToolService: the registry of tool contracts, providers and bindings (constitution 004), which lives in the log.

Tool calls and results are events; EventService records them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from heapq import nsmallest
from typing import TYPE_CHECKING, Final, TypeVar

from gavel.v1.tool_pb2 import ToolBinding, ToolContract, ToolProvider
from gavel.v1.tool_service_pb2 import (
    BindToolRequest,
    BindToolResponse,
    ListBindingsRequest,
    ListBindingsResponse,
    ListContractsRequest,
    ListContractsResponse,
    ListProvidersRequest,
    ListProvidersResponse,
    RegisterContractRequest,
    RegisterContractResponse,
    RegisterProviderRequest,
    RegisterProviderResponse,
    ResolveToolRequest,
    ResolveToolResponse,
    UnbindToolRequest,
    UnbindToolResponse,
)
from gavel_rules.commands import ChangeTools, EventAnswer, Fault, ToolsPosition
from gavel_rules.state.tools import ToolRegistry
from gavel_rules.tools.resolution import resolve

from gavel_server.errors import invalid, of_fault
from gavel_server.fairness.places import Places
from gavel_server.intake.formats import NAME
from gavel_server.intake.tools import contract_registration, provider_registration, tool_binding, tool_unbinding
from gavel_server.rpc.call_context import CallContext
from gavel_server.services.reads.paging import Position, fill, page_of

if TYPE_CHECKING:
    from gavel_server.bus.registry import BusRegistry

# Contracts that are compiled at once, and that wait.
CONTRACT_COMPILES_MAX: Final = 1
CONTRACTS_WAITING_MAX: Final = 256
RETRY_AFTER_MS: Final = 1_000

_Item = TypeVar("_Item", ToolContract, ToolProvider, ToolBinding)


class ToolServicer:
    """Serves ToolService on the buses of this server."""

    def __init__(self, buses: BusRegistry) -> None:
        self._buses = buses
        self._places = Places(
            "tool contracts wait to be compiled", CONTRACT_COMPILES_MAX, waiting_max=CONTRACTS_WAITING_MAX, retry_after_ms=RETRY_AFTER_MS
        )

    async def RegisterContract(self, request: RegisterContractRequest, context: CallContext) -> RegisterContractResponse:
        """Record a contract with the hash of its schemas."""
        # Compiling a schema takes a few milliseconds.
        compilation = asyncio.to_thread(contract_registration, request.contract, request.event_id)
        command = await self._places.run(context.caller, compilation)
        number = await self._change(request.bus, command, context)
        return RegisterContractResponse(sequence_number=number, schema_hash=command.envelope.fact.tool_contract_registered.schema_hash)

    async def RegisterProvider(self, request: RegisterProviderRequest, context: CallContext) -> RegisterProviderResponse:
        """Record a provider."""
        command = provider_registration(request.provider, request.event_id)
        return RegisterProviderResponse(sequence_number=await self._change(request.bus, command, context))

    async def BindTool(self, request: BindToolRequest, context: CallContext) -> BindToolResponse:
        """Record a binding."""
        command = tool_binding(request.binding, request.event_id)
        return BindToolResponse(sequence_number=await self._change(request.bus, command, context))

    async def UnbindTool(self, request: UnbindToolRequest, context: CallContext) -> UnbindToolResponse:
        """Record the end of a binding."""
        command = tool_unbinding(request.tool_name, request.session_id, request.event_id)
        return UnbindToolResponse(sequence_number=await self._change(request.bus, command, context))

    async def ResolveTool(self, request: ResolveToolRequest, context: CallContext) -> ResolveToolResponse:
        """Find the contract and provider behind a name."""
        violations = [] if NAME.match(request.tool_name) else [("tool_name", "is required: 1 to 128 printable ASCII characters")]
        if request.session_id and not NAME.match(request.session_id):
            violations.append(("session_id", "is not 1 to 128 printable ASCII characters without spaces"))
        if violations:
            raise invalid(violations)
        state = await (await self._buses.existing(request.bus, context.bus_incarnation)).confirmed_state()
        resolved = resolve(state, request.tool_name, request.session_id, canonical_only=request.canonical_only)
        if isinstance(resolved, Fault):
            raise of_fault(resolved)
        return resolved

    async def ListContracts(self, request: ListContractsRequest, context: CallContext) -> ListContractsResponse:
        """Read a page of the contracts, by name."""
        contracts, token = await self._list(
            request,
            "contracts",
            context,
            lambda tools: ((name,) for name in tools.contracts),
            lambda tools, position: tools.contracts[str(position[0])].contract,
            lambda contract: (contract.name,),
        )
        return ListContractsResponse(contracts=contracts, next_page_token=token)

    async def ListProviders(self, request: ListProvidersRequest, context: CallContext) -> ListProvidersResponse:
        """Read a page of the providers, by provider_id."""
        providers, token = await self._list(
            request,
            "providers",
            context,
            lambda tools: ((provider_id,) for provider_id in tools.providers),
            lambda tools, position: tools.providers[str(position[0])].provider,
            lambda provider: (provider.provider_id,),
        )
        return ListProvidersResponse(providers=providers, next_page_token=token)

    async def ListBindings(self, request: ListBindingsRequest, context: CallContext) -> ListBindingsResponse:
        """Read a page of the bindings, those of the bus first."""
        bindings, token = await self._list(
            request,
            "bindings",
            context,
            lambda tools: tools.bindings,
            lambda tools, position: _binding(tools, str(position[0]), str(position[1])),
            lambda binding: (binding.session_id, binding.tool_name),
        )
        return ListBindingsResponse(bindings=bindings, next_page_token=token)

    async def _change(self, bus: str, command: ChangeTools, context: CallContext) -> int:
        """Return the sequence number of the event that records a change, or that made it so before."""
        sequencer = await self._buses.open(bus, context.bus_incarnation)
        answered = await sequencer.execute(command, command.envelope.event_id, caller=context.caller, principal=context.principal)
        answer = answered.answer
        if isinstance(answer, EventAnswer):
            return answer.envelope.sequence_number
        if isinstance(answer, ToolsPosition):
            return answer.sequence_number
        raise TypeError(f"ChangeTools was answered with {type(answer).__name__}")

    async def _list(
        self,
        request: ListContractsRequest | ListProvidersRequest | ListBindingsRequest,
        plural: str,
        context: CallContext,
        positions_in: Callable[[ToolRegistry], Iterable[Position]],
        item_at: Callable[[ToolRegistry, Position], _Item],
        position_of: Callable[[_Item], Position],
    ) -> tuple[list[_Item], str]:
        """Return the page of a request. `positions_in` gives the positions of all items in any order."""
        sequencer = await self._buses.existing(request.bus, context.bus_incarnation)
        names = (str, str) if plural == "bindings" else (str,)
        page = page_of(request.page_size, request.page_token, (plural, sequencer.bus), names)
        state = await sequencer.confirmed_state()
        after = page.after
        # A bus may have 10,000 bindings: those of the page are found without sorting all, and only they become messages.
        positions = nsmallest(page.size + 1, (one for one in positions_in(state.tools) if after is None or one > after))
        return await fill(page, [item_at(state.tools, one) for one in positions], position_of, context.caller)


def _binding(tools: ToolRegistry, session_id: str, tool_name: str) -> ToolBinding:
    return ToolBinding(tool_name=tool_name, provider_id=tools.bindings[session_id, tool_name].provider_id, session_id=session_id)
