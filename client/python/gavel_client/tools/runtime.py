"""The runtime of tools: it resolves, checks, records and carries out the calls of agents and of executors' handlers (constitution 004).

    runtime = ToolRuntime(client, "tools-1", providers=[Workspace("/srv/work")], evidence=EvidenceStore("/srv/evidence"))
    async with runtime:
        outcome = await runtime.invoke("fs.read_text", {"path": "/workspace/a.txt"}, ToolContext("file/a.txt", trace_id=trace_id))

A call goes through fixed steps. Before the call, the server resolves the name, the runtime checks the arguments and asks the guard, and
hooks patch the arguments. The runtime records the TOOL_CALL, and the provider acts. After the call, the runtime checks the result, hooks
patch it, and the runtime keeps the evidence and records the TOOL_RESULT. A call that fails leaves both events too. Nothing is carried out
before its TOOL_CALL is in the log, and no result is given out before its TOOL_RESULT is. If the server is away, calls raise GavelError; if
it goes while a tool acts, the outcome is E_LOST.

A process that dies leaves its calls open. Every runtime of the same producer closes such calls as E_LOST when their lease has lapsed.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import wait
from typing import TYPE_CHECKING, Any, Final

from gavel.v1.common_pb2 import PRODUCER_TYPE_TOOL_RUNTIME, Producer

from gavel_client.evidence.store import EvidenceStore
from gavel_client.handlers import ExecutionContext
from gavel_client.rpc.client import GavelClient
from gavel_client.rpc.sync import SyncGavelClient
from gavel_client.tools.call import CANCEL_GRACE_MS, Call, CallParts
from gavel_client.tools.hooks import ToolHook
from gavel_client.tools.invocation import TIMEOUT_MS_DEFAULT, ToolContext, ToolOutcome
from gavel_client.tools.lost_calls import LostCalls
from gavel_client.tools.provider import Provider
from gavel_client.tools.records import LEASE_MARGIN_MS_DEFAULT, ToolRecorder
from gavel_client.tools.schemas import Schemas

if TYPE_CHECKING:
    from typing_extensions import Self

ALIASES_VARIABLE: Final = "GAVEL_TOOL_ALIASES"
# Time to record the result of a cancelled call.
LAST_RECORD_MS: Final = 5_000
CANCEL_SECONDS_MAX: Final = (CANCEL_GRACE_MS + LAST_RECORD_MS) / 1000
# How soon a call that blocks a thread sees that its attempt must stop.
_STOP_POLL_SECONDS: Final = 0.1


class ToolRuntime:
    """Carries out calls with `providers`, and records them as the tool runtime `producer_id`.

    With authentication the runtime needs a principal of its own: an agent's word for what it read is no evidence
    (docs/arbitration.md#trust-tiers). Without `evidence` the log has only the hashes of results. `aliases` False: only canonical names are
    known; None: aliases are known unless the environment has GAVEL_TOOL_ALIASES=false. A call without a result `lease_margin_ms` after its
    time is lost, and any runtime of the same `producer_id` closes it. `client` stays open.
    """

    def __init__(
        self,
        client: GavelClient,
        producer_id: str,
        *,
        providers: Sequence[Provider],
        evidence: EvidenceStore | None = None,
        hooks: Sequence[ToolHook] = (),
        aliases: bool | None = None,
        producer_version: str = "",
        lease_margin_ms: int = LEASE_MARGIN_MS_DEFAULT,
    ) -> None:
        if isinstance(client, SyncGavelClient):
            raise TypeError("a SyncGavelClient would block the event loop; use a GavelClient")
        by_id = {provider.provider_id: provider for provider in providers}
        if len(by_id) < len(providers):
            raise ValueError("two providers have the same provider_id; a runtime needs one of each")
        producer = Producer(type=PRODUCER_TYPE_TOOL_RUNTIME, id=producer_id, version=producer_version)
        recorder = ToolRecorder(client, producer, evidence, lease_margin_ms)
        self._client: Final = client
        self._aliases: Final = aliases_are_on() if aliases is None else aliases
        self._parts: Final = CallParts(recorder, by_id, tuple(hooks), Schemas())
        self._lost_calls: Final = LostCalls(client, recorder)
        self._running: Final[dict[asyncio.Task[ToolOutcome], Call]] = {}
        self._closing: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def providers(self) -> Collection[str]:
        """The provider_ids of the runtime's providers."""
        return self._parts.providers.keys()

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._closing = asyncio.create_task(self._lost_calls.run())
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Cancel the calls under way and record that, stop closing lost calls, and release the providers."""
        for call in self._running.values():
            call.cancel()
        if self._running:
            await asyncio.wait(self._running, timeout=CANCEL_SECONDS_MAX)
        if self._closing is not None:
            self._closing.cancel()
            await asyncio.wait({self._closing})
        for provider in self._parts.providers.values():
            await provider.close()

    async def close_lost_calls(self) -> int:
        """Close the open calls of this producer whose lease has lapsed; return how many. A background task of `async with` does this."""
        return await self._lost_calls.close()

    async def invoke(self, name: str, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutcome:
        """Call a tool by its canonical name or an alias, and return the outcome.

        A failure of the tool, invalid arguments and a refusal by the guard are outcomes. Raises GavelError, before anything is carried out,
        if no tool has the name (TOOL_NOT_FOUND, with the nearest names), or the server cannot be reached. If the server does not take the
        result, the outcome is E_LOST. A cancelled call is recorded as E_TIMEOUT.
        """
        resolution = await self._client.resolve_tool(name, session_id=context.session_id, canonical_only=not self._aliases)
        call = Call(self._parts, name, arguments, context, resolution)
        running = asyncio.create_task(call.run())
        self._running[running] = call
        running.add_done_callback(self._running.pop)
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            call.cancel()
            await asyncio.wait({running}, timeout=CANCEL_SECONDS_MAX)
            raise

    async def execute(self, name: str, execution: ExecutionContext, *, timeout_ms: int = TIMEOUT_MS_DEFAULT) -> ToolOutcome:
        """Call a tool with the params of the decision that an attempt carries out, in the decision's trace. Like `invoke`."""
        decision = execution.decision
        context = ToolContext(
            decision.subject, trace_id=decision.trace_id, causation_id=decision.event_id, timeout_ms=timeout_ms, execution=execution
        )
        return await self.invoke(name, execution.params, context)

    def execute_blocking(self, name: str, execution: ExecutionContext, *, timeout_ms: int = TIMEOUT_MS_DEFAULT) -> ToolOutcome:
        """Call a tool like `execute`, from another thread than that of the runtime's event loop, which `async with` sets.

        Once the attempt must stop, the call is cancelled; then raises CancelledError of concurrent.futures.
        """
        if self._loop is None:
            raise RuntimeError("the runtime has no event loop yet; use it with `async with`")
        running = asyncio.run_coroutine_threadsafe(self.execute(name, execution, timeout_ms=timeout_ms), self._loop)
        while True:
            done, _ = wait([running], timeout=_STOP_POLL_SECONDS)
            if done:
                return running.result()
            if execution.cancelled:
                running.cancel()


def aliases_are_on() -> bool:
    """Return whether the environment lets runtimes know aliases. Raises ValueError for a value that is neither true nor false."""
    value = os.environ.get(ALIASES_VARIABLE, "true").lower()
    if value not in ("true", "false"):
        raise ValueError(f"{ALIASES_VARIABLE} is {value!r}; set it to true or false")
    return value == "true"
