"""The port of providers: how tools are carried out (constitution 004 §4)."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Protocol

from gavel_client.threads import call_plain
from gavel_client.tools.errors import QUOTA, ToolError
from gavel_client.tools.invocation import ToolData, ToolInvocation

THREADS_MAX_DEFAULT: Final = 64


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

    Plain functions run in threads of the provider's own, which cannot be cancelled: they should be short. A function that runs beyond the
    time of its call keeps its thread. If `threads_max` threads are in use, further calls fail at once with E_QUOTA.
    """

    def __init__(
        self, provider_id: str, functions: Mapping[str, Function], *, version: str = "1", threads_max: int = THREADS_MAX_DEFAULT
    ) -> None:
        self.provider_id: Final = provider_id
        self.version: Final = version
        self.tools: Final[Mapping[str, Function]] = dict(functions)
        # Not asyncio's default pool, in which the runtime checks, hashes and stores.
        self._pool: Final = ThreadPoolExecutor(threads_max, thread_name_prefix=f"gavel-{provider_id}")
        self._free: Final = threading.BoundedSemaphore(threads_max)

    async def invoke(self, invocation: ToolInvocation) -> ToolData:
        """Call the function of the tool."""
        function = self.tools[invocation.canonical_tool]
        if inspect.iscoroutinefunction(function):
            answer = await function(invocation)
        else:
            answer = await self._in_thread(function, invocation)
        return answer if isinstance(answer, ToolData) else ToolData(answer)

    async def close(self) -> None:
        """Do nothing: idle threads end with the provider."""

    async def _in_thread(self, function: Function, invocation: ToolInvocation) -> Any:
        if not self._free.acquire(blocking=False):
            raise ToolError(QUOTA, f"too many functions of the provider {self.provider_id} run at the same time")
        try:
            running = self._pool.submit(contextvars.copy_context().run, call_plain, function, invocation)
        except RuntimeError:  # no further thread can be started
            self._free.release()
            raise
        running.add_done_callback(lambda _: self._free.release())
        return await asyncio.wrap_future(running)
