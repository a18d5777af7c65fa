"""The log in Redis: one stream per bus, written by the Lua script `append.lua`, which compares the head and appends all or nothing.

`gavel_rules.redis_keys` names the keys of a bus and describes their contents.

An append whose reply was lost may still wait in a socket that Redis has not read. After such an append `head` therefore raises the
fence, a counter in Redis. The script refuses an append that carries an older fence, so the lost append can no longer arrive, and the
head that the same transaction reads is final. Nothing here retries an append whose outcome is unknown, trims the log, or
acknowledges work.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Any, Final

import structlog
from gavel_rules.events.hash_chain import genesis_hash
from gavel_rules.limits import IDEMPOTENCY_WINDOW_MS_DEFAULT
from gavel_rules.redis_keys import checkpoint_key, event_ids_key, head_key, log_key, work_key

from gavel_server.log.acknowledgement import Acknowledgement
from gavel_server.log.entries import Entry, Head, Record, check_sequence
from gavel_server.log.protocol import (
    ACCEPTED_LOSSES_MAX,
    CHUNK_BYTES,
    DAY_MS,
    READ_LIMIT,
    SEQUENCE_NUMBER_MAX,
    EventIdTakenError,
    HeadMovedError,
    IdEntry,
    LogCorruptError,
    LogUnavailableError,
    LogUnreachableError,
    LossReportedError,
    NotReplicatedError,
    OutcomeUnknownError,
    UntimelyError,
    check_bus_name,
    describe,
    empty_head,
    window_days,
)
from gavel_server.log.redis.acknowledgement import shortfall, version_problem, wait_commands
from gavel_server.log.redis.connection import REDIS_VERSION_MIN, TIMEOUT_MS_DEFAULT
from gavel_server.log.redis.durability import COMMANDS, judge
from gavel_server.log.redis.replies import chunks, info_fields, is_read_only, pairs, reason
from gavel_server.log.redis.resp import Argument, flags_and_arguments, record_of
from gavel_server.log.redis.script import Script
from gavel_server.log.redis.topology.protocol import BusConnections, Topology
from gavel_server.log.redis.topology.servers import open_topology
from gavel_server.log.work.protocol import QUEUES, REQUESTS_MAX
from gavel_server.log.work.redis import RedisWorkQueues
from gavel_server.process.clock import timely_range_ms

FORMAT_VERSION: Final = 1
# An append fails after this many refusals in a row by other servers' fences, which means that Redis keeps losing replies.
FENCED_MAX: Final = 5

# Refusals of a Redis that starts, fails over or is busy.
_TRANSIENT_REFUSALS: Final = ("LOADING", "BUSY", "MASTERDOWN", "NOREPLICAS", "READONLY", "CLUSTERDOWN", "TRYAGAIN", "UNBLOCKED", "MISCONF")

_LOG: Final = structlog.get_logger(__name__)
_APPEND: Final = Script("append.lua")
_HEAD: Final = Script("head.lua")
_READ: Final = Script("read.lua")
_TRIM: Final = Script("trim.lua")
_PUBLISH: Final = Script("publish.lua")
_LOSS: Final = Script("loss.lua")
_CONFIRM: Final = Script("confirm.lua")
# Parts of the error replies that only a key of the log with the wrong type or contents causes.
_DAMAGES: Final = ("WRONGTYPE", "equal or smaller than the target stream", "hash value is not an integer")


class _IncompleteError(LogCorruptError):
    """The head shows that the stream lacks entries, but not which."""


class RedisLog:
    """The log of one bus in a Redis (6.2 or later), Valkey or a cluster. `RedisLogs.open` creates it on shared connections.

    Use it from one event loop.
    """

    def __init__(
        self,
        connections: BusConnections,
        bus: str,
        idempotency_window_ms: int,
        acknowledgement: Acknowledgement,
        topology: Topology | None = None,
    ) -> None:
        """`close` closes `topology`; None: the connections are shared, and `close` closes nothing."""
        self.bus = bus
        self.url = connections.url
        self._topology = topology
        self._appends = connections.appends
        self._reads = connections.reads
        self.idempotency_window_ms = idempotency_window_ms
        self._acknowledgement = acknowledgement
        self._genesis = genesis_hash(bus)
        self._log_key, self._head_key = log_key(bus), head_key(bus)
        self._work_keys = {queue: work_key(bus, queue) for queue in QUEUES}
        self.work = RedisWorkQueues(self._reads, bus, self._answers)
        # Sent after each append on the same connection: WAIT and WAITAOF cover only the writes of their own connection.
        self._wait_ms = connections.timeout_ms if acknowledgement.is_needed else 0
        self._wait_commands = wait_commands(acknowledgement, connections.timeout_ms)
        self._confirmed = 0  # the last event that is known to be acknowledged so
        self._to_confirm = empty_head(bus)  # the last event that callers wait for
        self._confirming: asyncio.Future[None] | None = None
        self._fence = 0
        self.lost_head: Head | None = None
        # Appends without a reply so far, and how many of them a later `head` has settled.
        self._doubts = 0
        self._doubts_settled = 0

    @classmethod
    async def connect(
        cls,
        url: str,
        bus: str,
        *,
        idempotency_window_ms: int = IDEMPOTENCY_WINDOW_MS_DEFAULT,
        acknowledgement: Acknowledgement = Acknowledgement(),  # noqa: B008  # immutable
        timeout_ms: int = TIMEOUT_MS_DEFAULT,
    ) -> RedisLog:
        """Connect to the Redis, or the cluster, at `url` and check that it can hold the log of `bus`.

        `close` closes the connections. If the log has lost events, it is read up to the first lost one, which the error names.
        Raises ValueError for an invalid URL or bus name, LogUnavailableError, LogCorruptError.
        """
        topology = open_topology(url, timeout_ms)
        log = cls(topology.of(bus), bus, idempotency_window_ms, acknowledgement, topology)
        try:
            try:
                await log._check()
            except _IncompleteError:
                raise log._missing_event(await log._first_missing()) from None
        except BaseException:
            await topology.close()
            raise
        return log

    @classmethod
    async def open(
        cls,
        connections: BusConnections,
        bus: str,
        *,
        idempotency_window_ms: int = IDEMPOTENCY_WINDOW_MS_DEFAULT,
        acknowledgement: Acknowledgement = Acknowledgement(),  # noqa: B008  # immutable
    ) -> RedisLog:
        """Return the log of `bus` over connections that others share, after a check that the Redis can hold a log.

        `idempotency_window_ms` holds until the caller sets the attribute of that name to the bus's recorded window.
        `acknowledgement` must be reached by each append within the timeout of the connections (GAVEL_ACK).
        Raises ValueError for an invalid bus name, LogUnavailableError, LogCorruptError.
        """
        log = cls(connections, bus, idempotency_window_ms, acknowledgement)
        await log._check()
        return log

    async def _check(self) -> None:
        check_bus_name(self.bus)
        await self._check_version()
        await self.head()

    async def head(self) -> Head:
        """See EventLog. If an append is in doubt, raise the fence."""
        doubts = self._doubts
        in_doubt = doubts != self._doubts_settled
        (reply,) = await _HEAD.run(self._reads.read, (2, self._log_key, self._head_key, "raise" if in_doubt else ""))
        fence, fields, *stream = self._answers([reply])[0]
        if isinstance(fields, Exception):
            raise LogCorruptError(f"{self._head_key} is not a hash: {reason(fields)}")
        if isinstance(fence, Exception):
            raise self._error_of(fence)
        head = self._checked_head(fields, stream)
        self.lost_head = _last_loss(fields[4] or b"")
        self._fence = _number(fence or 0, f"{self._head_key} fence")
        self._confirmed = min(self._confirmed, head.sequence_number)  # a failover may have lost confirmed events
        self._doubts_settled = doubts
        return head

    async def append(
        self, expected: Head, entries: Sequence[Entry], recorded_at_ms: int, idempotency_keys: Sequence[str], date_ms: int | None = None
    ) -> None:
        """See EventLog. One round trip."""
        check_sequence(expected, entries)
        keys, arguments = self._append_arguments(entries, recorded_at_ms, idempotency_keys, date_ms)
        for _ in range(FENCED_MAX):
            (status, *details), *waited = await self._run_append((len(keys), *keys, *expected, self._fence, *arguments))
            if status != b"FENCED":
                break
            # Another server has raised the fence. Redis refused this append, so sending it again is safe.
            self._fence = _number(details[0], f"{self._head_key} fence")
        if status == b"UNTIMELY" and date_ms is not None:
            raise UntimelyError(date_ms, int(details[0]))
        if status != b"OK":
            raise self._refusal(expected, status, details)
        for problem in details:
            _LOG.warning("queue.rebuilt", bus=self.bus, problem=problem.decode(errors="replace"))
        self._check_replicas(entries[-1].sequence_number, waited)

    def is_confirmed(self, sequence_number: int) -> bool:
        """See EventLog."""
        return not self._acknowledgement.is_needed or sequence_number <= self._confirmed

    async def confirm(self, head: Head) -> None:
        """See EventLog. Callers share one WAIT."""
        for _ in range(2):  # the WAIT under way may be for an earlier event
            if self.is_confirmed(head.sequence_number):
                return
            self._to_confirm = max(self._to_confirm, head)
            if self._confirming is None:
                self._confirming = asyncio.ensure_future(self._confirm())
                self._confirming.add_done_callback(self._end_confirmation)
            await asyncio.shield(self._confirming)
        if not self.is_confirmed(head.sequence_number):
            raise self._lacks(head)

    async def _confirm(self) -> None:
        """Wait until the last event that callers want to confirm is acknowledged."""
        head, self._to_confirm = self._to_confirm, empty_head(self.bus)
        try:
            # As a write: a cluster redirects it together with the WAIT.
            replies = await _CONFIRM.run(self._appends.write, (2, self._log_key, self._head_key, *head), self._wait_commands, self._wait_ms)
        except OutcomeUnknownError as error:
            raise LogUnreachableError(str(error)) from error
        (is_there,) = self._answers(replies[:1])
        if not is_there:
            raise self._lacks(head)
        self._check_replicas(head.sequence_number, replies[1:])

    def _lacks(self, head: Head) -> LogUnavailableError:
        return LogUnavailableError(f"Redis at {self._reads.address} does not hold event {head.sequence_number} of bus {self.bus} any more")

    def _end_confirmation(self, ended: asyncio.Future[None]) -> None:
        self._confirming = None
        if not ended.cancelled():
            ended.exception()  # its callers have it, unless all of them have gone

    async def read(self, from_sequence_number: int, to_sequence_number: int, limit: int = READ_LIMIT) -> list[Record]:
        """See EventLog."""
        first = max(from_sequence_number, 1)
        if to_sequence_number < first or limit < 1:
            return []
        body = (1, self._log_key, first, to_sequence_number, limit, CHUNK_BYTES)
        (rows,) = self._answers(await _READ.run(self._reads.read, body))
        records = [self._record(row) for row in rows]
        if records and records[-1].sequence_number - records[0].sequence_number != len(records) - 1:
            expected = enumerate(records, records[0].sequence_number)
            raise self._missing_event(next(number for number, record in expected if record.sequence_number != number))
        return records

    async def _first_missing(self) -> int:
        """Return the sequence number of the first missing event. Raises LogCorruptError, whose message may name it as well."""
        number = 1
        while (records := await self.read(number, SEQUENCE_NUMBER_MAX)) and records[0].sequence_number == number:
            number = records[-1].sequence_number + 1
        return number

    def _missing_event(self, sequence_number: int) -> LogCorruptError:
        return LogCorruptError(f"event {sequence_number} is missing from {self._log_key}; restore it from an archive or a backup")

    async def read_many(self, sequence_numbers: Sequence[int]) -> dict[int, Record]:
        """See EventLog."""
        records: dict[int, Record] = {}
        for numbers in chunks([number for number in sequence_numbers if number > 0]):
            replies = await self._reads.read(*(("XRANGE", self._log_key, f"{number}-0", f"{number}-0") for number in numbers))
            for rows in self._answers(replies):
                records.update((record.sequence_number, record) for record in map(self._record, rows))
        return records

    async def find(self, event_ids: Sequence[str], now_ms: int) -> dict[str, IdEntry]:
        """See EventLog."""
        id_entries: dict[str, IdEntry] = {}
        days = [event_ids_key(self.bus, day) for day in window_days(now_ms, self.idempotency_window_ms)]
        for ids in chunks(event_ids):
            for values in self._answers(await self._reads.read(*(("HMGET", day, *ids) for day in days))):
                id_entries.update((event_id, _id_entry(value)) for event_id, value in zip(ids, values, strict=True) if value is not None)
        return id_entries

    async def time_ms(self) -> int:
        """Return the clock of Redis."""
        (reply,) = self._answers(await self._reads.read(("TIME",)))
        seconds, microseconds = map(int, reply)
        return seconds * 1000 + microseconds // 1000

    async def report_loss(self, lost_head: Head) -> None:
        """See EventLog."""
        loss = f"{lost_head.sequence_number}:{lost_head.chain_hash.hex()}"
        self._answers(await _LOSS.run(self._appends.read, (1, self._head_key, loss, ACCEPTED_LOSSES_MAX)))

    async def trim(self, before: int) -> None:
        """See EventLog."""
        (reply,) = await _TRIM.run(self._appends.read, (2, self._log_key, self._head_key, before))
        status, detail = self._answers([reply])[0]
        if status != b"OK":
            raise LogCorruptError(f"bus {self.bus}: {detail.decode()}; nothing was trimmed")

    async def published_checkpoint(self) -> bytes | None:
        """See EventLog."""
        (reply,) = self._answers(await self._reads.read(("GET", checkpoint_key(self.bus))))
        return None if reply is None else bytes(reply)

    async def publish_checkpoint(self, note: bytes, previous: bytes | None) -> bool:
        """See EventLog."""
        seen = () if previous is None else (previous,)
        (replaced,) = self._answers(await _PUBLISH.run(self._appends.read, (1, checkpoint_key(self.bus), note, *seen)))
        return bool(replaced)

    async def durability(self) -> list[str]:
        """See EventLog. A setting that cannot be read counts as not durable."""
        return judge(await self._reads.read(*COMMANDS))

    async def asynchronous_replicas(self) -> int:
        """See StoredLog."""
        (reply,) = self._answers(await self._reads.read(("INFO", "replication")))
        return int(info_fields(reply).get("connected_slaves", "0"))

    async def ensure_groups(self) -> None:
        """See EventLog. Nothing is written if all groups exist."""
        await self.work.ensure_groups()

    async def close(self) -> None:
        """Close the connections, unless other logs share them."""
        if self._topology is not None:
            await self._topology.close()

    async def _check_version(self) -> None:
        (reply,) = self._answers(await self._reads.read(("INFO", "server")))
        version = info_fields(reply).get("redis_version", "0")
        numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
        if numbers < REDIS_VERSION_MIN:
            raise LogUnavailableError(f"Redis at {self._reads.address} is version {version}; Gavel needs 6.2 or later, or Valkey")
        problem = version_problem(self._acknowledgement, numbers)
        if problem:
            raise LogUnavailableError(f"Redis at {self._reads.address} is version {version}; {problem}")

    def _answers(self, replies: list[Any]) -> list[Any]:
        """Return the replies. Raises LogUnavailableError or LogCorruptError if one is an error."""
        for reply in replies:
            if isinstance(reply, Exception):
                raise self._error_of(reply)
        return replies

    def _error_of(self, reply: Exception) -> LogCorruptError | LogUnavailableError:
        text = reason(reply)
        if any(damage in text for damage in _DAMAGES):
            return LogCorruptError(f"bus {self.bus}: a key of the log has the wrong type or contents: {text}")
        if "OOM command not allowed" in text:
            remedy = "give it more memory (maxmemory; redis_memory_mib of the embedded one)"
            return LogUnavailableError(f"Redis at {self._reads.address} is full, so nothing is written: {remedy}. It answers: {text}")
        kind = LogUnreachableError if text.startswith(_TRANSIENT_REFUSALS) or is_read_only(reply) else LogUnavailableError
        return kind(f"Redis at {self._reads.address} refuses: {text}")

    def _head_of(self, fields: list[bytes | None]) -> Head:
        number, chain_hash = fields[0], fields[1]
        if number is None or chain_hash is None:
            return empty_head(self.bus)
        return Head(_number(number, f"{self._head_key} sequence_number"), chain_hash)

    def _checked_head(self, fields: list[bytes | None], stream: list[Any]) -> Head:
        """Return the head if the stream agrees with it; `stream` is its length, last id and last hash, or an error."""
        count, version = fields[2], fields[3]
        if version is not None and version != b"%d" % FORMAT_VERSION:
            raise self._other_format(version)
        head = self._head_of(fields)
        length, last_id, last_hash, first_id = self._answers(stream)
        expected_length = _number(count or b"0", f"{self._head_key} count")
        first_number = int(first_id.partition(b"-")[0]) if first_id else 1
        wrong, kind = "", LogCorruptError
        if last_id != b"%d-0" % head.sequence_number:
            wrong = f"the last id of the stream is {last_id.decode()}"
        elif length != expected_length:
            wrong = f"the head counts {expected_length} entries, the stream holds {length}"
            kind = _IncompleteError if length < expected_length else LogCorruptError
        elif length and length != head.sequence_number - first_number + 1:
            wrong = f"the stream holds {length} entries from {first_number} to {head.sequence_number}: some are missing"
            kind = _IncompleteError
        elif last_hash is not None and last_hash != head.chain_hash:
            wrong = f"the last entry of the stream has chain hash {last_hash.hex()[:8]}…"
        if wrong:
            raise kind(f"{self._head_key} is {describe(head)}, but {wrong} in {self._log_key}; restore both from one backup or replica")
        return head

    def _append_arguments(
        self, entries: Sequence[Entry], recorded_at_ms: int, idempotency_keys: Sequence[str], date_ms: int | None
    ) -> tuple[list[Argument], ...]:
        """Return the script's arguments before the expected head (keys) and after it (flags, hashes, entries, ids, ids to check)."""
        day = recorded_at_ms // DAY_MS
        keys: list[Argument] = [self._log_key, self._head_key, *self._work_keys.values(), event_ids_key(self.bus, day)]
        if idempotency_keys:
            window = window_days(recorded_at_ms, self.idempotency_window_ms)
            keys += [event_ids_key(self.bus, earlier) for earlier in window if earlier != day]
        flags, hashes, of_entries = flags_and_arguments(entries)
        # An event_id written at the end of its day stays known until one day after the window.
        ids_seconds = (self.idempotency_window_ms + 2 * DAY_MS) // 1000
        fixed: list[Argument] = [self._genesis, FORMAT_VERSION, ids_seconds, flags, len(idempotency_keys), hashes]
        fixed += [*timely_range_ms(date_ms), REQUESTS_MAX, ACCEPTED_LOSSES_MAX]
        return keys, [*fixed, *of_entries, *idempotency_keys]

    async def _run_append(self, body: tuple[Argument, ...]) -> list[Any]:
        """Return the script's reply and, if sent and received, that of WAIT."""
        try:
            replies = await _APPEND.run(self._appends.write, body, self._wait_commands, self._wait_ms)
        except LogUnavailableError:
            raise
        except BaseException:
            self._doubts += 1  # no reply, or the wait for it was cancelled
            raise
        # The script can fail only before or at its first write: after an error reply nothing was written.
        self._answers(replies[:1])
        return replies

    def _check_replicas(self, sequence_number: int, replies: list[Any]) -> None:
        """Raise NotReplicatedError if too few replicas confirmed the events. `replies` holds the reply of WAIT, if it arrived."""
        if not self._acknowledgement.is_needed:
            return
        problem = shortfall(self._acknowledgement, replies, self._wait_ms, f"Redis at {self._reads.address}")
        if problem:
            raise NotReplicatedError(f"events up to {sequence_number} are in the log, but {problem}")
        self._confirmed = max(self._confirmed, sequence_number)

    def _refusal(self, expected: Head, status: bytes, details: list[bytes]) -> Exception:
        if status == b"MOVED":
            return HeadMovedError(expected, Head(_number(details[0], f"{self._head_key} sequence_number"), details[1]))
        if status == b"LOST":
            return LossReportedError(self.bus)
        if status == b"TAKEN":
            known_ids = pairs(details)
            return EventIdTakenError({event_id.decode(): _id_entry(value) for event_id, value in known_ids.items()})
        if status == b"FORMAT":
            return self._other_format(details[0])
        if status == b"CORRUPT":
            return LogCorruptError(f"bus {self.bus}: {details[0].decode()}; nothing was appended")
        return LogUnavailableError(f"Redis at {self._reads.address} lost the replies to {FENCED_MAX} servers in a row; try again")

    def _other_format(self, version: bytes) -> LogUnavailableError:
        format_version = version.decode(errors="replace")
        return LogUnavailableError(
            f"the log of bus {self.bus} has format {format_version}, but this build knows {FORMAT_VERSION}; use the build that wrote it"
        )

    def _record(self, row: Any) -> Record:
        record = record_of(row)
        if record is None:
            raise LogCorruptError(f"entry {row[0]!r} of {self._log_key} is not <number>-0 with fields e and h")
        return record


def _id_entry(value: bytes) -> IdEntry:
    """Return an entry of the index. A value that the server cannot have written counts as event 0, which no log has."""
    match = re.fullmatch(rb"(\d{1,18})(?::(\d{1,18}))?", value)
    return IdEntry(0, 0) if match is None else IdEntry(int(match[1]), int(match[2] or 0))


def _last_loss(losses: bytes) -> Head | None:
    """Return the last of the lost events that servers have reported. A value that no server can have written counts as event 0."""
    matches = [re.fullmatch(rb"(\d{1,18}):([0-9a-f]{64})", loss) for loss in losses.split()]
    return max((Head(int(loss[1]), bytes.fromhex(loss[2].decode())) if loss else Head(0, b"") for loss in matches), default=None)


def _number(value: bytes | int, name: str) -> int:
    """Return a number that Redis holds under a name. Raises LogCorruptError."""
    if isinstance(value, int) or re.fullmatch(rb"\d{1,18}", value):
        return int(value)
    raise LogCorruptError(f"{name} is {value[:40]!r}, not a number; restore the keys of the log from one backup or replica")
