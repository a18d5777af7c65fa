"""Pins: the definition of a tool that people have accepted is the contract in Gavel's registry.

The version of a contract is the digest of the definition. The proxy registers the first definition that it sees, or the one that the
configuration names. A tool whose definition has another digest has drifted: the drift is recorded as the diagnostic `ToolDrift`, and the
tool is closed until somebody accepts the definition (`gavel mcp accept`), and changes the digest that the configuration names, if it names
one. Nothing of a drifted definition reaches a model.
"""

from __future__ import annotations

import difflib
import json
import logging
import uuid
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from typing import Final

import grpc
from gavel.v1.common_pb2 import PRODUCER_TYPE_AGENT, Producer
from gavel.v1.tool_pb2 import ToolContract, ToolProvider

from gavel_client.envelopes import diagnostic_envelope
from gavel_client.mcp.configuration import Configuration
from gavel_client.mcp.errors import DefinitionError
from gavel_client.mcp.upstreams.definitions import READ_EFFECT, WRITE_EFFECT, ToolDefinition, listing_name, provider_id
from gavel_client.rpc.backoff import is_unopened_bus
from gavel_client.rpc.client import GavelClient
from gavel_client.rpc.errors import GavelError
from gavel_client.values import from_struct, to_struct

DRIFT: Final = "ToolDrift"
# The result of the tool that lists tools has one version for all servers.
LISTING_VERSION: Final = "1"

# Codes of an answer to a registration that concerns this one contract.
_REFUSALS: Final = (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.ALREADY_EXISTS)
_logger = logging.getLogger(__name__)
_DRIFTS: Final = uuid.UUID("3b7d0b61-54fb-4a6c-8f5e-7a4f6d2c9e10")
_LISTING_SCHEMA: Final = {
    "type": "object",
    "required": ["digests"],
    "properties": {"digests": {"type": "object", "additionalProperties": {"type": "string"}}},
}


@dataclass(frozen=True)
class Closed:
    """Why a tool cannot be called."""

    reason: str
    drifted: bool = False


