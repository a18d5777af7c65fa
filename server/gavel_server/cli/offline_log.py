"""A log without a server: the Redis of a data directory, started while it is read, or any store by URL.

If a server runs on the directory, its Redis is read instead.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

from gavel_server.cli.errors import CommandError, InvalidInputError
from gavel_server.log.acknowledgement import Acknowledgement
from gavel_server.log.protocol import EventLog
from gavel_server.log.redis.embedded import EmbeddedRedis
from gavel_server.log.redis.errors import DataDirectoryInUseError
from gavel_server.log.stores import StoredLog, connect_log
from gavel_server.log.urls import mask_url
from gavel_server.process.logging import log_to_stderr

# Redis's append-only log: a file up to 6.2, a directory from 7.0 on.
_APPEND_ONLY: Final = ("appendonly.aof", "appendonlydir")


@asynccontextmanager
async def open_log(
    data: Path,
    url: str,
    bus: str,
    archive: str = "",
    acknowledgement: Acknowledgement | None = Acknowledgement(),  # noqa: B008  # immutable
) -> AsyncIterator[EventLog]:
    """Yield the log of `bus` in the store at `url`; "": in the Redis of the data directory.

    It reads across the seam with `archive`, if one is given, and confirms events as `acknowledgement` says. None: nobody knows how the
    servers confirm events, so a store with replicas is refused. Raises CommandError, LogError.
    """
    known = acknowledgement or Acknowledgement()
    async with open_stored(url, bus, mask_url(url), known) if url else open_directory(data, bus, known) as log:
        if acknowledgement is None:
            await _check_replicas(log)
        if not archive:
            yield log
            return
        from gavel_server.archive.archives import join_archive

        yield await join_archive(log, archive)


@asynccontextmanager
async def open_target(data: Path, url: str, bus: str) -> AsyncIterator[EventLog]:
    """Yield the log of `bus`, which may be empty, to write to it; in a data directory no server may run. Raises CommandError, LogError."""
    log_to_stderr()
    async with AsyncExitStack() as stack:
        if not url:
            url = (await stack.enter_async_context(EmbeddedRedis(data))).url
        try:
            log = await connect_log(url, bus)
        except ValueError as error:
            raise InvalidInputError(str(error)) from error
        stack.push_async_callback(log.close)
        yield log


@asynccontextmanager
async def open_directory(
    data: Path,
    bus: str,
    acknowledgement: Acknowledgement = Acknowledgement(),  # noqa: B008  # immutable
) -> AsyncIterator[StoredLog]:
    """Yield the log of `bus` in a data directory. Raises CommandError, LogError."""
    if not any((data / name).exists() for name in _APPEND_ONLY):
        raise CommandError(
            f"there is no log in {data}; give the data directory of a server with --data, or a PostgreSQL or Redis with --log URL"
        )
    async with AsyncExitStack() as stack:
        embedded = EmbeddedRedis(data)
        try:
            await stack.enter_async_context(embedded)
            url = embedded.url
        except DataDirectoryInUseError as error:
            if error.url is None:
                raise
            url = error.url
        yield await stack.enter_async_context(open_stored(url, bus, str(data), acknowledgement))


@asynccontextmanager
async def open_stored(
    url: str,
    bus: str,
    place: str,
    acknowledgement: Acknowledgement = Acknowledgement(),  # noqa: B008  # immutable
) -> AsyncIterator[StoredLog]:
    """Yield the log of `bus` in the store at `url`; `place` names it in messages. Raises CommandError, LogError."""
    log_to_stderr()
    try:
        log = await connect_log(url, bus, acknowledgement)
    except ValueError as error:
        raise InvalidInputError(str(error)) from error
    try:
        if (await log.head()).sequence_number == 0:
            raise CommandError(f"bus {bus!r} has no events in {place}; name another one with --bus")
        yield log
    finally:
        await log.close()


async def _check_replicas(log: StoredLog) -> None:
    """Raise InvalidInputError if a failover may lose events of the log, and nobody says which of them are confirmed."""
    replicas = await log.asynchronous_replicas()
    if replicas:
        raise InvalidInputError(
            f"{mask_url(log.url)} has {replicas} replica(s), and a failover may lose events that they lack; give the servers' setting with "
            "--ack or GAVEL_ACK, e.g. --ack replicas:1, or --ack replicas:0 if the servers wait for none"
        )
