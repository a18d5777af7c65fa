"""All logs in one Redis, over shared connections: which of them have grown, whether a bus has one, and the log of each bus."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final

from gavel_rules.limits import BUS, IDEMPOTENCY_WINDOW_MS_DEFAULT
from gavel_rules.redis_keys import HEAD_KEYS, head_key, log_key

from gavel_server.log.protocol import LogUnavailableError
from gavel_server.log.redis.connection import TIMEOUT_MS_DEFAULT, Connections
from gavel_server.log.redis.log import RedisLog
from gavel_server.log.redis.replies import chunks, reason
from gavel_server.log.redis.resp import Command

# Between two probes of the link while a server starts.
PROBE_PAUSE_SECONDS: Final = 0.25
# Keys that one step of a listing looks at.
SCAN_KEYS: Final = 1000
_HEAD_KEY: Final = re.compile(re.escape(head_key("BUS")).replace("BUS", f"({BUS})"))


class RedisLogs:
    """All logs in the Redis at `url`. The watch over them has a connection of its own, so that it never waits for other reads.

    Unless `accept_volatile`, nothing is appended to a Redis that may lose acknowledged events.
    """

    def __init__(self, url: str, timeout_ms: int = TIMEOUT_MS_DEFAULT, *, accept_volatile: bool = True) -> None:
        self._connections = Connections(url, timeout_ms, accept_volatile=accept_volatile)
        self._watch = self._connections.watch
        self._known: dict[str, int] = {}
        self._commands: list[_GrowthCommand] = []  # the commands that ask about `_known`

    async def grown(self, known: Mapping[str, int]) -> set[str]:
        """Return the buses whose logs hold events beyond the given sequence numbers. One command for LOOKUPS_MAX buses.

        If Redis answers a command with an error, all its buses are returned. Raises LogUnavailableError.
        """
        if known != self._known:
            self._known = dict(known)
            self._commands = [_growth_command(buses, known) for buses in chunks(list(known))]
        found: set[str] = set()
        for bus_of_key, command in self._commands:
            (reply,) = await self._watch.probe(command)
            if isinstance(reply, Exception):
                # One key that is not a stream fails the command for all: each log then reports its own fault.
                found.update(bus_of_key.values())
            elif reply is not None:
                found.update(bus_of_key[key] for key, _ in reply)
        return found

    async def ping(self) -> None:
        """Return if Redis answers. Raises LogUnreachableError."""
        await self._watch.probe(("PING",))

    @asynccontextmanager
    async def probing(self) -> AsyncIterator[None]:
        """Probe the link during the block, so that no call in it waits for its timeout once Redis answers again.

        Later the polls of the watch (`grown`) do so.
        """
        probes = asyncio.create_task(self._probe_forever())
        try:
            yield
        finally:
            probes.cancel()
            await asyncio.gather(probes, return_exceptions=True)

    async def _probe_forever(self) -> None:
        while True:
            with suppress(LogUnavailableError):  # the calls report it
                await self.ping()
            await asyncio.sleep(PROBE_PAUSE_SECONDS)

    async def exists(self, bus: str) -> bool:
        """Return whether Redis holds a log of this bus. Creates nothing. Raises LogUnavailableError.

        A head without a stream is a log that has lost its events. A fence alone is the trace of an append that never arrived.
        """
        reads = self._connections.reads
        for reply in await reads.read(("EXISTS", log_key(bus)), ("HEXISTS", head_key(bus), "sequence_number")):
            if isinstance(reply, Exception):
                raise LogUnavailableError(f"Redis at {reads.address} refuses: {reason(reply)}")
            if reply:
                return True
        return False

    async def grants_number(self, bus: str) -> int | None:
        """Return the number of the event with the grants in force, without opening the log; 0: there are none.

        None: there is no such log, or its head does not tell. Raises LogUnavailableError.
        """
        reads = self._connections.reads
        (reply,) = await reads.read(("HGET", head_key(bus), "grants"))
        if isinstance(reply, Exception):
            raise LogUnavailableError(f"Redis at {reads.address} refuses: {reason(reply)}")
        return int(reply) if reply is not None and re.fullmatch(rb"\d{1,18}", reply) else None

    async def envelope(self, bus: str, sequence_number: int) -> bytes | None:
        """Return one event of a log, without opening the log; None: the log does not hold it. Raises LogUnavailableError."""
        reads = self._connections.reads
        (reply,) = await reads.read(("XRANGE", log_key(bus), f"{sequence_number}-0", f"{sequence_number}-0"))
        if isinstance(reply, Exception):
            raise LogUnavailableError(f"Redis at {reads.address} refuses: {reason(reply)}")
        return dict(zip(reply[0][1][::2], reply[0][1][1::2], strict=True)).get(b"e") if reply else None

    async def names(self) -> list[str]:
        """Return the names of the buses that have a log. Reads the names of all keys. Raises LogUnavailableError."""
        reads = self._connections.reads
        found: set[str] = set()
        cursor: bytes | str | int = b"0"
        while True:
            (reply,) = await reads.read(("SCAN", cursor, "MATCH", HEAD_KEYS, "COUNT", SCAN_KEYS))
            if isinstance(reply, Exception):
                raise LogUnavailableError(f"Redis at {reads.address} refuses: {reason(reply)}")
            cursor, keys = reply
            found.update(match[1] for key in keys if (match := _HEAD_KEY.fullmatch(key.decode(errors="replace"))))
            if cursor in (b"0", 0, "0"):
                return [name for name in sorted(found) if await self.exists(name)]

    async def open(
        self, bus: str, *, idempotency_window_ms: int = IDEMPOTENCY_WINDOW_MS_DEFAULT, acknowledge_replicas: int = 0
    ) -> RedisLog:
        """Return the log of `bus`, over the shared connections. See RedisLog.open."""
        return await RedisLog.open(
            self._connections, bus, idempotency_window_ms=idempotency_window_ms, acknowledge_replicas=acknowledge_replicas
        )

    async def close(self) -> None:
        """Close the connections of all logs."""
        await self._connections.close()


# The buses by key, and an XREAD of these keys.
_GrowthCommand = tuple[dict[bytes, str], Command]


def _growth_command(buses: Sequence[str], known: Mapping[str, int]) -> _GrowthCommand:
    keys = [log_key(bus) for bus in buses]
    ids = [f"{known[bus]}-0" for bus in buses]
    return {key.encode(): bus for bus, key in zip(buses, keys, strict=True)}, ("XREAD", "COUNT", 1, "STREAMS", *keys, *ids)
