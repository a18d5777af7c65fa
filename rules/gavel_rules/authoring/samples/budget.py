"""The work budget of a search: a bound on steps instead of time, so the same document always gives the same samples."""

from __future__ import annotations


class Budget:
    """Bounds the work of a search, in steps of about half a microsecond. Steps count against `parent` as well.

    An exhausted budget means that the search stopped early and has proved nothing.
    """

    def __init__(self, steps: int, parent: Budget | None = None) -> None:
        self.exhausted = False
        self.steps_used = 0
        self._steps = steps
        self._parent = parent

    def take(self, steps: int = 1) -> bool:
        """Take steps for the next piece of work; return False if none is left. The last piece may cost more than is left."""
        enough = self.steps_used < self._steps and (self._parent is None or self._parent.take(steps))
        self.steps_used += steps
        self.exhausted = self.exhausted or not enough
        return enough
