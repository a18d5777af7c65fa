"""The commands of one bus that wait to be decided, in their order. Compiled, since each passes through here."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from gavel.v1 import error_pb2
from gavel_rules.limits import BATCH_BYTES_MAX

from gavel_server.bus.planning import Pending
from gavel_server.errors import ServiceError


class CommandQueue:
    """What waits on `bus`: at most `commands_max` commands, and no more of them once they hold more than `bytes_max` bytes."""

    def __init__(self, bus: str, commands_max: int, bytes_max: int) -> None:
        self._bus = bus
        self.commands_max = commands_max
        self._bytes_max = bytes_max
        self._commands: deque[Pending] = deque()
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._commands)

    def add(self, pending: Pending) -> None:
        """Put a command at the end. Raises ServiceError QUEUE_FULL."""
        if len(self._commands) >= self.commands_max:
            raise ServiceError(error_pb2.ERROR_REASON_QUEUE_FULL, f"{self.commands_max} commands wait on bus {self._bus}; try again")
        if self.size_bytes > self._bytes_max:
            raise ServiceError(error_pb2.ERROR_REASON_QUEUE_FULL, f"{self._bytes_max} bytes wait on bus {self._bus}; try again")
        self._commands.append(pending)
        self.size_bytes += pending.size_bytes

    def add_all(self, batch: list[Pending]) -> None:
        """Put commands at the end; those for which there is no room hear so."""
        for pending in batch:
            try:
                self.add(pending)
            except ServiceError as error:
                pending.answer(error)

    def take(self, commands_max: int) -> list[Pending]:
        """Take the next batch from the front: so many commands at most, and no more of them once they hold BATCH_BYTES_MAX bytes."""
        commands = self._commands
        batch: list[Pending] = []
        size_bytes = 0
        while commands and len(batch) < commands_max and size_bytes <= BATCH_BYTES_MAX:
            pending = commands.popleft()
            size_bytes += pending.size_bytes
            batch.append(pending)
        self.size_bytes -= size_bytes
        return batch

    def put_back(self, batch: Sequence[Pending]) -> None:
        """Put commands back to the front, in their order; those whose callers have been answered are dropped."""
        for pending in reversed(batch):
            if not pending.answered:
                self._commands.appendleft(pending)
                self.size_bytes += pending.size_bytes

    def refuse(self, error: ServiceError) -> None:
        """Answer everything that waits with an error."""
        self.size_bytes = 0
        while self._commands:
            self._commands.popleft().answer(error)
