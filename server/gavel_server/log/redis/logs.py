"""All logs in one Redis or cluster, over shared connections: which of them have grown, whether a bus has one, and the log of each bus."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final

from gavel_rules.limits import BUS, IDEMPOTENCY_WINDOW_MS_DEFAULT
from gavel_rules.redis_keys import HEAD_KEYS, head_key, log_key

from gavel_server.log.acknowledgement import Acknowledgement
from gavel_server.log.protocol import Growth, LogUnavailableError
from gavel_server.log.redis.connection import TIMEOUT_MS_DEFAULT, Connections
from gavel_server.log.redis.durability import COMMANDS, judge
from gavel_server.log.redis.log import RedisLog
from gavel_server.log.redis.replies import LOOKUPS_MAX, chunks, reason
from gavel_server.log.redis.resp import Command
from gavel_server.log.redis.topology.servers import open_topology

# Between two probes of the link while a server starts.
PROBE_PAUSE_SECONDS: Final = 0.25
# How long a look for new events in a cluster waits for masters that do not answer.
POLL_SECONDS: Final = 0.2
# Keys that one step of a listing looks at.
SCAN_KEYS: Final = 1000
_HEAD_KEY: Final = re.compile(re.escape(head_key("BUS")).replace("BUS", f"({BUS})"))


class RedisLogs:
    """All logs in the Redis, or the cluster, at `url`. The watch over them has connections of its own: it never waits for other reads.

    Unless `accept_volatile`, nothing is appended to a Redis that may lose acknowledged events.
    """

    def __init__(self, url: str, timeout_ms: int = TIMEOUT_MS_DEFAULT, *, accept_volatile: bool = True) -> None:
        self._topology = open_topology(url, timeout_ms, accept_volatile=accept_volatile)
        self._known: dict[str, int] = {}
        self._commands: list[_GrowthCommand] = []  # the commands that ask about `_known`
        self._polls: dict[Connections, asyncio.Task[Growth]] = {}

    async def grown(self, known: Mapping[str, int]) -> Growth:
        """Return the buses whose logs hold events beyond the given sequence numbers. One command for LOOKUPS_MAX buses of one Redis.

        If Redis answers a command with an error, all its buses are returned. In a cluster, nobody waits for a master that does not answer:
        a later call reports its buses.
        """
        if not self._topology.is_cluster:
            (node,) = await self._topology.masters()
            if known != self._known:
                self._known = dict(known)
                self._commands = _growth_commands(list(known), known, LOOKUPS_MAX)
            return await self._grown_on(node, list(known), self._commands)
        placement, failures = await self._topology.placement(known)
        for node, buses in placement.items():
            if node not in self._polls:
                # Keys of one command must share a slot, so each bus has a command.
                commands = _growth_commands(buses, known, 1)
                self._polls[node] = asyncio.create_task(self._grown_on(node, buses, commands))
        if self._polls:
            await asyncio.wait(self._polls.values(), timeout=POLL_SECONDS)
        grown: set[str] = set()
        pending: set[str] = set()
        for node, poll in list(self._polls.items()):
            if not poll.done():
                pending.update(placement.get(node, ()))
                continue
            del self._polls[node]
            growth = poll.result()
            grown.update(growth.buses)
            failures.update(growth.failures)
        # A poll may have begun when other buses were asked for.
        return Growth(grown & known.keys(), {bus: error for bus, error in failures.items() if bus in known}, pending)

    async def _grown_on(self, node: Connections, buses: Sequence[str], commands: Sequence[_GrowthCommand]) -> Growth:
        bus_names: set[str] = set()
        try:
            for part in chunks(commands):
                replies = await node.watch.probe(*(command for _, command in part))
                for (bus_of_key, _), reply in zip(part, replies, strict=True):
                    if isinstance(reply, Exception):
                        # One key that is not a stream fails the command for all: each log then reports its own fault.
                        bus_names.update(bus_of_key.values())
                    elif reply is not None:
                        bus_names.update(bus_of_key[key] for key, _ in reply)
        except LogUnavailableError as error:
            self._topology.suspect(node)
            return Growth((), dict.fromkeys(buses, error))
        return Growth(bus_names)

    async def durability(self, buses: Sequence[str]) -> dict[str, list[str]]:
        """Return `EventLog.durability` of each bus. Buses whose Redis does not answer are absent."""
        placement, _ = await self._topology.placement(buses)
        answers = await asyncio.gather(*(node.reads.read(*COMMANDS) for node in placement), return_exceptions=True)
        problems: dict[str, list[str]] = {}
        for node_buses, replies in zip(placement.values(), answers, strict=True):
            if not isinstance(replies, BaseException):
                problems.update(dict.fromkeys(node_buses, judge(replies)))
            elif not isinstance(replies, LogUnavailableError):
                raise replies
        return problems

    async def ping(self) -> None:
        """Check that Redis answers, or that the cluster tells where logs are. Raises LogUnreachableError."""
        await self._topology.ping()

    @asynccontextmanager
    async def probe_link(self) -> AsyncIterator[None]:
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
        reads = self._topology.of(bus).reads
        for reply in await reads.read(("EXISTS", log_key(bus)), ("HEXISTS", head_key(bus), "sequence_number")):
            if isinstance(reply, Exception):
                raise LogUnavailableError(f"Redis at {reads.address} refuses: {reason(reply)}")
            if reply:
                return True
        return False

    async def head_number(self, bus: str) -> int | None:
        """See LogStore."""
        return await self._number_of_head(bus, "sequence_number")

    async def grants_number(self, bus: str) -> int | None:
        """See LogStore."""
        return await self._number_of_head(bus, "grants")

    async def _number_of_head(self, bus: str, field: str) -> int | None:
        """Return a number that the head of a log holds; None: there is no such log, or its head does not tell."""
        reads = self._topology.of(bus).reads
        (reply,) = await reads.read(("HGET", head_key(bus), field))
        if isinstance(reply, Exception):
            raise LogUnavailableError(f"Redis at {reads.address} refuses: {reason(reply)}")
        return int(reply) if reply is not None and re.fullmatch(rb"\d{1,18}", reply) else None

    async def envelope(self, bus: str, sequence_number: int) -> bytes | None:
        """Return one event of a log, without opening the log; None: the log does not hold it. Raises LogUnavailableError."""
        reads = self._topology.of(bus).reads
        (reply,) = await reads.read(("XRANGE", log_key(bus), f"{sequence_number}-0", f"{sequence_number}-0"))
        if isinstance(reply, Exception):
            raise LogUnavailableError(f"Redis at {reads.address} refuses: {reason(reply)}")
        return dict(zip(reply[0][1][::2], reply[0][1][1::2], strict=True)).get(b"e") if reply else None

    async def names(self) -> list[str]:
        """Return the names of the buses that have a log. Reads the names of all keys of every master. Raises LogUnavailableError."""
        buses: set[str] = set()
        for node in await self._topology.masters():
            buses |= await self._names_on(node)
        return [name for name in sorted(buses) if await self.exists(name)]

    async def _names_on(self, node: Connections) -> set[str]:
        buses: set[str] = set()
        cursor: bytes | str | int = b"0"
        while True:
            (reply,) = await node.reads.read(("SCAN", cursor, "MATCH", HEAD_KEYS, "COUNT", SCAN_KEYS))
            if isinstance(reply, Exception):
                raise LogUnavailableError(f"Redis at {node.reads.address} refuses: {reason(reply)}")
            cursor, keys = reply
            buses.update(match[1] for key in keys if (match := _HEAD_KEY.fullmatch(key.decode(errors="replace"))))
            if cursor in (b"0", 0, "0"):
                return buses

    async def open(
        self,
        bus: str,
        *,
        idempotency_window_ms: int = IDEMPOTENCY_WINDOW_MS_DEFAULT,
        acknowledgement: Acknowledgement = Acknowledgement(),  # noqa: B008  # immutable
    ) -> RedisLog:
        """Return the log of `bus`, over the shared connections. See RedisLog.open."""
        return await RedisLog.open(
            self._topology.of(bus), bus, idempotency_window_ms=idempotency_window_ms, acknowledgement=acknowledgement
        )

    async def close(self) -> None:
        """Close the connections of all logs."""
        for poll in self._polls.values():
            poll.cancel()
        await asyncio.gather(*self._polls.values(), return_exceptions=True)
        await self._topology.close()


# The buses by key, and an XREAD of these keys.
_GrowthCommand = tuple[dict[bytes, str], Command]


def _growth_commands(buses: Sequence[str], known: Mapping[str, int], buses_max: int) -> list[_GrowthCommand]:
    """Return commands that ask about at most `buses_max` buses each."""
    return [_growth_command(buses[first : first + buses_max], known) for first in range(0, len(buses), buses_max)]


def _growth_command(buses: Sequence[str], known: Mapping[str, int]) -> _GrowthCommand:
    keys = [log_key(bus) for bus in buses]
    ids = [f"{known[bus]}-0" for bus in buses]
    return {key.encode(): bus for bus, key in zip(buses, keys, strict=True)}, ("XREAD", "COUNT", 1, "STREAMS", *keys, *ids)
