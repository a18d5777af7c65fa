"""The log in PostgreSQL: one function call, and so one transaction, for each append (`schema.sql`).

An append whose reply was lost may still run. After such an append `head` therefore ends its process and raises the fence of the bus, which
waits until no append is under way; an append that carries an older fence is refused. The head that is read afterwards is final. Nothing
here retries an append whose outcome is unknown.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any, Final

from gavel_rules.events.hash_chain import genesis_hash
from gavel_rules.limits import IDEMPOTENCY_WINDOW_MS_DEFAULT

from gavel_server.log.acknowledgement import Acknowledgement
from gavel_server.log.entries import Entry, Head, Record, check_sequence
from gavel_server.log.postgresql.announcements import Announcements
from gavel_server.log.postgresql.connection import TIMEOUT_MS_DEFAULT, Connections
from gavel_server.log.postgresql.durability import acknowledgement_problem, volatility_reasons
from gavel_server.log.postgresql.schema import FORMAT_VERSION, INSTALLATION
from gavel_server.log.protocol import (
    CHUNK_BYTES,
    DAY_MS,
    READ_LIMIT,
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
from gavel_server.log.work.postgresql import PostgresqlWorkQueues
from gavel_server.log.work.protocol import REQUESTS_MAX
from gavel_server.process.clock import timely_range_ms

# An append fails after this many refusals in a row by other servers' fences, which means that replies keep getting lost.
FENCED_MAX: Final = 5
# Events that one transaction removes.
TRIM_EVENTS_MAX: Final = 10_000
# Events that one statement reads before their bytes are counted.
READ_EVENTS_MAX: Final = 1000

_APPEND: Final = "SELECT * FROM gavel.append(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)"
_RAISE_FENCE: Final = "SELECT gavel.raise_fence(%s, %s)"
_END_BACKENDS: Final = """
SELECT pg_terminate_backend(a.pid, 1000) FROM pg_stat_activity AS a
JOIN unnest(%s::bigint[], %s::timestamptz[]) AS abandoned(pid, started) ON a.pid = abandoned.pid AND a.backend_start = abandoned.started
"""
_HEAD: Final = """
SELECT h.sequence_number, h.chain_hash, h.first_sequence_number, h.fence, h.losses,
  (SELECT e.sequence_number FROM gavel.events AS e WHERE e.bus = one.bus ORDER BY e.sequence_number LIMIT 1),
  (SELECT e.sequence_number FROM gavel.events AS e WHERE e.bus = one.bus ORDER BY e.sequence_number DESC LIMIT 1),
  (SELECT e.chain_hash FROM gavel.events AS e WHERE e.bus = one.bus ORDER BY e.sequence_number DESC LIMIT 1)
FROM (SELECT %s::text) AS one(bus) LEFT JOIN gavel.heads AS h ON h.bus = one.bus
"""
_READ: Final = """
SELECT sequence_number, envelope, chain_hash FROM (
  SELECT *, sum(length(envelope)) OVER (ORDER BY sequence_number) - length(envelope) AS bytes_before FROM (
    SELECT sequence_number, envelope, chain_hash FROM gavel.events
    WHERE bus = %s AND sequence_number BETWEEN %s AND %s ORDER BY sequence_number LIMIT %s) AS page) AS counted
