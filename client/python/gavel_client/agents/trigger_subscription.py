"""A subscription to the log that wakes an agent by triggers, records every firing and resumes after a restart (constitution §9.1).

Before the agent is woken, the firing is recorded as an AGENT_DIAGNOSTIC `TriggerFired`, caused by its first event and in that
event's trace. It has no cause if that event is older than the bus's idempotency window. The agent handles one firing at a time, so that
priorities take effect. A firing is complete once `wake` has returned; then the position advances. After a crash, incomplete firings fire
again: delivery is at least once. The diagnostic's event_id is a hash of its content, so that a repeated firing adds nothing to the log. An
exception of `wake` ends `run`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, Protocol

from gavel.v1.common_pb2 import EVENT_CATEGORY_AGENT_DIAGNOSTIC_EVENT, Producer
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.event_service_pb2 import Checkpoint

from gavel_client.agents.triggers import FIRED, Firing, Trigger, TriggerWindows
from gavel_client.envelopes import content_hash, diagnostic_envelope
from gavel_client.rpc.backoff import BUS_POLL_MS, AcceptedStream, Backoff, is_unopened_bus, retry
from gavel_client.rpc.checkpoints import checkpoint_after
from gavel_client.rpc.client import GavelClient
from gavel_client.rpc.errors import GavelClientError, GavelError
from gavel_client.timeouts import timeout

# Events buffered for a busy agent; the log is not read beyond this number.
BUFFERED_EVENTS_MAX: Final = 10_000
# Events that the diagnostic of a firing lists.
LISTED_EVENTS_MAX: Final = 100
# Interval of saving the positions while nothing fires.
SAVE_INTERVAL_MS: Final = 1_000
# Reasons for which a bus refuses a firing whose first event is older than its idempotency window: the second one if an earlier run has
# recorded the firing without a cause.
CAUSE_UNKNOWN: Final = frozenset({"EVENT_NOT_FOUND", "EVENT_ID_REUSED"})
_NAMESPACE: Final = uuid.UUID("6ba7b812-9dad-11d1-80b4-00c04fd430c8")

_logger = logging.getLogger(__name__)

Wake = Callable[[Firing], Awaitable[None]]


@dataclass(frozen=True)
class TriggerPositions:
    """How far triggers have come.

    `first_unhandled` is the first sequence number that each trigger has not handled, by the trigger's name. `last_read` is the last event
    that was read, by its number and chain hash. If the log no longer has it, the numbers may be those of other events.
    """

    first_unhandled: Mapping[str, int] = field(default_factory=dict)
    last_read: Checkpoint | None = None


class Position(Protocol):
    """Storage of the triggers' positions across restarts."""

    def read(self) -> TriggerPositions:
        """Return the stored positions; empty at the first start."""

    def keep(self, positions: TriggerPositions) -> None:
        """Store the positions, replacing the former ones."""


class PositionFile:
    """Positions in a file, which is replaced atomically: a crash leaves the old or the new content."""

    def __init__(self, path: Path | str) -> None:
        self._path = Path(path)

    def read(self) -> TriggerPositions:
        """Return the stored positions. Raises GavelClientError if the file is invalid."""
        try:
            document = json.loads(self._path.read_text(encoding="utf-8"))
            last_read = document["last_read"]
            positions = TriggerPositions(
                {name: _number(number) for name, number in document["first_unhandled"].items()},
                last_read and Checkpoint(sequence_number=_number(last_read[0]), chain_hash=bytes.fromhex(last_read[1])),
            )
        except FileNotFoundError:
            return TriggerPositions()
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            message = f"{self._path} does not hold the positions of triggers; remove it to start from the beginning"
            raise GavelClientError(message) from error
        return positions

    def keep(self, positions: TriggerPositions) -> None:
        """Store the positions on disk before returning."""
        last_read = positions.last_read and (positions.last_read.sequence_number, positions.last_read.chain_hash.hex())
        temporary = self._path.with_name(self._path.name + ".new")
        with temporary.open("w", encoding="utf-8") as file:
            json.dump({"first_unhandled": dict(positions.first_unhandled), "last_read": last_read}, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self._path)


