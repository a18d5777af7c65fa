"""One append under way, and what became of it. An outcome that is unknown is found out: the chain hash says exactly."""

from __future__ import annotations

import asyncio
from enum import Enum
from typing import Final, Protocol

from gavel_server.bus.planning import Pending, Plan
from gavel_server.log import (
    EventIdTakenError,
    EventLog,
    HeadMovedError,
    LogCorruptError,
    LogError,
    NotReplicatedError,
    OutcomeUnknownError,
)

# How long after it was sent an append may stay unknown before its callers hear so, and readers see the state without it.
UNKNOWN_ANSWER_SECONDS: Final = 5.0
PAUSE_SECONDS_MIN: Final = 0.05
PAUSE_SECONDS_MAX: Final = 1.0


class Landing(Enum):
    """What became of an append."""

    COMMITTED = 1  # it is in the log
    CORRECTED = 2  # it is not in, and can be decided again: another server was first, or an event_id was taken
    FAILED = 3  # it is not in, and the log cannot take it now; or nobody waits any more to learn whether it is


class SayUnknown(Protocol):
    """Told while an outcome is unknown; `for_long` once the callers have waited long enough."""

    def __call__(self, flight: Flight, error: LogError, *, for_long: bool) -> bool:
        """Take note. Returns whether to go on finding out."""


class Flight:
    """A plan on its way into the log. Made when it is sent; `land` once."""

    def __init__(self, log: EventLog, decided: Plan) -> None:
        self.decided = decided
        self.batch: list[Pending] = [pending for pending, _ in decided.answers]
        # Whether the state is without it although it may be in the log: it was unknown for too long.
        self.undone = False
        self._log = log
        self._sent_at = asyncio.get_running_loop().time()
        check_ids = [pending.check_id for pending in self.batch if pending.check_id]
        self._append = asyncio.ensure_future(
            log.append(decided.expected, decided.entries, decided.recorded_at_ms, check_ids) if decided.entries else self._confirm_head()
        )

    @property
    def arrived(self) -> bool:
        """Whether the log has answered: `land` will not wait for it."""
        return self._append.done()

    async def land(self, say_unknown: SayUnknown | None = None) -> tuple[Landing, LogError | None]:
        """Wait for the append. Returns what became of it, with the error where one says more.

        COMMITTED with an error: the events are in, but too few replicas confirmed them. CORRECTED with an
        EventIdTakenError: those commands have been answered before. Raises what the log must not raise: a bug.
        """
        try:
            await self._append
        except NotReplicatedError as error:
            return Landing.COMMITTED, error
        except (EventIdTakenError, HeadMovedError) as error:
            return Landing.CORRECTED, error
        except OutcomeUnknownError as error:
            return await self._find_out(error, say_unknown)
        except LogError as error:
            return Landing.FAILED, error
        return Landing.COMMITTED, None

    async def _confirm_head(self) -> None:
        """Answers that append nothing hold for the head they were made at: make sure that it still is the head."""
        actual = await self._log.head()
        if actual != self.decided.expected:
            raise HeadMovedError(self.decided.expected, actual)

    async def _find_out(self, first: LogError, say_unknown: SayUnknown | None) -> tuple[Landing, LogError | None]:
        loop = asyncio.get_running_loop()
        deadline = self._sent_at + UNKNOWN_ANSWER_SECONDS
        pause_seconds = PAUSE_SECONDS_MIN
        error = first
        while True:
            if say_unknown is not None and not say_unknown(self, error, for_long=loop.time() >= deadline):
                return Landing.FAILED, error
            try:
                return (Landing.COMMITTED if await self._is_in() else Landing.CORRECTED), None
            except NotReplicatedError as failure:
                return Landing.COMMITTED, failure
            except LogCorruptError as failure:
                return Landing.FAILED, failure
            except LogError as failure:
                error = failure
            await asyncio.sleep(pause_seconds)
            pause_seconds = min(PAUSE_SECONDS_MAX, pause_seconds * 2)

    async def _is_in(self) -> bool:
        """Return whether the append is in the log; after `head` has answered, one that is not in never will be."""
        last = self.decided.head
        head = await self._log.head()
        if head.sequence_number < last.sequence_number:
            return False
        record = (await self._log.read_many([last.sequence_number])).get(last.sequence_number)
        return record is not None and record.chain_hash == last.chain_hash
