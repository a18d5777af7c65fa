"""Waking an agent by the log: a subscription that fires triggers, records each firing, and resumes where it was (seeds 002 §9.1).

Each firing becomes an AGENT_DIAGNOSTIC `TriggerFired`, caused by its first event and in that event's trace, before the agent is
woken: who was woken, when and for what is in the log. The agent is woken by one firing at a time, so that priority means
something. A firing counts as answered once `wake` has returned, and then the position moves on. After a crash what was
not answered fires again: at least once, never less. The diagnostic's event_id follows from what it says, so that the same
firing again adds nothing to the log. If `wake` raises, `run` does.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, Protocol, TypeVar

from gavel.v1.common_pb2 import EVENT_CATEGORY_AGENT_DIAGNOSTIC_EVENT, Producer
from gavel.v1.envelope_pb2 import Envelope

from gavel_client.backoff import Backoff, may_heal
from gavel_client.client import GavelClient
from gavel_client.envelopes import content_hash, diagnostic_envelope
from gavel_client.errors import GavelClientError, GavelError
from gavel_client.triggers import FIRED, Firing, Trigger, TriggerWindows

# What waits for a busy agent; beyond this the log is read no further.
WAITING_EVENTS_MAX: Final = 10_000
# A firing's diagnostic names at most so many of its events.
NAMED_EVENTS_MAX: Final = 100
# How often the position is kept while nothing fires.
KEEP_INTERVAL_MS: Final = 1_000
_NAMESPACE: Final = uuid.UUID("6ba7b812-9dad-11d1-80b4-00c04fd430c8")

Result = TypeVar("Result")

Wake = Callable[[Firing], Awaitable[None]]


class Position(Protocol):
    """Keeps how far each trigger has come, by name, across restarts."""

    def read(self) -> Mapping[str, int]:
        """Return what was kept last; nothing at the first start."""

    def keep(self, positions: Mapping[str, int]) -> None:
        """Keep this instead."""


class PositionFile:
    """A position in a file, replaced as a whole: a crash leaves the old one or the new one."""

    def __init__(self, path: Path | str) -> None:
        self._path = Path(path)

    def read(self) -> Mapping[str, int]:
        """Return what was kept last. Raises GavelClientError if the file holds something else."""
        try:
            kept = json.loads(self._path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except ValueError:
            kept = None
        if not isinstance(kept, dict) or not all(type(number) is int and number > 0 for number in kept.values()):
            raise GavelClientError(f"{self._path} holds no positions of triggers; remove it to begin anew")
        return kept

    def keep(self, positions: Mapping[str, int]) -> None:
        """Keep this instead, on disk when it returns."""
        beside = self._path.with_name(self._path.name + ".new")
        with beside.open("w", encoding="utf-8") as file:
            json.dump(dict(positions), file)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(self._path)


class TriggerSubscription:
    """Wakes an agent for what its triggers name on `client.bus`. `run` once; `stop` from anywhere in the same event loop.

    `producer` is the agent: it signs the diagnostics. `start` is where triggers without a kept position begin: 1 is the start of
    the log, None is now.
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
        self._kept: Mapping[str, int] = {}
        # A filter for the server where every trigger has one.
        every = all(trigger.categories for trigger in self._triggers)
        self._categories = sorted({one for trigger in self._triggers for one in trigger.categories}) if every else []

    async def run(self) -> None:
        """Wake the agent until `stop`; the firing under way is let end. Raises what `wake` raises, and GavelError if refused."""
        self._kept = self._position.read()
        start = self._start
        if start is None:
            status = await self._persist(self._client.get_status)
            start = status.head_sequence_number + 1
        self._windows = TriggerWindows(self._triggers, self._kept, start)
        tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._fire()), asyncio.create_task(self._keep_for_ever())]
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
        self._keep()

    def stop(self) -> None:
        """Fire nothing more; `run` returns when the firing under way has been answered."""
        self._stopping.set()

    async def _read(self) -> None:
        """Offer the log to the triggers, for ever."""
        failures = 0
        while True:
            try:
                stream = self._client.subscribe_events(from_sequence_number=self._windows.next_sequence_number, categories=self._categories)
                async for response in stream:
                    failures = 0
                    if response.HasField("envelope"):
                        await self._take_in(response.envelope)
                    else:
                        self._windows.skipped(response.checkpoint.sequence_number)
            except GavelError as error:
                if not may_heal(error):
                    raise
                failures += 1
                await asyncio.sleep(self._backoff.pause_ms(failures, error.retry_after_ms) / 1000)

    async def _take_in(self, event: Envelope) -> None:
        while self._windows.waiting >= WAITING_EVENTS_MAX:
            self._room.clear()
            await self._room.wait()
        if self._is_own(event):
            self._windows.skipped(event.sequence_number)
            return
        self._windows.offer(event, _now_ms())
        self._changed.set()

    def _is_own(self, event: Envelope) -> bool:
        """A firing must not wake its own agent, or it would for ever."""
        return (
            event.event_category == EVENT_CATEGORY_AGENT_DIAGNOSTIC_EVENT
            and event.agent_diagnostic.kind == FIRED
            and event.producer.id == self._producer.id
        )

    async def _fire(self) -> None:
        """Answer what is due, the highest priority first, until the subscription stops."""
        while not self._stopping.is_set():
            self._changed.clear()
            firing = self._windows.due(_now_ms())
            if firing is None:
                next_due_ms = self._windows.next_due_ms()
                wait_s = None if next_due_ms is None else max(0.0, next_due_ms - _now_ms()) / 1000
                with suppress(TimeoutError):
                    async with asyncio.timeout(wait_s):
                        await self._changed.wait()
                continue
            await self._persist(partial(self._client.publish_event, self._diagnostic(firing)))
            await self._wake(firing)
            self._windows.answered(firing)
            self._room.set()
            self._keep()

    def _diagnostic(self, firing: Firing) -> Envelope:
        trigger, first = firing.trigger, firing.events[0]
        attributes: dict[str, object] = {
            "trigger": trigger.name,
            "priority": trigger.priority,
            "window_ms": trigger.window_ms,
            "first_sequence_number": first.sequence_number,
            "last_sequence_number": firing.events[-1].sequence_number,
            "event_count": len(firing.events),
            "event_ids": [event.event_id for event in firing.events[:NAMED_EVENTS_MAX]],
        }
        says = {"agent": self._producer.id, "version": self._producer.version, "bus": self._client.bus, **attributes}
        return diagnostic_envelope(
            f"agent/{self._producer.id}",
            self._producer,
            kind=FIRED,
            attributes=attributes,
            event_id=str(uuid.uuid5(_NAMESPACE, content_hash(says))),
            event_name=FIRED,
            causation_id=first.event_id,
            trace_id=first.trace_id,
        )

    async def _persist(self, call: Callable[[], Awaitable[Result]]) -> Result:
        failures = 0
        while True:
            try:
                return await call()
            except GavelError as error:
                if not may_heal(error):
                    raise
                failures += 1
                await asyncio.sleep(self._backoff.pause_ms(failures, error.retry_after_ms) / 1000)

    async def _keep_for_ever(self) -> None:
        """Keep the position now and then, so that a restart need not read again what was for nobody."""
        while True:
            await asyncio.sleep(KEEP_INTERVAL_MS / 1000)
            self._keep()

    def _keep(self) -> None:
        positions = self._windows.positions()
        if positions != self._kept:
            self._position.keep(positions)
            self._kept = positions


def _now_ms() -> float:
    return time.monotonic() * 1000
