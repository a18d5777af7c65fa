"""A crew of CrewAI with a scripted model, in a process that has CrewAI."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.e2e.adapters.agents.agent import READ, TOOL, Arguments, Depot, SyncAgent, Turn
from tests.e2e.adapters.crewai.process import CrewProcess
from tests.e2e.world import ACTION


class CrewAgent(SyncAgent):
    """Crews that do the same task: a new one runs whenever the agent goes on. `gate` has what the other process needs to open it."""

    # Whether the model's interface has calls of tools; otherwise the model writes them as text.
    native = True
    # What its tool returns: a name of OUTPUTS.
    output = "text"
    # How the crew runs: "sync", "async", or "delegated" to the agent with the tool.
    way = "sync"
    asks_anew = True

    def __init__(self, gate: Any, depot: Depot, task: str, process: CrewProcess) -> None:
        super().__init__(gate, depot, task)
        self._request = {**gate, "task": task, "native": self.native, "action": ACTION, "read": READ, "write": TOOL}
        self._process = process

    async def start(self, calls: Sequence[Arguments], tool: str = TOOL) -> Turn:
        """Run a crew."""
        self._request |= {"tool": tool, "output": self.output, "way": self.way, "calls": [dict(arguments) for arguments in calls]}
        return await self.resume()

    async def resume(self) -> Turn:
        """Run a crew."""
        return Turn(**await self._process.run(self._request, self.depot))

    async def repeat(self) -> Turn:
        """Run a crew."""
        return await self.resume()


class WritingCrewAgent(CrewAgent):
    """Crews whose model writes its calls as text."""

    native = False
