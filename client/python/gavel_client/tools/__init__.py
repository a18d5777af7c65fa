"""Tools: the runtime that carries out and records their calls, and the providers that ship (constitution 004)."""

from gavel_client.tools.errors import ToolError
from gavel_client.tools.hooks import ToolHook
from gavel_client.tools.invocation import ToolContext, ToolData, ToolFailure, ToolInvocation, ToolOutcome
from gavel_client.tools.provider import FunctionProvider, Provider
from gavel_client.tools.runtime import ToolRuntime

__all__ = [
    "FunctionProvider",
    "Provider",
    "ToolContext",
    "ToolData",
    "ToolError",
    "ToolFailure",
    "ToolHook",
    "ToolInvocation",
    "ToolOutcome",
    "ToolRuntime",
]
