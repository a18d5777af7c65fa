"""Python's garbage collector, tuned to a process that serves: the server and its front."""

from __future__ import annotations

import gc


def collect_less() -> None:
    """Call once, when start-up is over.

    What start-up made lives as long as the process; the collector need not look at it again. Deciding makes many small
    objects beside a large state: fewer looks save about a quarter of a batched decision (docs/decisions/0010-hot-path.md).
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 50, 100)
