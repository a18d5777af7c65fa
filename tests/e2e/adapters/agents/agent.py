"""What the contract suite needs of a framework: an agent with one tool, whose model makes the calls that the test gives it."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, cast

from gavel_client.gate import Action, Gate, SyncGate, ToolActions

from tests.e2e.world import ACTION, DAY_MS

TOOL: Final = "send_parcel"
READ: Final = "find_parcel"
UNREGISTERED: Final = "burn_parcel"
Arguments = Mapping[str, Any]


def actions() -> ToolActions:
    """Return the table of the tools: `send_parcel` proposes, `find_parcel` reads, and nothing is known of `burn_parcel`."""
    table = ToolActions(reads=[READ])

    @table.tool(TOOL)
    def send(arguments: Arguments) -> Action:
        action = Action(ACTION, f"parcel/{arguments['parcel']}", {"weight": arguments["weight"]}, max_fact_age_ms=DAY_MS)
        # What a function does with its arguments does not change those of the tool.
        cast("dict[str, Any]", arguments).clear()
        return action

    return table


@dataclass
class Depot:
    """The world on which the tools act. `effects` has the parcels in the order in which they were sent.

    With `problem` the tool raises it after its effect; with `holds` the tool does not end until it is cancelled or `fail` is called.
    """

    effects: list[str] = field(default_factory=list)
    problem: BaseException | None = None
    holds: bool = False
    started: asyncio.Event = field(default_factory=asyncio.Event)
    _end: asyncio.Event = field(default_factory=asyncio.Event)

    async def act(self, parcel: str) -> str:
        """Carry out a tool."""
        self.effects.append(parcel)
        self.started.set()
        if self.holds:
            await self._end.wait()
        if self.problem is not None:
            raise self.problem
        return f"sent {parcel}"

    def fail(self, problem: BaseException) -> None:
        """Let a tool that holds raise `problem`."""
        self.problem = problem
        self._end.set()


@dataclass(frozen=True)
class Turn:
    """How far an agent came: what its model got for its calls, in their order, and whether the framework waits for an approval."""

    texts: Sequence[str]
    paused: bool = False

    @property
    def text(self) -> str:
        """All texts."""
        return "\n".join(self.texts)


class Agent(ABC):
    """An agent of a framework. Each agent does one piece of work, `task`, in which the model makes calls once."""

    # Whether a call is proposed anew once its approval has lapsed.
    asks_anew = False

    def __init__(self, gate: Gate | SyncGate, depot: Depot, task: str) -> None:
        self.gate: Any = gate
        self.depot = depot
        self.task = task

    @abstractmethod
    async def start(self, calls: Sequence[Arguments], tool: str = TOOL) -> Turn:
        """Start the work: the model makes these calls of `tool` in one answer, and ends with its next answer."""

    @abstractmethod
    async def resume(self) -> Turn:
        """Go on with work that is paused, with every approval that the framework knows."""

    @abstractmethod
    async def repeat(self) -> Turn:
        """Run the calls again, as the framework does after a crash."""

    async def suspend(self) -> None:  # noqa: B027  # most agents do nothing while they are paused
        """Do nothing until `resume`."""

    async def interrupt(self, work: asyncio.Task[Turn]) -> None:
        """Cancel work whose tool is running, as the framework does."""
        work.cancel()
        await asyncio.wait({work})
        self.depot.holds = False

    async def close(self) -> None:  # noqa: B027  # most agents hold nothing
        """Release what the agent holds."""


class SyncAgent(Agent):
    """An agent whose tools run in threads, which nothing can cancel: they raise instead."""

    async def interrupt(self, work: asyncio.Task[Turn]) -> None:
        """Let the running tool raise."""
        self.depot.fail(InterruptedError("the process is to end"))
        await asyncio.wait({work})
        self.depot.holds, self.depot.problem = False, None
