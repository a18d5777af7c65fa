"""Enumeration of combinations of options, the plainest first: each list of options begins with its plainest one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence


def indexes_by_sum(sizes: Sequence[int], total: int | None = None) -> Iterator[tuple[int, ...]]:
    """Yield the indexes of lists of these sizes, by rising sum; with `total`, those of this sum."""
    if total is None:
        for each in range(sum(sizes) - len(sizes) + 1) if all(sizes) else ():
            yield from indexes_by_sum(sizes, each)
    elif not sizes:
        if not total:
            yield ()
    else:
        for first in range(min(total, sizes[0] - 1) + 1):
            for rest in indexes_by_sum(sizes[1:], total - first):
                yield (first, *rest)
