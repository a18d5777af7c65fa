"""Connections to one PostgreSQL that send each statement at most once.

psycopg speaks the protocol. Each call has a deadline: the statement is then cancelled in the server, and if that is not answered either,
the connection is cut. A statement that waits for standbys has been committed when it is cancelled; PostgreSQL reports that as a warning.

After a failover, connections may lead to different servers. The timeline of a PostgreSQL grows with each promotion: a connection to an
older timeline than was seen before leads to a former primary, and is not used. Nor is one to a standby, which may lack the last events, if
it is for a server, or once the primary was seen. The log of a standby alone may be read offline.
"""

from __future__ import annotations

import asyncio
import logging
import os
import select
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, NamedTuple

import psycopg
import structlog
from psycopg.conninfo import conninfo_to_dict
from psycopg.types.numeric import Int8BinaryDumper

from gavel_server.log.postgresql.durability import STATEMENT, Durability, volatility
from gavel_server.log.postgresql.errors import describe, error_of, is_known_refusal
from gavel_server.log.protocol import LogUnavailableError, LogUnreachableError, LogVolatileError, OutcomeUnknownError
from gavel_server.log.urls import mask_url

# The oldest PostgreSQL that can hold a log.
SERVER_VERSION_MIN: Final = 140_000
TIMEOUT_MS_DEFAULT: Final = 5000
# Of one server, shared by its buses. A bus has one append at a time.
APPEND_CONNECTIONS_MAX: Final = 16
READ_CONNECTIONS_MAX: Final = 8
# How long a statement may take to end after it was cancelled.
CANCEL_SECONDS: Final = 1.0

# A read, or a step of work that does no harm if it is lost, need not wait for the disk.
_GREETING: Final = """
SELECT set_config('default_transaction_isolation', 'read committed', false), set_config('statement_timeout', %s, false),
  set_config('idle_session_timeout', '0', false), pg_backend_pid(),
  (SELECT backend_start FROM pg_stat_activity WHERE pid = pg_backend_pid()), (SELECT system_identifier FROM pg_control_system()),
  CASE WHEN pg_is_in_recovery() THEN 0 ELSE ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint END
"""
_ASYNCHRONOUS: Final = "SET synchronous_commit = off"
# The function in PostgreSQL that reports a wait for standbys that was cancelled after the commit.
_STANDBY_WAIT: Final = "SyncRepWaitForLSN"

# The exceptions of a lost or refused connection; RuntimeError is uvloop's for a socket that was closed.
CONNECTION_ERRORS: Final = (psycopg.Error, OSError, RuntimeError)

_LOG: Final = structlog.get_logger(__name__)
# Without a handler, as in the process of the index, Python writes psycopg's warnings to stderr as they are, between structured lines.
logging.getLogger("psycopg").addHandler(logging.NullHandler())
Row = tuple[Any, ...]
Parameters = Sequence[Any] | Mapping[str, Any]
Statement = tuple[str, Parameters]


class Backend(NamedTuple):
    """The process of PostgreSQL that serves a connection."""

    pid: int
    started: Any


class Server:
    """The state of the PostgreSQL behind the connections of a log, shared by their pools."""

    def __init__(self, *, needs_primary: bool) -> None:
        self._needs_primary = needs_primary
        # Idle connections that answered last before this moment, by the loop's clock, are closed instead of used.
        self.trusted_since = 0.0
        # For how many standbys commits wait, when it was last read.
        self.synchronous_standbys = 0
        # Processes with an append whose outcome is unknown.
        self.abandoned: list[Backend] = []
        self._system = 0
        self._timeline = 0

    def distrust(self) -> None:
        """Use no connection again that is idle now."""
        self.trusted_since = asyncio.get_running_loop().time()

    def note_timeline(self, system: int, timeline: int, address: str) -> None:
        """Note where a new connection leads; timeline 0: to a standby. Raises LogUnreachableError if it may lack events."""
        if not timeline and (self._needs_primary or system == self._system):
            raise LogUnreachableError(
                f"PostgreSQL at {address} is a standby, which may lack the last events; name the primary, or all hosts and "
                "target_session_attrs=read-write"
            )
        if timeline and system == self._system and timeline < self._timeline:
            raise LogUnreachableError(
                f"PostgreSQL at {address} is a former primary on timeline {timeline}: a standby was promoted to timeline {self._timeline}; "
                "stop the former primary, or make it a standby"
            )
        if timeline and (system, timeline) != (self._system, self._timeline):
            if self._timeline:
                _LOG.warning("log.promoted", timeline=timeline, before=self._timeline, is_same_system=system == self._system)
                self.distrust()
            self._system, self._timeline = system, timeline


