"""The port of providers: how tools are carried out (constitution 004 §4)."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, Protocol

from gavel_client.tools.invocation import ToolData, ToolInvocation


class Provider(Protocol):
    """Carries out the calls of some tools. The runtime has resolved, checked and recorded a call before the provider gets it.

    `invoke` returns the result or raises ToolError. It is cancelled when the time of the call is over, and must then stop everything that
    it started. Other exceptions become E_TOOL, without their text.
    """

    @property
    def provider_id(self) -> str:
        """Name of the provider in the registry."""

    @property
    def version(self) -> str:
        """Version of the provider."""

    @property
    def tools(self) -> Collection[str]:
        """Canonical names of the tools that it serves."""

    async def invoke(self, invocation: ToolInvocation) -> ToolData:
        """Carry out a call."""

    async def close(self) -> None:
        """Release what the provider holds."""


Function = Callable[[ToolInvocation], Any]


class FunctionProvider:
    """A provider of functions by canonical name. Each takes the ToolInvocation and returns ToolData or its `data`.

    Plain functions run in a thread, which cannot be cancelled: they should be short.
    """

    def __init__(self, provider_id: str, functions: Mapping[str, Function], *, version: str = "1") -> None:
        self.provider_id: Final = provider_id
        self.version: Final = version
        self.tools: Final[Mapping[str, Function]] = dict(functions)

    async def invoke(self, invocation: ToolInvocation) -> ToolData:
        """Call the function of the tool."""
        function = self.tools[invocation.canonical_tool]
        if inspect.iscoroutinefunction(function):
            answer = await function(invocation)
        else:
            answer = await asyncio.to_thread(function, invocation)
        return answer if isinstance(answer, ToolData) else ToolData(answer)

    async def close(self) -> None:
        """Do nothing: functions hold no resources."""
