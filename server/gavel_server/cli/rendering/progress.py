"""A progress bar per pass over a log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from gavel.v1.rule_set_service_pb2 import ReplayProgress
    from rich.progress import Progress, TaskID

# The passes over a log, in order.
REPLAY_PASSES: Final = ("replaying the log", "reading the log again")
SIMULATION_PASSES: Final = ("checking the log", "deciding again")


class Passes:
    """Shows progress; a lower sequence number than before starts the next pass. Use as `with Passes(names) as passes`."""

    def __init__(self, names: Sequence[str]) -> None:
        """`names` are those of the passes, in order."""
        from gavel_server.cli.rendering.output import progress_bar

        self._names: Final = names
        self._bar: Progress = progress_bar()
        self._tasks: list[TaskID] = []
        self._number = 0

    def __enter__(self) -> Passes:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def show(self, progress: ReplayProgress) -> None:
        """Show the progress of a pass."""
        if progress.sequence_number < self._number or not self._tasks:
            name = self._names[min(len(self._tasks), len(self._names) - 1)]
            self._tasks.append(self._bar.add_task(name, total=progress.to_sequence_number))
        self._number = progress.sequence_number
        self._bar.update(self._tasks[-1], completed=progress.sequence_number)