WHERE bytes_before < %s ORDER BY sequence_number
"""
_READ_MANY: Final = "SELECT sequence_number, envelope, chain_hash FROM gavel.events WHERE bus = %s AND sequence_number = ANY(%s::bigint[])"
_FIND: Final = """
SELECT sha256, sequence_number, decision_sequence_number FROM gavel.event_ids
WHERE bus = %s AND sha256 = ANY(%s::bytea[]) AND day BETWEEN %s AND %s ORDER BY day
"""
_TIME: Final = "SELECT gavel.now_ms()"
_REPORT_LOSS: Final = "SELECT gavel.report_loss(%s, %s, %s)"
_TRIM: Final = "SELECT gavel.trim(%s, %s, %s)"
_CHECKPOINT: Final = "SELECT note FROM gavel.checkpoints WHERE bus = %s"
_PUBLISH_FIRST: Final = "INSERT INTO gavel.checkpoints (note, bus) VALUES (%s, %s) ON CONFLICT (bus) DO NOTHING RETURNING bus"
_PUBLISH_NEXT: Final = "UPDATE gavel.checkpoints SET note = %s WHERE bus = %s AND note = %s RETURNING bus"
# Commits wait for the standbys only if they have written something.
_CONFIRM: Final = """
SELECT pg_logical_emit_message(true, 'gavel', '') FROM gavel.events WHERE bus = %s AND sequence_number = %s AND chain_hash = %s
"""


class PostgresqlLog:
    """The log of one bus in a PostgreSQL. Create it with `connect`, or with `PostgresqlLogs.open` on shared connections.

    Use it from one event loop.
    """

    def __init__(
        self,
        connections: Connections,
        announcements: Announcements,
        bus: str,
        idempotency_window_ms: int,
        acknowledgement: Acknowledgement,
        *,
        owns_connections: bool,
    ) -> None:
        self.bus = bus
        self.url = connections.url
        self.idempotency_window_ms = idempotency_window_ms
        self._connections = connections
        self._announcements = announcements
        self._owns_connections = owns_connections
        self._appends = connections.appends
        self._reads = connections.reads
        self._acknowledgement = acknowledgement
        self._genesis = genesis_hash(bus)
        self.work = PostgresqlWorkQueues(self._reads, bus)
        self._confirmed = 0  # the last event that the standbys are known to have
        self._unconfirmed = 0  # the last event that they must confirm, or must have confirmed
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
    ) -> PostgresqlLog:
        """Connect to the PostgreSQL at `url` (postgresql://) and check that it can hold the log of `bus`. `close` closes the connections.

        Raises ValueError for an invalid URL or bus name, LogUnavailableError, LogCorruptError.
        """
        connections = Connections(url, timeout_ms)
        try:
            return await cls.open(
                connections,
                Announcements(connections),
                bus,
                idempotency_window_ms=idempotency_window_ms,
                acknowledgement=acknowledgement,
                owns_connections=True,
            )
        except BaseException:
            await connections.close()
            raise

    @classmethod
    async def open(
        cls,
        connections: Connections,
        announcements: Announcements,
        bus: str,
        *,
        idempotency_window_ms: int = IDEMPOTENCY_WINDOW_MS_DEFAULT,
        acknowledgement: Acknowledgement = Acknowledgement(),  # noqa: B008  # immutable
        owns_connections: bool = False,
    ) -> PostgresqlLog:
        """Return the log of `bus` in the PostgreSQL of `connections`, after checking that it can hold it.

        `idempotency_window_ms` holds until the caller sets the attribute of that name to the bus's recorded window. Each commit must wait
        for the standbys of `acknowledgement`. Raises ValueError for an invalid bus name, LogUnavailableError,
        LogCorruptError.
        """
        check_bus_name(bus)
        log = cls(connections, announcements, bus, idempotency_window_ms, acknowledgement, owns_connections=owns_connections)
        ((version,),) = await log._reads.read("SELECT gavel.format_version()")
        if version != FORMAT_VERSION:
            remedy = f"install it again, with this build: {INSTALLATION}" if version < FORMAT_VERSION else "use the build that installed it"
            raise LogUnavailableError(
                f"the schema of PostgreSQL at {log._reads.address} has format {version}, but this build needs {FORMAT_VERSION}; {remedy}"
            )
        # From then on `is_confirmed` knows for how many standbys commits wait.
        durability = await connections.checks.durability()
        problem = acknowledgement_problem(durability, acknowledgement) if acknowledgement.is_needed else ""
        if problem:
            raise LogUnavailableError(f"PostgreSQL at {log._reads.address}: {problem}")
        await log.head()
        return log

    async def head(self) -> Head:
        """See EventLog. If an append is in doubt, end its process and raise the fence."""
        doubts = self._doubts
        await self._end_abandoned()
        if doubts != self._doubts_settled:
            await self._reads.read(_RAISE_FENCE, (self.bus, self._genesis))
        ((number, chain_hash, first, fence, losses, *stored),) = await self._reads.read(_HEAD, (self.bus,))
        head = empty_head(self.bus) if number is None else Head(number, bytes(chain_hash))
        self._check_stored(head, first or 1, *stored)
        self.lost_head = max((Head(int.from_bytes(loss[:8]), loss[8:]) for loss in map(bytes, losses or ())), default=None)
        self._fence = fence or 0
        self._confirmed = min(self._confirmed, head.sequence_number)  # a failover may have lost confirmed events
        self._doubts_settled = doubts
        return head

    async def _end_abandoned(self) -> None:
        """End the processes of appends in doubt: one of them may wait for standbys, and hold the lock of its bus, without an end."""
        server = self._connections.server
        abandoned = list(server.abandoned)
        if abandoned:
            pids, started = [backend.pid for backend in abandoned], [backend.started for backend in abandoned]
            await self._reads.read(_END_BACKENDS, (pids, started))
            server.abandoned = [backend for backend in server.abandoned if backend not in abandoned]

    def _check_stored(self, head: Head, first: int, stored_first: int | None, stored_last: int | None, stored_hash: bytes | None) -> None:
        """Raise LogCorruptError unless the first and the last stored event are those of the head."""
        wrong = ""
        if (stored_last or 0) != head.sequence_number:
            wrong = f"the last event is {stored_last or 'missing'}"
        elif stored_hash is not None and bytes(stored_hash) != head.chain_hash:
            wrong = f"the last event has chain hash {bytes(stored_hash).hex()[:8]}…"
        elif stored_first is not None and stored_first != first:
            wrong = f"the first event is {stored_first} instead of {first}"
        if wrong:
            raise LogCorruptError(f"the head of bus {self.bus} is {describe(head)}, but {wrong} in gavel.events; restore the database")

    async def append(
        self, expected: Head, entries: Sequence[Entry], recorded_at_ms: int, idempotency_keys: Sequence[str], date_ms: int | None = None
    ) -> None:
        """See EventLog. One round trip."""
        check_sequence(expected, entries)
        arguments = self._append_arguments(entries, recorded_at_ms, idempotency_keys, date_ms)
        for _ in range(FENCED_MAX):
            row, is_replicated = await self._run_append((self.bus, *expected, self._fence, self._genesis, *arguments))
            status, number, chain_hash, *known_ids = row
            if status != "FENCED":
                break
            # Another server has raised the fence. This append was refused, so sending it again is safe.
            self._fence = number
        if status == "UNTIMELY" and date_ms is not None:
            raise UntimelyError(date_ms, number)
        if status != "OK":
            raise self._refusal(expected, status, Head(number, bytes(chain_hash)), known_ids, idempotency_keys)
        last = entries[-1].sequence_number
        self._announcements.announce(self.bus, last)
        self._note_confirmed(last, is_replicated=is_replicated)

    async def _run_append(self, arguments: tuple[Any, ...]) -> tuple[tuple[Any, ...], bool]:
        try:
            (row,), is_replicated = await self._appends.write(_APPEND, arguments)
        except (LogUnavailableError, LogCorruptError):
            raise
        except BaseException:
            self._doubts += 1  # no reply, or the wait for it was cancelled
            raise
        return row, is_replicated

    def _append_arguments(
        self, entries: Sequence[Entry], recorded_at_ms: int, idempotency_keys: Sequence[str], date_ms: int | None
    ) -> tuple[Any, ...]:
        window = window_days(recorded_at_ms, self.idempotency_window_ms)
        return (
            [entry.envelope for entry in entries],
            [entry.chain_hash for entry in entries],
            [_sha256(entry.event_id) for entry in entries],
            [entry.decision_sequence_number for entry in entries],
            [entry.work for entry in entries],
            max(entry.sequence_number if entry.deploys_grants else 0 for entry in entries),
            any(entry.accepts_loss for entry in entries),
            recorded_at_ms // DAY_MS,
            window.start,
            [_sha256(event_id) for event_id in idempotency_keys] or None,
            *timely_range_ms(date_ms),
            REQUESTS_MAX,
        )

    def _refusal(self, expected: Head, status: str, head: Head, row: Sequence[Any], idempotency_keys: Sequence[str]) -> Exception:
        if status == "MOVED":
            return HeadMovedError(expected, head)
        if status == "LOST":
            return LossReportedError(self.bus)
        if status == "TAKEN":
            return EventIdTakenError(_id_entries(idempotency_keys, zip(*row, strict=True)))
        if status == "CORRUPT":
            return LogCorruptError(f"bus {self.bus}: gavel.events lacks the event of the head, {describe(head)}; nothing was appended")
        return LogUnavailableError(f"PostgreSQL at {self._reads.address} lost the replies to {FENCED_MAX} servers in a row; try again")

    def _note_confirmed(self, sequence_number: int, *, is_replicated: bool) -> None:
        """Note that the standbys have the events up to this number.

        Raises NotReplicatedError if the commit did not wait for enough of them.
        """
        standbys, replicas = self._connections.server.synchronous_standbys, self._acknowledgement.replicas
        if not is_replicated or standbys < replicas:
            self._unconfirmed = max(self._unconfirmed, sequence_number)
            wanted = max(standbys, replicas)
            why = f"it waits for {standbys}" if standbys < wanted else f"they did not within {self._connections.timeout_ms} ms"
            raise NotReplicatedError(
                f"events up to {sequence_number} are in the log, but {wanted} standbys of PostgreSQL at {self._reads.address} must confirm "
                f"them, and {why}"
            )
        self._confirmed = max(self._confirmed, sequence_number)

    def is_confirmed(self, sequence_number: int) -> bool:
        """See EventLog.

        An event that standbys must confirm stays unconfirmed until `confirm`, also after a failover to a server that waits for none.
        """
        if sequence_number <= self._confirmed:
            return True
        if self._acknowledgement.replicas > 0 or self._connections.server.synchronous_standbys > 0:
            self._unconfirmed = max(self._unconfirmed, sequence_number)
        return self._unconfirmed <= self._confirmed

    async def confirm(self, head: Head) -> None:
        """See EventLog. A commit on the same server waits for everything before it."""
        number = head.sequence_number
        if self.is_confirmed(number):
            return
        try:
            rows, is_replicated = await self._appends.write(_CONFIRM, (self.bus, *head))
        except OutcomeUnknownError as error:
            raise LogUnreachableError(str(error)) from error
        if not rows:
            raise LogUnavailableError(f"PostgreSQL at {self._reads.address} does not hold event {number} of bus {self.bus} any more")
        self._note_confirmed(number, is_replicated=is_replicated)

    async def read(self, from_sequence_number: int, to_sequence_number: int, limit: int = READ_LIMIT) -> list[Record]:
        """See EventLog."""
        first = max(from_sequence_number, 1)
        if to_sequence_number < first or limit < 1:
            return []
        rows = await self._reads.read(_READ, (self.bus, first, to_sequence_number, min(limit, READ_EVENTS_MAX), CHUNK_BYTES))
        records = [Record(number, bytes(envelope), bytes(chain_hash)) for number, envelope, chain_hash in rows]
        for expected, record in enumerate(records, records[0].sequence_number if records else 0):
            if record.sequence_number != expected:
                raise LogCorruptError(
                    f"event {expected} of bus {self.bus} is missing from gavel.events; restore it from an archive or a backup"
                )
        return records

    async def read_many(self, sequence_numbers: Sequence[int]) -> dict[int, Record]:
        """See EventLog."""
        if not sequence_numbers:
            return {}
        rows = await self._reads.read(_READ_MANY, (self.bus, list(sequence_numbers)))
        return {number: Record(number, bytes(envelope), bytes(chain_hash)) for number, envelope, chain_hash in rows}

    async def find(self, event_ids: Sequence[str], now_ms: int) -> dict[str, IdEntry]:
        """See EventLog."""
        if not event_ids:
            return {}
        window = window_days(now_ms, self.idempotency_window_ms)
        digests = [_sha256(event_id) for event_id in event_ids]
        return _id_entries(event_ids, await self._reads.read(_FIND, (self.bus, digests, window.start, window.stop - 1)))

    async def time_ms(self) -> int:
        """Return the clock of PostgreSQL."""
        ((time_ms,),) = await self._reads.read(_TIME)
        return int(time_ms)

    async def report_loss(self, lost_head: Head) -> None:
        """See EventLog."""
        await self._reads.read(_REPORT_LOSS, (self.bus, *lost_head))

    async def trim(self, before: int) -> None:
        """See EventLog. Each transaction removes TRIM_EVENTS_MAX, so that appends never wait for long."""
        first = 0
        while True:
            ((reached,),) = await self._reads.read(_TRIM, (self.bus, before, TRIM_EVENTS_MAX))
            if reached >= before or reached == first:
                return
            first = reached

    async def published_checkpoint(self) -> bytes | None:
        """See EventLog."""
        rows = await self._reads.read(_CHECKPOINT, (self.bus,))
        return bytes(rows[0][0]) if rows else None

    async def publish_checkpoint(self, note: bytes, previous: bytes | None) -> bool:
        """See EventLog."""
        if previous is None:
            return bool(await self._appends.read(_PUBLISH_FIRST, (note, self.bus)))
        return bool(await self._appends.read(_PUBLISH_NEXT, (note, self.bus, previous)))

    async def durability(self) -> list[str]:
        """See EventLog."""
        return volatility_reasons(await self._connections.checks.durability())

    async def asynchronous_replicas(self) -> int:
        """See StoredLog."""
        return (await self._connections.checks.durability()).asynchronous_standbys

    async def ensure_groups(self) -> None:
        """See EventLog."""
        await self.work.ensure_groups()

    async def close(self) -> None:
        """Close the connections, unless other logs share them."""
        if self._owns_connections:
            await self._announcements.close()
            await self._connections.close()


def _sha256(event_id: str) -> bytes:
    return hashlib.sha256(event_id.encode()).digest()


def _id_entries(event_ids: Sequence[str], rows: Iterable[Sequence[Any]]) -> dict[str, IdEntry]:
    """Return the entries of event_ids by rows of SHA-256, sequence number and that of the first decision."""
    event_id_of = {_sha256(event_id): event_id for event_id in event_ids}
    return {event_id_of[bytes(digest)]: IdEntry(*numbers) for digest, *numbers in rows}
