"""The gate without a framework, asynchronous and synchronous."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from gavel_client import HandlerError
from gavel_client.gate import Allowed, Call, Pending, SyncAllowed

from tests.e2e.adapters.agents.agent import TOOL, Agent, Arguments, SyncAgent, Turn


class GateAgent(Agent):
    """Calls a Gate."""

    async def start(self, calls: Sequence[Arguments], tool: str = TOOL) -> Turn:
        """Make the calls."""
        self._calls = [Call(tool, arguments, self.task, "1") for arguments in calls]
        return await self.resume()

    async def resume(self) -> Turn:
        """Make the calls again."""
        answers = await asyncio.gather(*map(self._run, self._calls))
        return Turn([text for text, _ in answers], any(paused for _, paused in answers))

    async def repeat(self) -> Turn:
        """Make the calls again."""
        return await self.resume()

    async def _run(self, call: Call) -> tuple[str, bool]:
        answer = await self.gate(call)
        if not isinstance(answer, Allowed):
            return answer.message(), isinstance(answer, Pending)
        try:
            return await answer.run(lambda: self.depot.act(str(call.arguments["parcel"]))), False
        except HandlerError as error:
            return str(error), False


class SyncGateAgent(SyncAgent, GateAgent):
    """Calls a SyncGate, in threads."""

    async def _run(self, call: Call) -> tuple[str, bool]:
        loop = asyncio.get_running_loop()

        def run() -> tuple[str, bool]:
            answer = self.gate(call)
            if not isinstance(answer, SyncAllowed):
                return answer.message(), isinstance(answer, Pending)

            def act() -> str:
                return asyncio.run_coroutine_threadsafe(self.depot.act(str(call.arguments["parcel"])), loop).result()

            try:
                return answer.run(act), False
            except HandlerError as error:
                return str(error), False

        return await asyncio.to_thread(run)
