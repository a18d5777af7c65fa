"""`gavel archive`, `gavel backup`, `gavel restore`: a log's events in a directory or an object store, and back."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gavel_server.cli.errors import CommandError, InvalidInputError
from gavel_server.cli.options import BUS_DEFAULT, Bus, Debug, Log, log_location

if TYPE_CHECKING:
    from gavel_server.log.protocol import EventLog

To = Annotated[str, typer.Option("--to", metavar="DIR|URL", help="The archive: a directory, or s3://BUCKET/PATH.")]
Ack = Annotated[
    str | None,
    typer.Option(
        "--ack",
        envvar="GAVEL_ACK",
        metavar="replicas:N|aof:N",
        help="The servers' setting of this name: copy no event that fewer replicas have confirmed. Required if the Redis has replicas.",
    ),
]
Data = Annotated[Path | None, typer.Option(metavar="DIR", help="Data directory of the embedded Redis. Default: GAVEL_DATA, else .gavel.")]


def archive(
    to: To,
    days: Annotated[int, typer.Option("--after-days", min=0, metavar="N", help="Archive what is older.")] = 0,
    trim: Annotated[bool, typer.Option("--trim", help="Then remove the archived events from the log.")] = False,
    data: Data = None,
    log: Log = "",
    ack: Ack = None,
    bus: Bus = BUS_DEFAULT,
    debug: Debug = False,
) -> None:
    """Archive the complete segments of a log.

    Each segment is written, read back and verified before it counts. With --trim the log keeps only later events; from then on a server
    needs the archive (`archive` in its settings), and offline commands need --archive. A server with that setting archives by itself.
    """
    from gavel_server.archive.archive_run import archive_log
    from gavel_server.archive.segments import SEGMENT_BYTES, SEGMENT_EVENTS
    from gavel_server.cli.rendering import output
    from gavel_server.log.protocol import DAY_MS

    async def run() -> None:
        async with _open_log(data, log, bus, ack) as opened:
            archive_run = await archive_log(opened, _create_archive(to, bus), await opened.time_ms() - days * DAY_MS, trims=trim)
        log_start = f"; the log begins with event {archive_run.first_in_log}" if trim else ""
        output.print_line(f"archived {archive_run.segments} segments; the archive ends with event {archive_run.last}{log_start}")
        if not archive_run.segments:
            age = f", all of them older than {days} days" if days else ""
            output.print_note(f"gavel: no further segment is complete: one has {SEGMENT_EVENTS} events or {SEGMENT_BYTES >> 20} MiB{age}")

    _run(run)


def backup(
    to: To,
    data: Data = None,
    log: Log = "",
    ack: Ack = None,
    archive: Annotated[str, typer.Option(metavar="DIR|URL", help="The archive of the log, if that is not --to.")] = "",
    bus: Bus = BUS_DEFAULT,
    debug: Debug = False,
) -> None:
    """Back up a log, also while its server runs: its segments, and the events after them."""
    from gavel_server.archive.backups import write_backup
    from gavel_server.cli.rendering import output

    async def run() -> None:
        async with _open_log(data, log, bus, ack, archive or to) as opened:
            backup_run = await write_backup(opened, _create_archive(to, bus), await opened.time_ms())
        output.print_line(f"backed up {backup_run.head.sequence_number} events of bus {bus}, chain hash {backup_run.head.chain_hash.hex()}")

    _run(run)


def restore(
    from_: Annotated[str, typer.Option("--from", metavar="DIR|URL", help="The archive with the backup.")],
    data: Data = None,
    log: Log = "",
    bus: Bus = BUS_DEFAULT,
    prove: Annotated[bool, typer.Option("--prove", help="Then recompute the decisions of the restored log.")] = False,
    debug: Debug = False,
) -> None:
    """Build a bus from its newest backup, in an empty store or data directory.

    An interrupted restore goes on where it ended. Start a server on the log only when it is complete.

    Exit status with --prove: that of gavel replay.
    """
    from gavel_server.archive.backups import read_backup, restore_log
    from gavel_server.cli.commands.reads.replay import exit_status, read_verdict
    from gavel_server.cli.rendering import output

    status = 0
    location = log_location(data, log)

    async def run() -> None:
        nonlocal status
        from gavel_server.cli.offline_log import open_target
        from gavel_server.history.replay import verify

        source = _archive(from_, bus)
        backup = await read_backup(source)
        async with open_target(*location, bus) as opened:
            await restore_log(opened, source, backup, lambda number: None)
            output.print_line(f"restored {backup.head.sequence_number} events of bus {bus}, chain hash {backup.head.chain_hash.hex()}")
            if prove:
                verdict = await read_verdict(verify(opened))
                output.print_line(verdict.message)
                status = exit_status(verdict)

    _run(run)
    raise typer.Exit(status)


def _archive(url: str, bus: str) -> Any:
    from gavel_server.archive.archive import Archive
    from gavel_server.archive.storage import open_storage

    return Archive(open_storage(url, bus), bus)


def _create_archive(url: str, bus: str) -> Any:
    """Return an archive to write to, in a directory that may be new. Raises ArchiveError."""
    from gavel_server.archive.storage import create_directory

    create_directory(url)
    return _archive(url, bus)


def _open_log(data: Path | None, log: str, bus: str, ack: str | None, archive: str = "") -> AbstractAsyncContextManager[EventLog]:
    """Return the log, which confirms events by the servers' `ack`; None: none is given. Raises InvalidInputError."""
    from gavel_server.cli import offline_log
    from gavel_server.log.acknowledgement import Acknowledgement

    try:
        acknowledgement = None if ack is None else Acknowledgement.parse(ack)
    except ValueError as error:
        raise InvalidInputError(f"--ack: {error}") from error
    return offline_log.open_log(*log_location(data, log), bus, archive, acknowledgement)


def _run(run: Callable[[], Coroutine[Any, Any, None]]) -> None:
    import asyncio

    from gavel_server.archive.storage import ArchiveError
    from gavel_server.log.protocol import LogError

    try:
        asyncio.run(run())
    except (ArchiveError, LogError) as error:
        raise CommandError(str(error)) from error
