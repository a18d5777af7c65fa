"""The tables of the registry of tools. The store changes them (`transitions.tools`)."""

from __future__ import annotations

from typing import Final, NamedTuple

from gavel.v1.tool_pb2 import ToolContract, ToolProvider


class RegisteredContract(NamedTuple):
    """A contract, the event that registered it, and the hashes of its schemas."""

    contract: ToolContract
    sequence_number: int
    argument_schema_hash: str
    result_schema_hash: str


class RegisteredProvider(NamedTuple):
    """A provider, and the event that registered it."""

    provider: ToolProvider
    sequence_number: int


class BoundTool(NamedTuple):
    """The provider of a binding, and the event that bound it."""

    provider_id: str
    sequence_number: int


class ToolRegistry:
    """Contracts by canonical name, canonical names by alias, providers by provider_id, and bindings by (session_id, tool_name)."""

    def __init__(self) -> None:
        self.contracts: Final[dict[str, RegisteredContract]] = {}
        self.aliases: Final[dict[str, str]] = {}
        self.providers: Final[dict[str, RegisteredProvider]] = {}
        self.bindings: Final[dict[tuple[str, str], BoundTool]] = {}