class Session:
    """A connection, its process in PostgreSQL, and whether a commit on it ended before standbys had it."""

    def __init__(self, connection: psycopg.AsyncConnection[Row]) -> None:
        self.connection = connection
        self.backend = Backend(0, None)
        self.is_unreplicated = False
        self.answered_at = 0.0
        connection.add_notice_handler(self._note)

    def _note(self, diagnostic: psycopg.errors.Diagnostic) -> None:
        self.is_unreplicated = self.is_unreplicated or diagnostic.source_function == _STANDBY_WAIT

    @property
    def is_usable(self) -> bool:
        """Whether the idle connection is open and carries nothing to read: both the end and a reply make it readable."""
        if self.connection.closed:
            return False
        poll = select.poll()
        poll.register(self.connection.fileno(), select.POLLIN)
        return not poll.poll(0)

    def cut(self) -> None:
        """End the connection under a call that waits for it."""
        with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(self.connection.fileno())) as copy:
            copy.shutdown(socket.SHUT_RDWR)


class _Deadline:
    """Cancels the statement of a session after a time, and cuts the connection if that does not end it."""

    def __init__(self, session: Session, seconds: float) -> None:
        self.has_passed = False
        self._session = session
        self._cancellation: asyncio.Task[None] | None = None
        self._timer = asyncio.get_running_loop().call_later(seconds, self._cancel)

    def _cancel(self) -> None:
        self.has_passed = True
        self._cancellation = asyncio.create_task(self._session.connection.cancel_safe(timeout=CANCEL_SECONDS))
        self._timer = asyncio.get_running_loop().call_later(CANCEL_SECONDS, self._session.cut)

    async def end(self) -> None:
        """Stop waiting."""
        self._timer.cancel()
        if self._cancellation is not None:
            self._cancellation.cancel()
            await asyncio.gather(self._cancellation, return_exceptions=True)


class ConnectionPool:
    """Up to `connections_max` connections to the PostgreSQL at `url`; a call waits for a free one.

    `timeout_ms` bounds each of waiting, connecting and the call itself. `appends`: commits wait for the disk and for the standbys that
    PostgreSQL is configured for. `accept_volatile`: also use a PostgreSQL that may lose acknowledged events for them.
    """

    def __init__(
        self, url: str, timeout_ms: int, connections_max: int, server: Server, *, appends: bool = False, accept_volatile: bool = True
    ) -> None:
        self.address = mask_url(url)
        self._url = url
        self._server = server
        self._appends = appends
        self._accept_volatile = accept_volatile
        self._timeout_seconds = timeout_ms / 1000
        self._free = asyncio.Semaphore(connections_max)
        self._connections_max = connections_max
        self._idle: list[Session] = []
        self._closed = False

    async def read(self, statement: str, parameters: Parameters = ()) -> list[Row]:
        """Run a statement that may safely run without its reply arriving; return its rows.

        Raises LogUnavailableError, LogCorruptError.
        """
        return (await self._exchange([(statement, parameters)]))[0]

    async def read_all(self, *statements: Statement) -> list[Row]:
        """Run statements of this kind in one transaction and one round trip; return the rows of the last one."""
        return (await self._exchange(statements))[0]

    async def write(self, statement: str, parameters: Parameters) -> tuple[list[Row], bool]:
        """Run a statement that changes data. Return its rows, and whether the standbys that its commit waits for have confirmed it.

        Raises LogUnavailableError if nothing was or will be written, OutcomeUnknownError if no reply came, LogCorruptError.
        """
        return await self._exchange([(statement, parameters)], is_write=True)

    async def close(self) -> None:
        """Close the connections; those in use close after their call. Later calls raise LogUnavailableError."""
        self._closed = True
        while self._idle:
            await self._idle.pop().connection.close()

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[psycopg.AsyncConnection[Row]]:
        """Yield a new connection, outside the pool. Raises LogUnavailableError."""
        session = await self._connect()
        try:
            yield session.connection
        finally:
            await session.connection.close()

    async def _exchange(self, statements: Sequence[Statement], *, is_write: bool = False) -> tuple[list[Row], bool]:
        await self._acquire()
        try:
            session = await self._session()
            is_reusable = False
            try:
                rows, is_reusable = await self._run(session, statements, is_write=is_write)
                return rows, not session.is_unreplicated
            finally:
                if is_reusable and not session.is_unreplicated and not self._closed:
                    session.answered_at = asyncio.get_running_loop().time()
                    self._idle.append(session)
                else:
                    await session.connection.close()
        finally:
            self._free.release()

    async def _run(self, session: Session, statements: Sequence[Statement], *, is_write: bool) -> tuple[list[Row], bool]:
        """Return the rows, and whether the connection can be used again: a cancellation under way would end another statement."""
        deadline = _Deadline(session, self._timeout_seconds)
        try:
            return await _execute(session.connection, statements), not deadline.has_passed
        except CONNECTION_ERRORS as error:
            if is_known_refusal(error):
                if deadline.has_passed:
                    raise LogUnreachableError(self._silence()) from None
                raise error_of(error, self.address) from None
            self._server.distrust()
            reason = self._silence() if deadline.has_passed else f"no answer from PostgreSQL at {self.address}: {describe(error)}"
            if is_write:
                self._server.abandoned.append(session.backend)
                raise OutcomeUnknownError(reason) from None
            raise LogUnreachableError(reason) from None
        except BaseException:
            # Cancelled between statement and reply.
            if is_write:
                self._server.abandoned.append(session.backend)
            raise
        finally:
            await deadline.end()

    def _silence(self) -> str:
        return f"no answer from PostgreSQL at {self.address}: no reply within {self._timeout_seconds:g} s"

    async def _acquire(self) -> None:
        try:
            async with asyncio.timeout(self._timeout_seconds):
                await self._free.acquire()
        except TimeoutError:
            message = f"all {self._connections_max} connections to PostgreSQL at {self.address} wait for its answers"
            raise LogUnreachableError(message) from None

    async def _session(self) -> Session:
        if self._closed:
            raise LogUnavailableError(f"the connection to PostgreSQL at {self.address} was closed")
        while self._idle:
            session = self._idle.pop()
            if session.answered_at > self._server.trusted_since and session.is_usable:
                return session
            await session.connection.close()
        return await self._connect()

    async def _connect(self) -> Session:
        try:
            async with asyncio.timeout(self._timeout_seconds):
                connection = await psycopg.AsyncConnection.connect(self._url, autocommit=True)
                try:
                    session = Session(connection)
                    await self._greet(session)
                    return session
                except BaseException:
                    await connection.close()
                    raise
        except TimeoutError:
            raise LogUnreachableError(f"cannot connect to PostgreSQL at {self.address} within {self._timeout_seconds:g} s") from None
        except CONNECTION_ERRORS as error:
            raise error_of(error, self.address) from None

    async def _greet(self, session: Session) -> None:
        """Prepare a new connection. Raises LogUnavailableError if it may not be used."""
        connection = session.connection
        connection.adapters.register_dumper(int, Int8BinaryDumper)
        version = connection.info.server_version
        if version < SERVER_VERSION_MIN:
            raise LogUnavailableError(
                f"PostgreSQL at {self.address} is version {version // 10_000}; Gavel needs {SERVER_VERSION_MIN // 10_000} or later"
            )
        greeting = (_GREETING, (str(int(self._timeout_seconds * 1000)),))
        ((*_, pid, started, system, timeline),) = await _execute(connection, [greeting])
        session.backend = Backend(pid, started)
        self._server.note_timeline(system, timeline, self.address)
        if not self._appends:
            await connection.execute(_ASYNCHRONOUS)
            return
        durability = self._note(await _execute(connection, [(STATEMENT, ())]))
        problem = "" if self._accept_volatile else volatility(durability)
        if problem:
            raise LogVolatileError(f"PostgreSQL at {self.address}: {problem}")

    async def durability(self) -> Durability:
        """Return the settings on which the durability of appends depends. Raises LogUnavailableError, LogCorruptError."""
        return self._note(await self.read(STATEMENT))

    def _note(self, rows: list[Row]) -> Durability:
        durability = Durability(*rows[0])
        self._server.synchronous_standbys = durability.synchronous_standbys
        return durability


