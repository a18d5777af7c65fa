"""Frees states that do not serve a bus, in slices: those of replays, and those that count the past of counters."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

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
        time_slice = call_slice(1, INTERNAL)
        for state in states:
            disposal = state.store.dispose_all()
            while disposal.free(state.position):
                await time_slice.spend(1)
