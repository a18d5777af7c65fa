"""Settings of Python's garbage collector for a server, and the collections that it would not make by itself.

Python collects when more objects were created than freed since the last collection. That does not bound what a collection looks at: in a
server whose tables are full, each new object replaces an old one, so that hundreds of thousands of young objects gather before the
difference reaches any threshold. Freezing the survivors (`collect_less`) also resets the counts by which Python decides to collect the
oldest generation, so that it never would. Two tasks therefore collect by time and by work.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Mapping
from typing import Any, Final

_OLDEST_GENERATION: Final = 2

# How often young objects are collected. A busy server makes some thousands in this time, and looking at them takes a millisecond.
YOUNG_SECONDS = 0.1  # not Final: tests change it
# How often the server looks whether the oldest generation is due, and the share of a processor below which it counts as quiet.
OLDEST_SECONDS = 10.0  # not Final: tests change it
QUIET_SHARE: Final = 0.1
# The oldest generation is due once the process has taken so many times the processor time of its last collection. A collection holds the
# event loop for about a tenth of a second for each 200 MB of state. A quiet moment is preferred: 0.2 % of the time then, else 0.05 %.
QUIET_WORK: Final = 500
BUSY_WORK: Final = 2_000
# Of the first collection, before one has been measured.
COLLECTION_SECONDS = 0.05  # not Final: tests change it


def collect_less() -> None:
    """Collect less often, and look at each object once. Call it before a log is read.

    Deciding creates many small objects next to a large state. An object that outlives its first collection is usually a part of the
    state, so later ones skip it, as they skip the objects of start-up. The collection of the oldest generation, which is rare, looks at all
    of them, so that no cycle stays forever (ADR 0010, docs/performance.md#garbage-collection).
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 10, 500)
    if _set_survivors_aside not in gc.callbacks:
        gc.callbacks.append(_set_survivors_aside)


async def collect_young_forever() -> None:
    """Collect young objects every YOUNG_SECONDS, until cancelled."""
    while True:
        await asyncio.sleep(YOUNG_SECONDS)
        gc.collect(0)


async def collect_oldest_forever() -> None:
    """Collect all objects whenever that is due, until cancelled."""
    cost = COLLECTION_SECONDS
    collected_at = checked_at = time.process_time()
    while True:
        await asyncio.sleep(OLDEST_SECONDS)
        now = time.process_time()
        is_quiet = now - checked_at < QUIET_SHARE * OLDEST_SECONDS
        checked_at = now
        if is_due(now - collected_at, cost, is_quiet=is_quiet):
            cost = _collect_all()
            collected_at = checked_at = time.process_time()


def is_due(seconds: float, cost: float, *, is_quiet: bool) -> bool:
    """Return whether to collect the oldest generation.

    `seconds` is the processor time of the process since the last such collection, which took `cost`.
    """
    return seconds >= (QUIET_WORK if is_quiet else BUSY_WORK) * cost


def _collect_all() -> float:
    """Collect all objects. Return the processor time that it took, in seconds."""
    began = time.thread_time()
    gc.collect()
    return time.thread_time() - began


def _set_survivors_aside(phase: str, info: Mapping[str, Any]) -> None:
    """Keep the survivors of a collection out of the next ones, until the oldest generation is collected."""
    if phase == "stop":
        gc.freeze()
    elif info["generation"] == _OLDEST_GENERATION:
        gc.unfreeze()