def _number(value: object) -> int:
    """Return a sequence number. Raises ValueError if it is not one."""
    if type(value) is not int or value < 1:
        raise ValueError(f"{value!r} is not a sequence number")
    return value


class TriggerSubscription:
    """Wakes an agent by triggers on `client.bus`. Call `run` once; call `stop` in the same event loop.

    `producer` is the agent, the producer of the diagnostics. `start` is the first sequence number for triggers without a stored
    position; 1 is the start of the log, None the present head. On a bus that does not exist yet, the subscription waits for the
    first write, which opens the bus. If the log has lost the last event that was read, `run` raises GavelError HISTORY_REPLACED: remove
    the stored position, and give as `start` the event from which the agent should go on.
    """

    def __init__(
        self,
        client: GavelClient,
        triggers: Sequence[Trigger],
        wake: Wake,
        *,
        producer: Producer,
        position: Position,
        start: int | None = 1,
        backoff: Backoff | None = None,
    ) -> None:
        self._client = client
        self._triggers = tuple(triggers)
        self._wake = wake
        self._producer = producer
        self._position = position
        self._start = start
        self._backoff = backoff or Backoff()
        self._windows = TriggerWindows(self._triggers, {}, 1)
        self._changed = asyncio.Event()
        self._room = asyncio.Event()
        self._stopping = asyncio.Event()
        self._saved = TriggerPositions()
        self._last_read: Checkpoint | None = None
        # The server filters by category only if every trigger does.
        every = all(trigger.categories for trigger in self._triggers)
        self._categories = sorted({one for trigger in self._triggers for one in trigger.categories}) if every else []

    async def run(self) -> None:
        """Wake the agent until `stop`, then wait for the firing in progress.

        Raises what `wake` raises, and GavelError for a refused call.
        """
        self._saved = self._position.read()
        self._last_read = self._saved.last_read
        start = self._start
        if start is None:
            start = await self._head() + 1
        self._windows = TriggerWindows(self._triggers, self._saved.first_unhandled, start)
        tasks = [
            asyncio.create_task(self._read()),
            asyncio.create_task(self._fire()),
            asyncio.create_task(self._save_periodically()),
        ]
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait([*tasks, stopping], return_when=asyncio.FIRST_COMPLETED)
            if self._stopping.is_set():
                tasks[0].cancel()
                self._changed.set()
                await asyncio.wait([tasks[1]])
        finally:
            for task in (*tasks, stopping):
                task.cancel()
            results = await asyncio.gather(*tasks, stopping, return_exceptions=True)
        for result in results:
            if isinstance(result, Exception):
                raise result
        self._save_positions()

    def stop(self) -> None:
        """Start no further firing; `run` returns when the one in progress is complete."""
        self._stopping.set()

    async def _head(self) -> int:
        """Return the sequence number of the newest event; 0 if the bus does not exist yet."""
        try:
            status = await retry(self._client.get_status, self._backoff)
        except GavelError as error:
            if not is_unopened_bus(error):
                raise
            return 0
        return status.head_sequence_number

    async def _read(self) -> None:
        """Offer the events of the log to the triggers, for ever."""
        failures = 0
        is_opened = True
        while True:
            accepted = AcceptedStream()
            try:
                stream = self._client.subscribe_events(
                    from_sequence_number=self._windows.next_sequence_number, categories=self._categories, last_read=self._last_read
                )
                async for response in stream:
                    failures = 0
                    accepted.note_response()
                    if response.HasField("envelope"):
                        await self._offer(response.envelope)
                    else:
                        self._windows.skip(response.checkpoint.sequence_number)
                    # A restart reads again what was not handled, and knows more than that.
                    if self._last_read is None or self._last_read.sequence_number < self._windows.next_sequence_number - 1:
                        self._last_read = checkpoint_after(response)
            except GavelError as error:
                if is_unopened_bus(error):
                    if is_opened:
                        is_opened = False
                        _logger.info("bus=%s does not exist yet; waiting for the first write to it", self._client.bus)
                    await asyncio.sleep(BUS_POLL_MS / 1000)
                    continue
                if not accepted.may_continue(error):
                    raise
                failures += 1
                await asyncio.sleep(self._backoff.pause_ms(failures, error.retry_after_ms) / 1000)

    async def _offer(self, event: Envelope) -> None:
        while self._windows.event_count >= BUFFERED_EVENTS_MAX:
            self._room.clear()
            await self._room.wait()
        if self._is_own(event):
            self._windows.skip(event.sequence_number)
            return
        self._windows.offer(event, _now_ms())
        self._changed.set()

    def _is_own(self, event: Envelope) -> bool:
        """Report whether an event is a firing of this agent, which must not wake the agent again."""
        return (
            event.event_category == EVENT_CATEGORY_AGENT_DIAGNOSTIC_EVENT
            and event.agent_diagnostic.kind == FIRED
            and event.producer.id == self._producer.id
        )

    async def _fire(self) -> None:
        """Handle due firings, the highest priority first, until the subscription stops."""
        while not self._stopping.is_set():
            self._changed.clear()
            firing = self._windows.due(_now_ms())
            if firing is None:
                next_due_ms = self._windows.next_due_ms()
                wait_seconds = None if next_due_ms is None else max(0.0, next_due_ms - _now_ms()) / 1000
                with suppress(asyncio.TimeoutError):
                    async with timeout(wait_seconds):
                        await self._changed.wait()
                continue
            try:
                await self._record(firing)
            except GavelError:
                if not self._stopping.is_set():
                    raise
            if self._stopping.is_set():
                return  # the firing comes again after a restart
            await self._wake(firing)
            self._windows.complete(firing)
            self._room.set()
            self._save_positions()

    async def _record(self, firing: Firing) -> None:
        """Record a firing, without its cause if the bus no longer knows that event_id.

        A firing that was recorded without its cause, and not completed, is repeated without it too.
        """
        diagnostic = self._diagnostic(firing)
        try:
            await retry(partial(self._client.publish_event, diagnostic), self._backoff, self._pause)
        except GavelError as error:
            if error.reason not in CAUSE_UNKNOWN:
                raise
            diagnostic.ClearField("causation_id")
            await retry(partial(self._client.publish_event, diagnostic), self._backoff, self._pause)

    async def _pause(self, error: GavelError, pause_ms: float) -> None:
        """Wait before another try to record a firing. Raises the error once the subscription stops."""
        with suppress(asyncio.TimeoutError):
            async with timeout(pause_ms / 1000):
                await self._stopping.wait()
        if self._stopping.is_set():
            raise error

    def _diagnostic(self, firing: Firing) -> Envelope:
        trigger, first = firing.trigger, firing.events[0]
        attributes: dict[str, object] = {
            "trigger": trigger.name,
            "priority": trigger.priority,
            "window_ms": trigger.window_ms,
            "first_sequence_number": first.sequence_number,
            "last_sequence_number": firing.events[-1].sequence_number,
            "event_count": len(firing.events),
            "event_ids": [event.event_id for event in firing.events[:LISTED_EVENTS_MAX]],
        }
        identity = {"agent": self._producer.id, "version": self._producer.version, "bus": self._client.bus, **attributes}
        return diagnostic_envelope(
            f"agent/{self._producer.id}",
            self._producer,
            kind=FIRED,
            attributes=attributes,
            event_id=str(uuid.uuid5(_NAMESPACE, content_hash(identity))),
            event_name=FIRED,
            causation_id=first.event_id,
            trace_id=first.trace_id,
        )

    async def _save_periodically(self) -> None:
        """Save the positions from time to time, so that a restart does not read unmatched events again."""
        while True:
            await asyncio.sleep(SAVE_INTERVAL_MS / 1000)
            self._save_positions()

    def _save_positions(self) -> None:
        positions = TriggerPositions(self._windows.positions(), self._last_read)
        if positions != self._saved:
            self._position.keep(positions)
            self._saved = positions


def _now_ms() -> float:
    return time.monotonic() * 1000
