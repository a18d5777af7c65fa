"""Settings of Python's garbage collector for a server."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from typing import Any, Final

_OLDEST_GENERATION: Final = 2


def collect_less() -> None:
    """Collect less often, and look at each object once. Call once, after start-up.

    Deciding creates many small objects next to a large state. An object that outlives its first collection is usually a part of the
    state, so later ones skip it, as they skip the objects of start-up. The collection of the oldest generation, which is rare, looks at all
    of them, so that no cycle stays forever (ADR 0010, docs/performance.md#garbage-collection).
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 10, 500)
    if _set_survivors_aside not in gc.callbacks:
        gc.callbacks.append(_set_survivors_aside)


def _set_survivors_aside(phase: str, info: Mapping[str, Any]) -> None:
    """Keep the survivors of a collection out of the next ones, until the oldest generation is collected."""
    if phase == "stop":
        gc.freeze()
    elif info["generation"] == _OLDEST_GENERATION:
        gc.unfreeze()
