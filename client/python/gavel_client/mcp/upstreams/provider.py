"""The provider of an upstream server's tools, for the runtime of tools."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from mcp_types import CallToolResult

from gavel_client.mcp.errors import UpstreamError
from gavel_client.mcp.upstreams.connection import Upstream
from gavel_client.mcp.upstreams.definitions import ToolDefinition, listing_name, provider_id
from gavel_client.tools.errors import CONFLICT, TOOL, ToolError
from gavel_client.tools.invocation import ToolData, ToolInvocation

# Details of a failure: whether the call may have taken effect, and the result with which a tool reported its own error.
MAY_HAVE_ACTED: Final = "may_have_acted"
REPORTED: Final = "reported"


class UpstreamProvider:
    """Calls the tools of one upstream server. A call goes out only if the server still lists the tool as the contract has it."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream: Final = upstream
        self.provider_id: Final = provider_id(upstream.name)

    @property
    def version(self) -> str:
        """The version that the server states."""
        return self._upstream.version

    @property
    def tools(self) -> Collection[str]:
        """Canonical names of the server's tools, and of the tool that lists them."""
        return [listing_name(self._upstream.name), *(definition.name for definition in self._upstream.definitions.values())]

    async def invoke(self, invocation: ToolInvocation) -> ToolData:
        """Carry out a call. Raises ToolError, with MAY_HAVE_ACTED in its details."""
        try:
            if invocation.canonical_tool == listing_name(self._upstream.name):
                return await self._list()
            return await self._call(invocation)
        except UpstreamError as error:
            raise ToolError(error.code, error.message, {MAY_HAVE_ACTED: error.may_have_acted}) from error

    async def close(self) -> None:
        """Do nothing: the proxy closes the connection."""

    async def _list(self) -> ToolData:
        definitions = await self._upstream.list_tools()
        return ToolData({"digests": {definition.name: definition.digest for definition in definitions.values()}})

    async def _call(self, invocation: ToolInvocation) -> ToolData:
        definition = self._find(invocation)
        result = await self._upstream.call(definition.tool.name, invocation.arguments)
        data = result_data(result)
        if result.is_error:
            # The server's text is not for the log; the evidence has it.
            raise ToolError(TOOL, "the tool reports an error", {MAY_HAVE_ACTED: True, REPORTED: data})
        return ToolData(data)

    def _find(self, invocation: ToolInvocation) -> ToolDefinition:
        """Return the definition behind a contract. Raises ToolError if the server lists it no more, or not as it was accepted."""
        for definition in self._upstream.definitions.values():
            if definition.name == invocation.canonical_tool:
                if definition.digest == invocation.contract.version:
                    return definition
                message = f"the definition of {definition.name} is not the one that was accepted"
                raise ToolError(CONFLICT, message, {MAY_HAVE_ACTED: False})
        problem = self._upstream.problem or f"the server {self._upstream.name} does not list {invocation.canonical_tool}"
        raise ToolError(TOOL, problem, {MAY_HAVE_ACTED: False})


def result_data(result: CallToolResult) -> dict[str, Any]:
    """Return the content of a result as JSON, without its `_meta`, which marks answers of the proxy."""
    content = result.model_dump(mode="json", by_alias=True, exclude_none=True, include={"content", "structured_content"})
    return {key: content[key] for key in ("content", "structuredContent") if key in content}


def result_of(data: Mapping[str, Any], *, is_error: bool = False) -> CallToolResult:
    """Return the result with a content; the opposite of `result_data`."""
    return CallToolResult.model_validate({**data, "isError": is_error}, by_name=False)