class Pins:
    """Compares definitions with the registry, and registers those that are new."""

    def __init__(self, client: GavelClient, configuration: Configuration, producer_id: str) -> None:
        """`client` registers contracts and records drifts as the producer `producer_id`."""
        self._client: Final = client
        self._configuration: Final = configuration
        self._producer: Final = Producer(type=PRODUCER_TYPE_AGENT, id=producer_id)
        self._pinned: Final[dict[str, ToolContract]] = {}
        self._noted: Final[set[tuple[str, str]]] = set()  # (name, digest) of definitions whose drift or refusal is in a log

    async def register_server(self, server: str, version: str, definitions: Iterable[ToolDefinition]) -> None:
        """Register the provider of a server's tools, and the tool that lists them. Raises GavelError."""
        names = [listing_name(server), *(definition.name for definition in definitions)]
        await self._client.register_contract(
            ToolContract(
                name=listing_name(server),
                version=LISTING_VERSION,
                argument_schema=to_struct({"type": "object", "additionalProperties": False}),
                result_schema=to_struct(_LISTING_SCHEMA),
                side_effects=[READ_EFFECT],
                default_provider=provider_id(server),
            )
        )
        await self._client.register_provider(ToolProvider(provider_id=provider_id(server), version=version, tools=sorted(names)))

    async def check(self, definitions: Iterable[ToolDefinition]) -> dict[str, Closed]:
        """Return why tools are closed, by canonical name; open ones are absent. Registers new ones. Raises GavelError."""
        registered = {contract.name: contract async for contract in self._contracts()}
        closed: dict[str, Closed] = {}
        for definition in definitions:
            closure = await self._check(definition, registered.get(definition.name))
            if closure is not None:
                closed[definition.name] = closure
        return closed

    async def check_one(self, definition: ToolDefinition) -> Closed | None:
        """Return why one tool is closed now; None if it is open. Raises GavelError."""
        try:
            contract: ToolContract | None = (await self._client.resolve_tool(definition.name, canonical_only=True)).contract
        except GavelError as error:
            if error.reason != "TOOL_NOT_FOUND" and not is_unopened_bus(error):
                raise
            contract = None
        return await self._check(definition, contract)

    async def accept(self, definition: ToolDefinition) -> None:
        """Pin a definition. Raises GavelError, DefinitionError."""
        await self._client.register_contract(self._contract(definition))

    def changes(self, definition: ToolDefinition) -> list[str]:
        """Return how the schemas of a drifted definition differ from the pinned ones, as lines of a unified diff.

        The pin has no description and no annotations.
        """
        pinned = self._pinned.get(definition.name)
        if pinned is None:
            return []
        contract = self._contract(definition)
        lines: list[str] = []
        for name in ("argument_schema", "result_schema"):
            before, after = (_lines(from_struct(getattr(one, name))) for one in (pinned, contract))
            lines += difflib.unified_diff(before, after, f"pinned {name}", f"listed {name}", lineterm="")
        return lines

    def _contract(self, definition: ToolDefinition) -> ToolContract:
        mode = self._configuration.settings(definition.server, definition.tool.name).mode
        return definition.contract(effect=READ_EFFECT if mode == "read" else WRITE_EFFECT)

    async def _check(self, definition: ToolDefinition, registered: ToolContract | None) -> Closed | None:
        configured = self._configuration.settings(definition.server, definition.tool.name).digest
        try:
            contract = self._contract(definition)
        except DefinitionError as error:
            return Closed(str(error))
        if registered is not None and registered.version != definition.digest:
            same = registered.argument_schema == contract.argument_schema and registered.result_schema == contract.result_schema
            what = "its description or annotations have changed" if same else "its schemas have changed"
            self._pinned[definition.name] = registered
            return await self._drift(definition, registered.version, what)
        if configured not in ("", definition.digest):
            return await self._drift(definition, configured, "the definition is not the one that the configuration names")
        # A change of the configured mode changes the effects of the contract, and of nothing else.
        if registered is None or list(registered.side_effects) != list(contract.side_effects):
            try:
                await self._client.register_contract(contract)
            except GavelError as error:
                if error.code not in _REFUSALS:
                    raise
                return self._unregistrable(definition, error)
        return None

    def _unregistrable(self, definition: ToolDefinition, error: GavelError) -> Closed:
        """Return that the registry refuses a definition, e.g. because its schema is invalid. Other tools stay open.

        The server's message quotes the definition, so only the log of the proxy has it.
        """
        if (definition.name, definition.digest) not in self._noted:
            _logger.warning("tool=%s is closed: Gavel refuses its definition: %r", definition.name, str(error))
            self._noted.add((definition.name, definition.digest))
        fields = ", ".join(dict.fromkeys(violation.field for violation in error.violations))
        return Closed(f"{definition.name} is closed: Gavel refuses its definition ({fields or error.reason})")

    async def _drift(self, definition: ToolDefinition, pin: str, change: str) -> Closed:
        """Record a drift, once for each definition, and return it."""
        if (definition.name, definition.digest) not in self._noted:
            envelope = diagnostic_envelope(
                f"tool/{definition.name}",
                self._producer,
                kind=DRIFT,
                attributes={"tool": definition.name, "pinned": pin, "listed": definition.digest, "change": change},
                event_name=DRIFT,
                event_id=str(uuid.uuid5(_DRIFTS, f"{self._client.bus}/{definition.name}/{pin}/{definition.digest}")),
            )
            try:
                await self._client.publish_event(envelope)
            except GavelError as error:
                if error.reason != "EVENT_ID_REUSED":  # another proxy has recorded it
                    raise
            self._noted.add((definition.name, definition.digest))
        reason = f"{definition.name} is closed: {change}. A person has to accept it: gavel mcp accept --config FILE {definition.name}"
        return Closed(reason, drifted=True)

    async def _contracts(self) -> AsyncIterator[ToolContract]:
        token = ""
        while True:
            try:
                page = await self._client.list_contracts(page_size=1000, page_token=token)
            except GavelError as error:
                if is_unopened_bus(error):
                    return
                raise
            for contract in page.contracts:
                yield contract
            token = page.next_page_token
            if not token:
                return


def _lines(schema: object) -> list[str]:
    """Return a schema as lines of JSON; characters that a terminal would obey are escaped."""
    return json.dumps(schema, indent=2, sort_keys=True).splitlines()
