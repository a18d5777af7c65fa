"""All logs in one PostgreSQL, over shared connections: which of them have grown, whether a bus has one, and the log of each bus."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final

from gavel_rules.limits import IDEMPOTENCY_WINDOW_MS_DEFAULT

from gavel_server.log.acknowledgement import Acknowledgement
from gavel_server.log.postgresql.announcements import Announcements
from gavel_server.log.postgresql.connection import TIMEOUT_MS_DEFAULT, Connections
from gavel_server.log.postgresql.durability import volatility_reasons
from gavel_server.log.postgresql.log import PostgresqlLog
from gavel_server.log.protocol import Growth, LogError

_EXISTS: Final = "SELECT 1 FROM gavel.heads WHERE bus = %s AND sequence_number > 0"
_HEAD: Final = "SELECT sequence_number FROM gavel.heads WHERE bus = %s AND sequence_number > 0"
_GRANTS: Final = "SELECT grants FROM gavel.heads WHERE bus = %s AND sequence_number > 0"
_ENVELOPE: Final = "SELECT envelope FROM gavel.events WHERE bus = %s AND sequence_number = %s"
_NAMES: Final = "SELECT bus FROM gavel.heads WHERE sequence_number > 0 ORDER BY bus"


class PostgresqlLogs:
    """See LogStore. The watch over the logs has a connection of its own, so that it never waits for other reads. Standbys are not used.

    Unless `accept_volatile`, nothing is appended to a PostgreSQL that may lose acknowledged events. Raises ValueError for an invalid URL.
    """

    def __init__(self, url: str, timeout_ms: int = TIMEOUT_MS_DEFAULT, *, accept_volatile: bool = True) -> None:
        self._connections = Connections(url, timeout_ms, accept_volatile=accept_volatile, needs_primary=True)
        self._announcements = Announcements(self._connections)

    async def grown(self, known: Mapping[str, int]) -> Growth:
        """See LogStore."""
        try:
            return Growth(await self._announcements.grown(known))
        except LogError as error:
            return Growth((), dict.fromkeys(known, error))

    async def durability(self, buses: Sequence[str]) -> Mapping[str, list[str]]:
        """See LogStore."""
        try:
            reasons = volatility_reasons(await self._connections.checks.durability())
        except LogError:
            return {}
        return dict.fromkeys(buses, reasons)

    async def ping(self) -> None:
        """See LogStore."""
        await self._connections.watch.read("SELECT 1")

    @asynccontextmanager
    async def probe_link(self) -> AsyncIterator[None]:
        """See LogStore. Deadlines suffice: a call never waits on a connection from before a silence."""
        yield

    async def exists(self, bus: str) -> bool:
        """See LogStore."""
        return bool(await self._connections.reads.read(_EXISTS, (bus,)))

    async def head_number(self, bus: str) -> int | None:
        """See LogStore."""
        rows = await self._connections.reads.read(_HEAD, (bus,))
        return int(rows[0][0]) if rows else None

    async def grants_number(self, bus: str) -> int | None:
        """See LogStore."""
        rows = await self._connections.reads.read(_GRANTS, (bus,))
        return int(rows[0][0]) if rows else None

    async def envelope(self, bus: str, sequence_number: int) -> bytes | None:
        """See LogStore."""
        rows = await self._connections.reads.read(_ENVELOPE, (bus, sequence_number))
        return bytes(rows[0][0]) if rows else None

    async def names(self) -> list[str]:
        """See LogStore."""
        return [bus for (bus,) in await self._connections.reads.read(_NAMES)]

    async def open(
        self,
        bus: str,
        *,
        idempotency_window_ms: int = IDEMPOTENCY_WINDOW_MS_DEFAULT,
        acknowledgement: Acknowledgement = Acknowledgement(),  # noqa: B008  # immutable
    ) -> PostgresqlLog:
        """Return the log of `bus`, over the shared connections. See PostgresqlLog.open."""
        return await PostgresqlLog.open(
            self._connections,
            self._announcements,
            bus,
            idempotency_window_ms=idempotency_window_ms,
            acknowledgement=acknowledgement,
        )

    async def close(self) -> None:
        """Close the connections of all logs."""
        await self._announcements.close()
        await self._connections.close()
