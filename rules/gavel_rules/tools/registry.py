"""Changes of the registry of tools.

Each becomes one system fact. A change without effect is answered from the registry. A registered contract replaces the one of the same
name, and is compared with that one alone. Calls name the version of the contract that they followed, and the log keeps every version.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sized
from typing import Final

from gavel.v1 import error_pb2
from gavel.v1.envelope_pb2 import Envelope

from gavel_rules.commands import ChangeTools, EventAnswer, Fault, ToolsPosition
from gavel_rules.limits import TOOL_BINDINGS_MAX, TOOL_CONTRACTS_MAX, TOOL_PROVIDERS_MAX
from gavel_rules.recorder import Recorder
from gavel_rules.state.tools import ToolRegistry
from gavel_rules.tools.contracts import breaking_changes
from gavel_rules.tools.resolution import not_found

_WRONG_STATE: Final = error_pb2.ERROR_REASON_WRONG_STATE

# The result of checking a change: None if it is to be recorded.
_Outcome = ToolsPosition | Fault | None


def change(recorder: Recorder, command: ChangeTools) -> EventAnswer | ToolsPosition | Fault:
    """Record a change of the registry."""
    state = recorder.state
    if not state.semantics.has_tools:
        message = f"bus {state.bus} has arbiter version {state.arbiter_version}, which has no registry of tools; use a new bus"
        return Fault(_WRONG_STATE, message)
    envelope = command.envelope
    kind = str(envelope.fact.WhichOneof("system"))
    name, check, subject_of = _CHANGES[kind]
    outcome = check(state.tools, envelope)
    if outcome is not None:
        return outcome
    system = {kind: getattr(envelope.fact, kind)}
    return EventAnswer(recorder.record_system_fact(envelope.event_id, name, subject_of(envelope), **system))


def _check_contract(registry: ToolRegistry, envelope: Envelope) -> _Outcome:
    contract = envelope.fact.tool_contract_registered
    for alias in contract.aliases:
        owner = alias if alias in registry.contracts else registry.aliases.get(alias)
        if owner is not None and owner != contract.name:
            return Fault(_WRONG_STATE, f"alias {alias} of {contract.name} is a name of the tool {owner}; no two tools share a name")
    owner = registry.aliases.get(contract.name)
    if owner is not None and owner != contract.name:
        return Fault(_WRONG_STATE, f"{contract.name} is an alias of the tool {owner}; register {owner} without this alias first")
    registered = registry.contracts.get(contract.name)
    if registered is None:
        return _limit_fault(registry.contracts, TOOL_CONTRACTS_MAX, "contracts")
    if registered.contract == contract:
        return ToolsPosition(registered.sequence_number)
    if registered.contract.version == contract.version:
        breaking = breaking_changes(registered.contract, contract)
        if breaking:
            return Fault(
                error_pb2.ERROR_REASON_VERSION_REUSED,
                f"version {contract.version} of {contract.name} is registered with schemas that this contract breaks, at "
                f"{', '.join(breaking[:_PLACES_MAX])}: give it a new version",
            )
    return None


def _check_provider(registry: ToolRegistry, envelope: Envelope) -> _Outcome:
    provider = envelope.fact.tool_provider_registered
    registered = registry.providers.get(provider.provider_id)
    if registered is None:
        return _limit_fault(registry.providers, TOOL_PROVIDERS_MAX, "providers")
    return ToolsPosition(registered.sequence_number) if registered.provider == provider else None


def _check_binding(registry: ToolRegistry, envelope: Envelope) -> _Outcome:
    binding = envelope.fact.tool_bound
    if binding.tool_name not in registry.contracts:
        problem = "is an alias; bind the canonical name" if binding.tool_name in registry.aliases else "is not registered"
        return not_found(f"the tool {binding.tool_name} {problem}", binding.tool_name, sorted(registry.contracts))
    provider = registry.providers.get(binding.provider_id)
    if provider is None:
        return not_found(f"the provider {binding.provider_id} is not registered", binding.provider_id, sorted(registry.providers))
    if binding.tool_name not in provider.provider.tools:
        return Fault(_WRONG_STATE, f"the provider {binding.provider_id} does not serve {binding.tool_name}")
    bound = registry.bindings.get((binding.session_id, binding.tool_name))
    if bound is None:
        return _limit_fault(registry.bindings, TOOL_BINDINGS_MAX, "bindings")
    return ToolsPosition(bound.sequence_number) if bound.provider_id == binding.provider_id else None


def _check_unbinding(registry: ToolRegistry, envelope: Envelope) -> _Outcome:
    unbound = envelope.fact.tool_unbound
    if (unbound.session_id, unbound.tool_name) in registry.bindings:
        return None
    where = f"in session {unbound.session_id}" if unbound.session_id else "on the bus"
    bound = sorted(tool_name for session_id, tool_name in registry.bindings if session_id == unbound.session_id)
    return not_found(f"the tool {unbound.tool_name} is not bound {where}", unbound.tool_name, bound)


def _limit_fault(table: Sized, size_max: int, plural: str) -> Fault | None:
    if len(table) < size_max:
        return None
    return Fault(_WRONG_STATE, f"the bus has {size_max} {plural} of tools, which is the limit")


# Places of a schema that a message names.
_PLACES_MAX: Final = 5
# By the field of the fact: the event's name, the check, and the subject.
_CHANGES: Final[Mapping[str, tuple[str, Callable[[ToolRegistry, Envelope], _Outcome], Callable[[Envelope], str]]]] = {
    "tool_contract_registered": ("ToolContractRegistered", _check_contract, lambda one: f"tool/{one.fact.tool_contract_registered.name}"),
    "tool_provider_registered": (
        "ToolProviderRegistered",
        _check_provider,
        lambda one: f"tool-provider/{one.fact.tool_provider_registered.provider_id}",
    ),
    "tool_bound": ("ToolBound", _check_binding, lambda one: f"tool/{one.fact.tool_bound.tool_name}"),
    "tool_unbound": ("ToolUnbound", _check_unbinding, lambda one: f"tool/{one.fact.tool_unbound.tool_name}"),
}
