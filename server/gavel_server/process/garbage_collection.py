"""Settings of Python's garbage collector for a server, and the collections that it would not make by itself.

Python collects when more objects were created than freed since the last collection. That does not bound what a collection looks at: in a
server whose tables are full, each new object replaces an old one, so that hundreds of thousands of young objects gather before the
difference reaches any threshold. Freezing the survivors (`collect_less`) also resets the counts by which Python decides to collect the
oldest generation, so that it never would. Two tasks therefore collect by time and by work.

A collection of the oldest generation looks at the whole state and holds the event loop meanwhile, so it waits until nobody has called for
a while.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

_YOUNGEST_GENERATION: Final = 0
_OLDEST_GENERATION: Final = 2

# How often young objects are collected. A busy server makes some thousands in this time, and looking at them takes a millisecond. Every
# MIDDLE_ROUNDS times, the survivors of these collections are collected too: what a call leaves is garbage by then. While a log is counted,
# half a second of survivors took 20 ms.
YOUNG_SECONDS = 0.1  # not Final: tests change it
MIDDLE_ROUNDS: Final = 2
# Young objects are also collected when so many more were created than freed, and every third time the survivors too. With a lower limit,
# most objects looked at belong to calls under way: docs/performance.md#garbage-collection.
YOUNG_OBJECTS: Final = 25_000
# How often the server looks whether the oldest generation is due. It has been idle between two looks if there was no call, and the process
# took less than this share of a processor.
OLDEST_SECONDS = 1.0  # not Final: tests change it
IDLE_SHARE_MAX: Final = 0.1
# A caller that comes back during a collection waits for it, so a server must have been idle for so many times the time of the last one.
IDLE_TIME_FACTOR: Final = 20
# The oldest generation is due once the process has taken so many times the processor time of its last collection. A collection holds the
# event loop for 0.1 to 0.3 s for each 200 MB of state. A server that is never idle spends 0.01 % of its time on them.
IDLE_WORK_FACTOR: Final = 100
BUSY_WORK_FACTOR: Final = 10_000
# Of the first collection, before one has been measured.
COLLECTION_SECONDS = 0.05  # not Final: tests change it


def collect_less() -> None:
    """Freeze what exists, collect less often, and skip survivors. Call it before a log is read.

    Deciding creates many small objects next to a large state. An object that survives a collection of the middle generation is usually a
    part of the state, so later ones skip it, as they skip the objects of start-up. The collection of the oldest generation, which is rare,
    looks at all of them, so that no cycle stays forever (ADR 0010, docs/performance.md#garbage-collection).
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, 1, 500)
    if _set_survivors_aside not in gc.callbacks:
        gc.callbacks.append(_set_survivors_aside)


async def collect_young_forever() -> None:
    """Collect young objects every YOUNG_SECONDS, and every MIDDLE_ROUNDS times the survivors too, until cancelled."""
    for number in itertools.count(1):
        await asyncio.sleep(YOUNG_SECONDS)
        gc.collect(0 if number % MIDDLE_ROUNDS else 1)


async def collect_oldest_forever(count_calls: Callable[[], int]) -> None:
    """Collect all objects whenever that is due, until cancelled. `count_calls` returns how many calls the server has had."""
    cost = COLLECTION_SECONDS
    calls = count_calls()
    collected_at = checked_at = time.process_time()
    idle_seconds = 0.0
    while True:
        await asyncio.sleep(OLDEST_SECONDS)
        now = time.process_time()
        is_idle = count_calls() == calls and now - checked_at < IDLE_SHARE_MAX * OLDEST_SECONDS
        idle_seconds = idle_seconds + OLDEST_SECONDS if is_idle else 0.0
        calls, checked_at = count_calls(), now
        if is_due(now - collected_at, cost, idle_seconds):
            cost = _collect_all()
            collected_at = checked_at = time.process_time()


def is_due(work_seconds: float, cost: float, idle_seconds: float) -> bool:
    """Return whether to collect the oldest generation.

    `work_seconds` is the processor time of the process since the last such collection, which took `cost`; `idle_seconds` is for how long
    the server has been idle.
    """
    is_idle = idle_seconds >= max(IDLE_TIME_FACTOR * cost, OLDEST_SECONDS)
    return work_seconds >= (IDLE_WORK_FACTOR if is_idle else BUSY_WORK_FACTOR) * cost


def _collect_all() -> float:
    """Collect all objects. Return the processor time that it took, in seconds."""
    began = time.thread_time()
    gc.collect()
    return time.thread_time() - began


def _set_survivors_aside(phase: str, info: Mapping[str, Any]) -> None:
    """Freeze the survivors of a collection of the middle or oldest generation, and unfreeze all before one of the oldest."""
    if phase == "stop":
        if info["generation"] > _YOUNGEST_GENERATION:
            gc.freeze()
    elif info["generation"] == _OLDEST_GENERATION:
        gc.unfreeze()
