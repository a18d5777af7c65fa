"""The archives of a server: one for each bus of its Redis, filled on a schedule."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import structlog

from gavel_server.archive.archive import Archive
from gavel_server.archive.archive_run import archive_log, first_number
from gavel_server.archive.archived_log import ArchivedLog
from gavel_server.archive.segments import check_packages
from gavel_server.archive.storage import ArchiveError, ArchiveUnreachableError, create_directory, is_directory_missing, open_storage
from gavel_server.log import EventLog, LogError, LogUnavailableError
from gavel_server.log.acknowledgement import Acknowledgement
from gavel_server.log.protocol import DAY_MS

ROUND_SECONDS: Final = 60.0

_LOG: Final = structlog.get_logger(__name__)


class Logs(Protocol):
    """The logs of all buses; `RedisLogs` has it."""

    async def names(self) -> list[str]:
        """Return the names of the buses that have a log."""

    async def open(self, bus: str, *, acknowledgement: Acknowledgement) -> EventLog:
        """Return the log of a bus. It confirms events as `acknowledgement` says."""

    async def envelope(self, bus: str, sequence_number: int) -> bytes | None:
        """Return one event of a log; None: the log does not hold it."""


class Archives:
    """Archives and trims every log of a store, whether its bus is open in this process or not."""

    def __init__(self, url: str, days: int, logs: Logs, acknowledgement: Acknowledgement) -> None:
        """`url` is as for `open_storage`. Events that are older than `days`, and confirmed by `acknowledgement`, leave the logs."""
        self._acknowledgement: Final = acknowledgement
        self._url: Final = url
        self._days: Final = days
        self._logs: Final = logs
        self._opened: dict[str, Archive] = {}

    async def run_forever(self, now_ms: Callable[[], int]) -> None:
        """Archive events that are old enough, for ever. Failures are logged and tried again; nothing is trimmed then."""
        while True:
            try:
                buses = await self._logs.names()
                await self._create_directory(buses)
                for bus in buses:
                    await self._archive(bus, now_ms())
            except (ArchiveError, LogError) as error:
                _LOG.warning("archive.failed", problem=str(error))
            await asyncio.sleep(ROUND_SECONDS)

    async def envelope(self, bus: str, sequence_number: int) -> bytes | None:
        """Return one event of a log or its archive; None: neither holds it. Raises LogUnavailableError."""
        envelope = await self._logs.envelope(bus, sequence_number)
        if envelope is not None:
            return envelope
        try:
            archive = await self._archive_of(bus)
            record = (await archive.read_many([sequence_number])).get(sequence_number)
        except ArchiveError as error:
            raise LogUnavailableError(str(error)) from error
        return None if record is None else record.envelope

    async def _archive_of(self, bus: str) -> Archive:
        if bus not in self._opened:
            self._opened[bus] = await open_archive(self._url, bus)
        return self._opened[bus]

    async def _create_directory(self, buses: Sequence[str]) -> None:
        """Create the directory of the archives if it is missing, unless a log has been trimmed: then it existed, and is not mounted."""
        if await asyncio.to_thread(is_directory_missing, self._url):
            for bus in buses:
                if await first_number(await self._logs.open(bus, acknowledgement=self._acknowledgement)) > 1:
                    return
            await asyncio.to_thread(create_directory, self._url)

    async def _archive(self, bus: str, now_ms: int) -> None:
        try:
            archive = await self._archive_of(bus)
            log = await self._logs.open(bus, acknowledgement=self._acknowledgement)
            done = await archive_log(log, archive, now_ms - self._days * DAY_MS, trims=True)
        except (ArchiveError, LogError) as error:
            _LOG.warning("archive.failed", bus=bus, problem=str(error), note="nothing is trimmed; it is tried again")
            return
        finally:
            if bus in self._opened:
                self._opened[bus].forget_segments()  # those of a thousand buses would fill the memory
        if done.segments:
            _LOG.info("archive.written", bus=bus, segments=done.segments, last=done.last, first_in_log=done.first_in_log)


async def join_archive(log: EventLog, url: str) -> EventLog:
    """Return a log with the events of its archive; `url` "": the log alone. Raises LogError.

    A directory or object store that does not answer, or is missing, is asked again when an event is read that only it may have.
    """
    if not url:
        return log
    try:
        archive = _new_archive(url, log.bus)
        try:
            await archive.refresh()
        except ArchiveUnreachableError as error:
            if await first_number(log) > 1:
                _LOG.warning("archive.unreachable", bus=log.bus, problem=str(error), note="reads of archived events fail until it answers")
    except ArchiveError as error:
        raise LogUnavailableError(str(error)) from error
    return ArchivedLog(log, archive)


async def open_archive(url: str, bus: str) -> Archive:
    """Return the archive of a bus with the segments that it has now. Raises LogUnavailableError."""
    try:
        archive = _new_archive(url, bus)
        await archive.refresh()
    except ArchiveError as error:
        raise LogUnavailableError(str(error)) from error
    return archive


def _new_archive(url: str, bus: str) -> Archive:
    check_packages()
    return Archive(open_storage(url, bus), bus)
