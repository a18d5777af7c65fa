"""Transitions of the registry of tools."""

from __future__ import annotations

from gavel.v1.envelope_pb2 import Envelope
from google.protobuf.struct_pb2 import Struct

from gavel_rules.language.document.canonical_form import compute_digest, to_canonical_json
from gavel_rules.state.store import Store
from gavel_rules.state.tools import BoundTool, RegisteredContract, RegisteredProvider
from gavel_rules.values import struct_to_dict


def register_contract(store: Store, envelope: Envelope) -> None:
    """Put a contract in the place of the one of the same name, with its aliases."""
    contract = envelope.fact.tool_contract_registered
    former = store.tools.contracts.get(contract.name)
    if former is not None:
        for alias in former.contract.aliases:
            store.drop(store.tools.aliases, alias)
    argument_hash, result_hash = _schema_hash(contract.argument_schema), _schema_hash(contract.result_schema)
    registered = RegisteredContract(contract, envelope.sequence_number, argument_hash, result_hash)
    store.put(store.tools.contracts, contract.name, registered)
    for alias in contract.aliases:
        store.put(store.tools.aliases, alias, contract.name)


def register_provider(store: Store, envelope: Envelope) -> None:
    """Put a provider in the place of the one of the same id."""
    provider = envelope.fact.tool_provider_registered
    store.put(store.tools.providers, provider.provider_id, RegisteredProvider(provider, envelope.sequence_number))


def bind_tool(store: Store, envelope: Envelope) -> None:
    """Bind a tool to a provider."""
    binding = envelope.fact.tool_bound
    store.put(store.tools.bindings, (binding.session_id, binding.tool_name), BoundTool(binding.provider_id, envelope.sequence_number))


def unbind_tool(store: Store, envelope: Envelope) -> None:
    """End a binding."""
    unbound = envelope.fact.tool_unbound
    store.drop(store.tools.bindings, (unbound.session_id, unbound.tool_name))


def _schema_hash(schema: Struct) -> str:
    """Return the hash of a schema as tool events name it."""
    return compute_digest(to_canonical_json(struct_to_dict(schema)))
