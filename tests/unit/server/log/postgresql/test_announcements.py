"""Which logs have grown, by notifications and by queries that answer later."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

from gavel_server.log.postgresql.announcements import Announcements
from gavel_server.log.postgresql.connection import Connections, Parameters, Row
from gavel_server.log.protocol import LogUnreachableError


class SlowHeads:
    """A PostgreSQL whose heads end at event 3. Events 4 and 5 are notified before it answers the first query."""

    def __init__(self) -> None:
        self.notified = ["bus 4", "bus 5", "bus 4"]
        self.announcements = Announcements(cast(Connections, SimpleNamespace(watch=self, reads=self)))

    async def read(self, statement: str, parameters: Parameters = ()) -> list[Row]:
        """See ConnectionPool."""
        for payload in self.notified:
            self.announcements._note(payload)
        self.notified = []
        return [("bus", 3)]

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Any]:
        """See ConnectionPool. Nothing listens, so that each call queries."""
        raise LogUnreachableError("it does not answer")
        yield


async def test_a_notification_during_a_query() -> None:
    """A query does not undo a notification that came after it began; the next one does, as after a promotion that lost the events."""
    announcements = SlowHeads().announcements
    assert {"bus"} == await announcements.grown({"bus": 4})
    assert set() == await announcements.grown({"bus": 4})
    assert {"bus"} == await announcements.grown({"bus": 2})
    await announcements.close()
