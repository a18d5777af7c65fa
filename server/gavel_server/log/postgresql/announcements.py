"""Which logs have grown, by LISTEN and NOTIFY.

A server notifies the others after its appends, not in them. A transaction that notifies holds a lock of the whole cluster until it is on
disk, and the appends of all buses would wait for each other. A notification may be lost with its connection. A query of all heads, every
second and whenever nothing listens, therefore has the last word.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from gavel_server.log.postgresql.connection import CONNECTION_ERRORS, Connections
from gavel_server.log.protocol import LogError

CHANNEL: Final = "gavel"
CHECK_SECONDS: Final = 1.0
# Between two notifications of one server, which together name all buses that have grown.
ANNOUNCEMENT_PAUSE_SECONDS: Final = 0.02
RECONNECT_SECONDS: Final = 0.5

_ANNOUNCE: Final = "SELECT pg_notify(%s, news) FROM unnest(%s::text[]) AS news"
_HEADS: Final = "SELECT bus, sequence_number FROM gavel.heads WHERE bus = ANY(%s::text[])"


class Announcements:
    """The notifications that the logs of one process send, and those that it receives once `grown` was called."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._news: dict[str, int] = {}
        self._sender: asyncio.Task[None] | None = None
        self._listener: asyncio.Task[None] | None = None
        self._is_listening = False
        self._checked_at = 0.0
        self._heads: dict[str, int] = {}
        # From notifications that came after the last query of heads began: that may not have seen their events.
        self._notified: dict[str, int] = {}
        self._closed = False

    def announce(self, bus: str, sequence_number: int) -> None:
        """Tell other servers soon that a log has grown."""
        self._news[bus] = sequence_number
        if self._sender is None and not self._closed:
            self._sender = asyncio.create_task(self._send())

    async def grown(self, known: Mapping[str, int]) -> set[str]:
        """Return the buses whose logs hold events beyond the given numbers. Raises LogUnavailableError."""
        if self._listener is None and not self._closed:
            self._listener = asyncio.create_task(self._listen_forever())
        now = asyncio.get_running_loop().time()
        if not self._is_listening or now - self._checked_at >= CHECK_SECONDS:
            # A promoted standby may have lost events: its numbers replace those of earlier notifications.
            self._notified.clear()
            self._heads.update(await self._connections.watch.read(_HEADS, (list(known),)))
            self._checked_at = now
        return {bus for bus, number in known.items() if max(self._heads.get(bus, 0), self._notified.get(bus, 0)) > number}

    async def close(self) -> None:
        """Stop sending and listening."""
        self._closed = True
        tasks = [task for task in (self._sender, self._listener) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _send(self) -> None:
        try:
            while self._news:
                news, self._news = self._news, {}
                with suppress(LogError):  # the checks of the other servers find the events
                    await self._connections.reads.read(
                        _ANNOUNCE,
                        (
                            CHANNEL,
                            [f"{bus} {number}" for bus, number in news.items()],
                        ),
                    )
                await asyncio.sleep(ANNOUNCEMENT_PAUSE_SECONDS)
        finally:
            self._sender = None

    async def _listen_forever(self) -> None:
        while True:
            with suppress(LogError, *CONNECTION_ERRORS):  # the checks report a PostgreSQL that does not answer
                opened_at = asyncio.get_running_loop().time()
                async with self._connections.reads.connection() as connection:
                    await connection.execute(f"LISTEN {CHANNEL}")
                    self._checked_at, self._is_listening = 0.0, True
                    # A connection that died without a sign, or leads to a former primary, brings no notification.
                    while opened_at >= self._connections.server.trusted_since:
                        async for notification in connection.notifies(timeout=CHECK_SECONDS):
                            self._note(notification.payload)
            self._is_listening = False
            await asyncio.sleep(RECONNECT_SECONDS)

    def _note(self, payload: str) -> None:
        bus, _, number = payload.partition(" ")
        if number.isdecimal():
            self._notified[bus] = max(self._notified.get(bus, 0), int(number))
