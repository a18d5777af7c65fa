"""`gavel export`: a log for other systems, in files that a later run continues."""

from __future__ import annotations

import time
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from gavel_server.cli.connection import command_error, open_client
from gavel_server.cli.errors import EXIT_INTERRUPTED, CommandError, InvalidInputError, OutputClosedError
from gavel_server.cli.options import BUS_DEFAULT, SERVER_DEFAULT, WAIT_SECONDS_MAX, Bus, Debug, Server, check_int64

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncGenerator

    from gavel.v1.event_service_pb2 import SubscribeEventsResponse
    from gavel_client import GavelClient

    from gavel_server.export.targets import Cursor, Target

# Events between two commits, at most.
BATCH_EVENTS_MAX: Final = 10_000
INTERVAL_SECONDS_DEFAULT: Final = 10.0
RETRY_SECONDS: Final = 1.0


class Format(Enum):
    """A format, by its name on the command line."""

    JSONL = "jsonl"
    PARQUET = "parquet"
    CLOUDEVENTS = "cloudevents"
    OCSF = "ocsf"


def export(
    format_: Annotated[Format, typer.Option("--format", help="The format of the events.")] = Format.JSONL,
    to: Annotated[
        Path | None, typer.Option(metavar="PATH", help="The file, or for parquet the directory. Default: standard output.")
    ] = None,
    cursor: Annotated[
        Path | None, typer.Option(metavar="FILE", dir_okay=False, help="Where the export remembers how far it has come, to resume.")
    ] = None,
    from_sequence_number: Annotated[
        int, typer.Option("--from", min=0, callback=check_int64, metavar="N", help="First event of a new export.")
    ] = 1,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with new events until interrupted.")] = False,
    interval: Annotated[
        float,
        typer.Option(
            min=0.1, max=WAIT_SECONDS_MAX, metavar="SECONDS", help="With --follow: the longest time until an event is in the file."
        ),
    ] = INTERVAL_SECONDS_DEFAULT,
    server: Server = SERVER_DEFAULT,
    bus: Bus = BUS_DEFAULT,
    debug: Debug = False,
) -> None:
    """Export a log for other systems.

    The formats jsonl (envelopes as protobuf JSON), cloudevents (CloudEvents 1.0) and ocsf (OCSF 1.3, class API Activity) have one event a
    line. The format parquet is a directory of files. With --cursor, a run continues where the last one ended, also after it was killed, and
    a file or directory has each event once.
    """
    from gavel_server.export.targets import LineFile, ParquetDirectory, StandardOutput

    target: Target
    if format_ is Format.PARQUET:
        if to is None:
            raise InvalidInputError("parquet is exported to a directory; name it with --to DIR")
        _need_pyarrow()
        target = ParquetDirectory(to)
    else:
        target = StandardOutput(format_.value) if to is None else LineFile(format_.value, to)
    _run(target, format_.value, cursor, from_sequence_number, server, bus, interval if follow else None)


def _run(target: Target, format_name: str, cursor_path: Path | None, first: int, server: str, bus: str, interval: float | None) -> None:
    import asyncio
    from contextlib import nullcontext

    from gavel_client import GavelError

    from gavel_server.cli.consumer import stop_on_signal
    from gavel_server.export.targets import Cursor, ExportError, lock_cursor, read_cursor, write_cursor

    async def run() -> None:
        stop = asyncio.Event()
        stop_on_signal(stop.set)
        async with open_client(server, bus) as client:
            status = await client.get_status()
            new = Cursor(bus, format_name, status.bus_incarnation, target.name, max(first - 1, 0))
            known = None if cursor_path is None else read_cursor(cursor_path, new)
            target.resume(known or new, is_new=known is None)
            begin = (known or new)._replace(target=target.name)
            if begin != known and cursor_path is not None:
                write_cursor(cursor_path, begin)  # a run that is killed before its first commit can be repeated
            last = None if interval is not None else max(status.head_sequence_number, begin.sequence_number)
            await _Export(client, target, begin, cursor_path, stop).run(last, interval or INTERVAL_SECONDS_DEFAULT)

    try:
        with lock_cursor(cursor_path) if cursor_path is not None else nullcontext():
            asyncio.run(run())
    except GavelError as error:
        if error.reason == "HISTORY_REPLACED":
            raise CommandError(f"{error.message}. Export them to another file and cursor; this export has events that are lost") from error
        raise command_error(error, server, bus) from error
    except ExportError as error:
        raise CommandError(str(error)) from error
    except BrokenPipeError as error:
        raise OutputClosedError from error


