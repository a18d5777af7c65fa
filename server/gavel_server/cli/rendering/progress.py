"""A progress bar per pass over a log."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from gavel.v1.rule_set_service_pb2 import ReplayProgress
    from rich.progress import Progress, TaskID

# The passes over a log, in order.
_PASSES: Final = ("checking the log", "recomputing decisions")


class Passes:
    """Shows progress; a lower sequence number than before starts the next pass. Use as `with Passes() as passes`."""

    def __init__(self) -> None:
        from gavel_server.cli.rendering.output import progress_bar

        self._bar: Progress = progress_bar()
        self._tasks: list[TaskID] = []
        self._number = 0
        self._began: list[float] = []

    def __enter__(self) -> Passes:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def seconds(self) -> list[float]:
        """Return how long each pass has taken. A pass begins with its first progress report."""
        ends = [*self._began[1:], time.monotonic()]
        return [end - began for began, end in zip(self._began, ends, strict=False)]

    def show(self, progress: ReplayProgress) -> None:
        """Show the progress of a pass."""
        if progress.sequence_number <= self._number or not self._tasks:
            self._began.append(time.monotonic())
            name = _PASSES[min(len(self._tasks), len(_PASSES) - 1)]
            self._tasks.append(self._bar.add_task(name, total=progress.to_sequence_number))
        self._number = progress.sequence_number
        self._bar.update(self._tasks[-1], completed=progress.sequence_number)
