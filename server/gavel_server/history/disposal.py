"""Frees states that do not serve a bus any more, in slices: of replays, of counters' past, and of buses that were closed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

from gavel_rules.state.state import State

from gavel_server.fairness.callers import INTERNAL
from gavel_server.fairness.turns import call_slice


@asynccontextmanager
async def temporary_states() -> AsyncIterator[list[State]]:
    """Give the caller a list for states. In the end, free those that are in it; other tasks run meanwhile."""
    states: list[State] = []
    try:
        yield states
    finally:
        for state in states:
            await free(state)


async def free(state: State, tables: Iterable[dict[Any, Any]] = ()) -> None:
    """Free a state and other tables, which nobody reads any more. Other tasks run meanwhile."""
    time_slice = call_slice(1, INTERNAL)
    disposal = state.store.dispose_all()
    for table in tables:
        disposal.add(table)
    while disposal.free(state.position):
        await time_slice.spend(1)