class _Export:
    """One run of an export."""

    def __init__(self, client: GavelClient, target: Target, cursor: Cursor, cursor_path: Path | None, stop: asyncio.Event) -> None:
        from gavel.v1.event_service_pb2 import Checkpoint

        self._client = client
        self._target = target
        self._cursor = cursor
        self._cursor_path = cursor_path
        self._stop = stop
        self._reached = cursor.sequence_number
        self._last_read = Checkpoint(sequence_number=cursor.sequence_number, chain_hash=bytes.fromhex(cursor.chain_hash))

    async def run(self, last: int | None, interval: float) -> None:
        """Export up to event `last`; None: until `stop` is set. Commit at the end, after BATCH_EVENTS_MAX events, and every `interval`.

        Raises CommandError if `stop` is set before event `last`.
        """
        import asyncio

        if last == self._reached and self._cursor.chain_hash:
            # Without new events, the last one is read again: that it comes proves that the log still has it. New events prove it, too: the
            # server looks for `last_read` before it sends them. The log may begin with the first of them, so the last one is not read then.
            self._reached -= 1
        committed_at = time.monotonic()
        stopped = asyncio.ensure_future(self._stop.wait())
        responses = self._responses(last is None)
        pending: asyncio.Future[SubscribeEventsResponse] | None = None
        try:
            while not self._stop.is_set() and (last is None or self._reached < last):
                pending = pending or asyncio.ensure_future(anext(responses))
                await asyncio.wait((pending, stopped), timeout=interval, return_when=asyncio.FIRST_COMPLETED)
                if pending.done():
                    self._take(pending.result())
                    pending = None
                is_full = self._reached - self._cursor.sequence_number >= BATCH_EVENTS_MAX
                if is_full or time.monotonic() - committed_at >= interval:
                    self._commit()
                    committed_at = time.monotonic()
            self._commit()
            if last is not None and self._reached < last:
                message = f"interrupted after event {self._cursor.sequence_number} of {last}; with --cursor, the next run goes on there"
                raise CommandError(message, EXIT_INTERRUPTED)
        finally:
            stopped.cancel()
            if pending is not None:
                pending.cancel()
                await asyncio.wait((pending,))
            await responses.aclose()

    def _take(self, response: SubscribeEventsResponse) -> None:
        from gavel_client import checkpoint_after

        if response.HasField("envelope") and response.envelope.sequence_number > self._cursor.sequence_number:
            self._target.add(response.envelope)
        self._last_read = checkpoint_after(response)
        self._reached = self._last_read.sequence_number

    def _commit(self) -> None:
        from gavel_server.export.targets import write_cursor

        if self._reached <= self._cursor.sequence_number:
            return
        size = self._target.commit()
        self._cursor = self._cursor._replace(sequence_number=self._reached, chain_hash=self._last_read.chain_hash.hex(), size_bytes=size)
        if self._cursor_path is not None:
            write_cursor(self._cursor_path, self._cursor)

    async def _responses(self, is_endless: bool) -> AsyncGenerator[SubscribeEventsResponse, None]:
        """Yield the events after `reached`; if endless, also after the server was away, or after the credentials were replaced."""
        import asyncio

        from gavel_client import GavelError
        from gavel_client.rpc.backoff import AcceptedStream

        while True:
            accepted = AcceptedStream()
            try:
                last_read = self._last_read if self._last_read.chain_hash else None
                async for response in self._client.subscribe_events(from_sequence_number=self._reached + 1, last_read=last_read):
                    accepted.note_response()
                    yield response
            except GavelError as error:
                if not is_endless or not accepted.may_continue(error):
                    raise
            await asyncio.sleep(RETRY_SECONDS)


def _need_pyarrow() -> None:
    from importlib.util import find_spec

    if find_spec("pyarrow") is None:
        raise CommandError("--format parquet needs the package pyarrow; install gavel-arbiter[parquet]")