class Connections:
    """The connections that the logs in one PostgreSQL share. Appends have their own, so that they never wait for reads.

    Unless `accept_volatile`, a connection is used for appends only if the PostgreSQL at its end keeps acknowledged events: after a failover
    it may be another one, with other settings. `needs_primary`: never use a standby. Raises ValueError for an invalid URL.
    """

    def __init__(
        self, url: str, timeout_ms: int = TIMEOUT_MS_DEFAULT, *, accept_volatile: bool = True, needs_primary: bool = False
    ) -> None:
        self.url = check_url(url)
        self.timeout_ms = timeout_ms
        self.server = Server(needs_primary=needs_primary)
        self.appends = ConnectionPool(url, timeout_ms, APPEND_CONNECTIONS_MAX, self.server, appends=True, accept_volatile=accept_volatile)
        self.reads = ConnectionPool(url, timeout_ms, READ_CONNECTIONS_MAX, self.server)
        self.watch = ConnectionPool(url, timeout_ms, 1, self.server)
        # Its settings are those of appends, also where appends are refused for them.
        self.checks = ConnectionPool(url, timeout_ms, 1, self.server, appends=True)

    async def close(self) -> None:
        """Close the connections. Later calls raise LogUnavailableError."""
        await self.watch.close()
        await self.checks.close()
        await self.appends.close()
        await self.reads.close()


async def _execute(connection: psycopg.AsyncConnection[Row], statements: Sequence[Statement]) -> list[Row]:
    if len(statements) == 1:
        ((statement, parameters),) = statements
        cursor = await connection.execute(statement, parameters, binary=True)
    else:
        async with connection.pipeline(), connection.transaction():
            for statement, parameters in statements:
                cursor = await connection.execute(statement, parameters, binary=True)
    return await cursor.fetchall() if cursor.description else []


def check_url(url: str) -> str:
    """Return the URL if it is a valid URL of a PostgreSQL. Raises ValueError, with the password masked."""
    try:
        ports = str(conninfo_to_dict(url).get("port") or "").split(",")
        if not all(port.isdecimal() for port in ports if port):
            raise psycopg.ProgrammingError("invalid port")
    except psycopg.Error:
        # The library's message may quote part of the password.
        raise ValueError(
            f"the PostgreSQL URL {mask_url(url)} is malformed; use postgresql://user@host:5432/database, and percent-encode special "
            "characters"
        ) from None
    return url
