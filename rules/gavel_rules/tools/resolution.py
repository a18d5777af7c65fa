"""Resolution of a tool's name (constitution 004 §5.2): canonical name, alias, binding of the session, binding of the bus, default provider,
and then the policy guard.
"""

from __future__ import annotations

from gavel.v1 import error_pb2
from gavel.v1.tool_service_pb2 import (
    TOOL_NAME_STEP_ALIAS,
    TOOL_NAME_STEP_CANONICAL,
    TOOL_PROVIDER_STEP_BUS,
    TOOL_PROVIDER_STEP_DEFAULT,
    TOOL_PROVIDER_STEP_SESSION,
    ResolveToolResponse,
)

from gavel_rules.commands import Fault
from gavel_rules.state.state import State
from gavel_rules.text import clip, suggestion
from gavel_rules.tools.guard import guard


def resolve(state: State, tool_name: str, session_id: str, *, canonical_only: bool = False) -> ResolveToolResponse | Fault:
    """Return the contract and provider behind a name, the steps that led there, and what the guard says.

    Returns the fault TOOL_NOT_FOUND, with the nearest names, if no tool has the name, or its provider is not registered.
    """
    registry = state.tools
    name_step = TOOL_NAME_STEP_CANONICAL
    registered = registry.contracts.get(tool_name)
    if registered is None and not canonical_only and tool_name in registry.aliases:
        name_step = TOOL_NAME_STEP_ALIAS
        registered = registry.contracts[registry.aliases[tool_name]]
    if registered is None:
        known = sorted({*registry.contracts, *(() if canonical_only else registry.aliases)})
        return not_found(f"bus {state.bus} has no tool {clip(tool_name, 128)!r}", tool_name, known)
    contract = registered.contract
    bound = registry.bindings.get((session_id, contract.name)) if session_id else None
    if bound is not None:
        provider_step, provider_id = TOOL_PROVIDER_STEP_SESSION, bound.provider_id
    else:
        bound = registry.bindings.get(("", contract.name))
        provider_step = TOOL_PROVIDER_STEP_DEFAULT if bound is None else TOOL_PROVIDER_STEP_BUS
        provider_id = contract.default_provider if bound is None else bound.provider_id
    provider = registry.providers.get(provider_id)
    if provider is None:
        what = f"the provider {provider_id} of {contract.name} is not registered" if provider_id else f"{contract.name} has no provider"
        problem = f"{what}; register it, or bind the tool to another one"
        return not_found(problem, provider_id, sorted(registry.providers))
    return ResolveToolResponse(
        contract=contract,
        provider=provider.provider,
        resolved_by_alias=name_step == TOOL_NAME_STEP_ALIAS,
        name_step=name_step,
        provider_step=provider_step,
        guard=guard(contract),
    )


def not_found(problem: str, name: str, known: list[str]) -> Fault:
    """Return the fault for a name that is not registered, with the nearest ones."""
    nearest = suggestion(name, known)
    return Fault(error_pb2.ERROR_REASON_TOOL_NOT_FOUND, problem + (f"; {nearest}" if nearest else ""))
