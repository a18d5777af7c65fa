"""Definitions of tools: what an upstream server lists, as a contract of Gavel.

A digest pins a definition as a whole: name, title, description, both schemas and annotations. It is the version of the contract, so a
server that changes a tool in any way offers another version of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from gavel.v1.tool_pb2 import ToolContract
from mcp_types import Tool

from gavel_client.envelopes import content_hash
from gavel_client.mcp.errors import DefinitionError
from gavel_client.values import to_struct

CONTRACT_BYTES_MAX: Final = 48 * 1024
DEFINITION_BYTES_MAX: Final = 256 * 1024
TOOLS_PER_SERVER_MAX: Final = 500
NAME_LENGTH_MAX: Final = 120
# Effects of contracts: a read may be called directly, a write only through a proposal.
READ_EFFECT: Final = "external.read"
WRITE_EFFECT: Final = "external.write"
SEPARATOR: Final = "__"

_OTHERS: Final = re.compile(r"[^a-z0-9_-]")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_./-]*")


@dataclass(frozen=True)
class ToolDefinition:
    """One tool of one upstream server."""

    server: str
    tool: Tool
    name: str
    """Canonical name of the contract and action type of its proposals: "git.git_commit"."""
    digest: str
    """"sha256:" and 64 hex digits over the canonical JSON of the definition."""

    @property
    def exposed_name(self) -> str:
        """The name that clients see: "git__git_commit". Many models accept no dot in a tool's name."""
        return f"{self.server}{SEPARATOR}{self.name.partition('.')[2]}"

    @property
    def is_read_only(self) -> bool:
        """Whether the server says that the tool changes nothing. It is a hint: the configuration decides."""
        return bool(self.tool.annotations and self.tool.annotations.read_only_hint)

    @property
    def is_additive(self) -> bool:
        """Whether the server says that the tool destroys nothing and reaches nothing outside of it."""
        annotations = self.tool.annotations
        return annotations is not None and annotations.destructive_hint is False and annotations.open_world_hint is False

    def contract(self, *, effect: str) -> ToolContract:
        """Return the contract. Raises DefinitionError for schemas that no contract can hold."""
        result: dict[str, Any] = {"type": "object", "required": ["content"], "properties": {"content": {"type": "array"}}}
        if self.tool.output_schema is not None:
            result["required"].append("structuredContent")
            result["properties"]["structuredContent"] = _move_references(self.tool.output_schema, "#/properties/structuredContent")
        try:
            contract = ToolContract(
                name=self.name,
                version=self.digest,
                aliases=[self.exposed_name],
                argument_schema=to_struct(self.tool.input_schema, "inputSchema"),
                result_schema=to_struct(result, "outputSchema"),
                side_effects=[effect],
                default_provider=provider_id(self.server),
            )
        except (TypeError, ValueError) as error:
            raise DefinitionError(f"the schemas of {self.name} cannot be recorded: {error}") from error
        if contract.ByteSize() > CONTRACT_BYTES_MAX:
            raise DefinitionError(f"the schemas of {self.name} are larger than {CONTRACT_BYTES_MAX} bytes")
        return contract


def provider_id(server: str) -> str:
    """Return the name of the provider that calls the tools of a server."""
    return f"mcp-{server}"


def listing_name(server: str) -> str:
    """Return the canonical name of the tool that lists a server's tools. No tool of a server can have it."""
    return f"{server}.tools/list"


def digest_key(name: str) -> str:
    """Return the key of the observation that states the digest of a tool."""
    return f"{name}.digest"


def define(server: str, tools: Iterable[Tool]) -> tuple[dict[str, ToolDefinition], list[str]]:
    """Return the definitions of a server's tools by the server's own names, and why others are left out.

    A tool is left out if its name or definition is unusable; tools whose names differ only in case or punctuation are all left out.
    """
    definitions: dict[str, ToolDefinition] = {}
    problems: list[str] = []
    names: dict[str, list[str]] = {}
    for index, tool in enumerate(tools):
        if index == TOOLS_PER_SERVER_MAX:
            problems.append(f"{server} lists more than {TOOLS_PER_SERVER_MAX} tools; the others are left out")
            break
        try:
            definition = _define(server, tool)
        except DefinitionError as error:
            problems.append(str(error))
            continue
        names.setdefault(definition.name, []).append(tool.name)
        definitions[tool.name] = definition
    for name, own_names in names.items():
        if len(own_names) > 1:
            problems.append(f"{server} lists several tools that would be named {name}; they are left out")
            for own_name in own_names:
                definitions.pop(own_name, None)
    return definitions, problems


def _define(server: str, tool: Tool) -> ToolDefinition:
    if not _NAME.fullmatch(tool.name) or len(tool.name) > NAME_LENGTH_MAX - len(server):
        raise DefinitionError(f"{server} lists a tool whose name is unusable: {tool.name[:NAME_LENGTH_MAX]!r}")
    definition = tool.model_dump(mode="json", by_alias=True, exclude_none=True, exclude={"meta", "icons"})
    try:
        if len(repr(definition)) > DEFINITION_BYTES_MAX:
            raise DefinitionError(f"the definition of {server}.{tool.name} is larger than {DEFINITION_BYTES_MAX} characters")
        digest = content_hash(definition)
    except (TypeError, ValueError, RecursionError) as error:
        raise DefinitionError(f"the definition of {server}.{tool.name} is not plain JSON: {type(error).__name__}") from error
    return ToolDefinition(server, tool, f"{server}.{_OTHERS.sub('_', tool.name.lower())}", digest)


def _move_references(schema: Any, root: str) -> Any:
    """Return a schema that stands at `root` of another one: references to its own parts follow it."""
    if isinstance(schema, Mapping):
        return {
            key: root + value[1:] if key == "$ref" and isinstance(value, str) and value.startswith("#") else _move_references(value, root)
            for key, value in schema.items()
            if key not in ("$schema", "$id")
        }
    return [_move_references(item, root) for item in schema] if isinstance(schema, list) else schema
