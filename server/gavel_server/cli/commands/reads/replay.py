"""`gavel replay`: proves that a log's decisions follow from the log, or shows the first that does not.

It opens the log itself and needs no server, so it can also check a server that may be wrong.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, aclosing
from enum import Enum
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import typer

from gavel_server.cli import documents
from gavel_server.cli.connection import command_error, open_client
from gavel_server.cli.errors import CommandError, InvalidInputError
from gavel_server.cli.options import BUS_DEFAULT, Bus, Debug, Json, Log, check_address, check_int64, log_location
from gavel_server.cli.rendering import simulation
from gavel_server.cli.rendering.progress import REPLAY_PASSES, Passes
from gavel_server.history.replay_times import ReplayTimes

if TYPE_CHECKING:
    from gavel.v1.decision_pb2 import Engine
    from gavel.v1.replay_service_pb2 import ReplayVerdict, VerifyReplayResponse
    from gavel.v1.rule_set_service_pb2 import ReplayProgress, SimulateRuleSetResponse
    from gavel_rules.language.rule_set import CompiledRuleSet

    from gavel_server.history.snapshot_files import SnapshotFiles
    from gavel_server.log.protocol import EventLog
    from gavel_server.log.stores import StoredLog

PROCESSES_MAX: Final = 64
# Events of a log whose replay takes long enough for its rate to mean anything.
RATE_EVENTS_MIN: Final = 100_000
EXIT_DIVERGED: Final = 3
EXIT_DAMAGED: Final = 4
EXIT_VERSION_NOT_IMPLEMENTED: Final = 5


class EngineName(Enum):
    """A rule engine, by its name on the command line."""

    RETE = "rete"
    REFERENCE = "reference"


def replay(
    data: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Data directory of the embedded Redis. Default: GAVEL_DATA, else .gavel.")
    ] = None,
    log: Log = "",
    archive: Annotated[str, typer.Option(metavar="DIR|URL", help="The archive with the events that the log no longer has.")] = "",
    server: Annotated[
        str | None,
        typer.Option("--server", callback=check_address, metavar="HOST:PORT", help="Let a running server replay its own log instead."),
    ] = None,
    bus: Bus = BUS_DEFAULT,
    from_sequence_number: Annotated[
        int,
        typer.Option("--from", min=0, callback=check_int64, metavar="N", help="First event to compare. Earlier events build the state."),
    ] = 0,
    to_sequence_number: Annotated[
        int, typer.Option("--to", min=0, callback=check_int64, metavar="N", help="Last event to replay. 0: the head.")
    ] = 0,
    rules: Annotated[
        str, typer.Option("--rules", metavar="FILE", help="List the past decisions that this candidate rule set would change.")
    ] = "",
    snapshots: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Compare the state with the snapshots in a server's data directory. Default with --data: those in it.",
        ),
    ] = None,
    processes: Annotated[
        int,
        typer.Option(
            "--processes", min=1, max=PROCESSES_MAX, metavar="N", help="Recompute the parts of the log between snapshots on N processes."
        ),
    ] = 1,
    engine: Annotated[EngineName, typer.Option(help="The rule engine to decide with.")] = EngineName.RETE,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Prove a log by recomputing its decisions.

    Decisions and derived facts are recomputed from the log and compared with it.

    Exit status: 0 proved, 3 diverged, 4 log damaged, 5 arbiter version not implemented by this build.
    """
    import asyncio

    if archive and server is not None:
        raise InvalidInputError("a server knows its archive; give --archive with --data or --log only")
    if sum((data is not None, bool(log), server is not None)) > 1:
        raise InvalidInputError("--data, --log and --server name three different logs; give one of them")
    if server is not None and snapshots is not None:
        raise InvalidInputError("a server replays without snapshots; give --snapshots with --data or --log only")
    if rules and (engine is not EngineName.RETE or snapshots is not None):
        raise InvalidInputError("--rules lists the decisions of a candidate and proves no log; omit --engine and --snapshots")
    if processes > 1 and (server or archive or rules or from_sequence_number or to_sequence_number):
        raise InvalidInputError("--processes proves a whole log by itself; omit --server, --archive, --rules, --from and --to")
    source = _Source(data, log, server, archive, bus)
    interval = _Interval(from_sequence_number, to_sequence_number)
    if rules:
        _simulate(source, interval, rules, as_json)
        return
    times = ReplayTimes()
    verdict = asyncio.run(_show_progress(_verify(source, interval, engine, snapshots, processes, times), times))
    raise typer.Exit(print_verdict(verdict, as_json))


class _Source(NamedTuple):
    """The log to replay, as the options name it: a server's, or one that this process opens."""

    data: Path | None
    log: str
    server: str | None
    archive: str
    bus: str

    def open(self) -> AbstractAsyncContextManager[EventLog]:
        """Open the log and its archive in this process."""
        from gavel_server.cli import offline_log

        return offline_log.open_log(*log_location(self.data, self.log), self.bus, self.archive)

    def open_stored(self) -> AbstractAsyncContextManager[StoredLog]:
        """Open the log in this process, without an archive."""
        from gavel_server.cli import offline_log
        from gavel_server.log.urls import mask_url

        directory, url = log_location(self.data, self.log)
        return offline_log.open_stored(url, self.bus, mask_url(url)) if url else offline_log.open_directory(directory, self.bus)


class _Interval(NamedTuple):
    """The sequence numbers of the events to replay; `last` 0: to the head."""

    first: int
    last: int


def _simulate(source: _Source, interval: _Interval, rules: str, as_json: bool) -> None:
    """Print the past decisions that a candidate rule set would change."""
    import asyncio

    # Compile first, to report a mistake in the candidate before the log is opened.
    text = documents.read_rule_set(rules)
    candidate = documents.compile_document(text, rules)
    if source.server:
        responses = simulation.simulate_on_server(source.server, source.bus, rules, text, *interval)
    else:
        responses = _simulate_on_log(source.open(), candidate, *interval, as_json)
    asyncio.run(simulation.print_simulation(responses, candidate, as_json))


def _verify(
    source: _Source, interval: _Interval, engine_name: EngineName, snapshots: Path | None, processes: int, times: ReplayTimes
) -> AsyncGenerator[VerifyReplayResponse, None]:
    """Verify the log where it is. `snapshots` is a data directory; None: that of the log, if it has one."""
    from gavel.v1.decision_pb2 import Engine

    engine = Engine.Value(f"ENGINE_{engine_name.name}")
    if source.server:
        return _verify_on_server(source.server, source.bus, *interval, engine)
    directory, url = log_location(source.data, source.log)
    place = snapshots if url else snapshots or directory
    if processes == 1:
        return verify_log(source.open(), *interval, engine, _snapshot_files(place, source.bus), times)
    if place is None:
        raise InvalidInputError("--processes needs the snapshots of the bus: name a server's data directory with --snapshots DIR")
    return _verify_in_parallel(source.open_stored(), place, processes, engine, times)


def _snapshot_files(data: Path | None, bus: str) -> SnapshotFiles | None:
    from gavel_server.history.snapshot_files import SnapshotFiles

    return None if data is None else SnapshotFiles(data, bus)


async def verify_log(
    log_context: AbstractAsyncContextManager[EventLog],
    from_sequence_number: int,
    to_sequence_number: int,
    engine: Engine.ValueType,
    snapshots: SnapshotFiles | None = None,
    times: ReplayTimes | None = None,
) -> AsyncGenerator[VerifyReplayResponse, None]:
    """Verify the log that `log_context` opens, and tell `times` how long it took.

    Yield progress, then the verdict, also for a log too damaged to be opened.
    """
    from gavel.v1.replay_service_pb2 import VerifyReplayResponse

    from gavel_server.history.replay import ReplayRangeError, verdict_of, verify
    from gavel_server.log.protocol import LogCorruptError
    from gavel_server.process.garbage_collection import collect_less

    collect_less()
    try:
        async with log_context as log:
            responses = verify(
                log,
                engine=engine,
                from_sequence_number=from_sequence_number,
                to_sequence_number=to_sequence_number,
                snapshots=snapshots,
                times=times,
            )
            async with aclosing(responses):
                async for response in responses:
                    yield response
    except ReplayRangeError as error:
        raise InvalidInputError(str(error)) from error
    except LogCorruptError as error:
        # Opening the log already found the damage.
        yield VerifyReplayResponse(verdict=verdict_of(error))


async def _verify_in_parallel(
    log_context: AbstractAsyncContextManager[StoredLog], data: Path, processes: int, engine: Engine.ValueType, times: ReplayTimes
) -> AsyncGenerator[VerifyReplayResponse, None]:
    """Verify the log that `log_context` opens on several processes, with the snapshots in a data directory."""
    from gavel.v1.replay_service_pb2 import VerifyReplayResponse

    from gavel_server.history.parallel import verify_in_parallel
    from gavel_server.history.replay import verdict_of
    from gavel_server.log.protocol import LogCorruptError

    try:
        async with log_context as log, aclosing(verify_in_parallel(log, log.url, data, processes, engine, times)) as responses:
            async for response in responses:
                yield response
    except LogCorruptError as error:
        yield VerifyReplayResponse(verdict=verdict_of(error))


async def _verify_on_server(
    server: str, bus: str, from_sequence_number: int, to_sequence_number: int, engine: Engine.ValueType
) -> AsyncGenerator[VerifyReplayResponse, None]:
    from gavel_client import GavelError

    try:
        async with open_client(server, bus) as client:
            async for response in client.verify_replay(
                from_sequence_number=from_sequence_number, to_sequence_number=to_sequence_number, engine=engine
            ):
                yield response
    except GavelError as error:
        raise command_error(error, server, bus) from error


async def _show_progress(responses: AsyncGenerator[VerifyReplayResponse, None], times: ReplayTimes) -> ReplayVerdict:
    """Show progress and, for a long log, the rate; return the verdict. A server does not say how long each part took."""
    with Passes(REPLAY_PASSES) as passes:
        verdict = await read_verdict(responses, passes.show)
        seconds = perf_counter() - times.began
    if verdict.proved and verdict.events >= RATE_EVENTS_MIN:
        from gavel_server.cli.rendering import output

        note = f"gavel: {verdict.events / seconds:,.0f} events a second"
        if times.seconds:
            ratio = times.recomputing_seconds / (times.seconds - times.recomputing_seconds)
            note += f"; recomputing took {ratio:.1f} times as long as reading and checking the log"
        output.print_note(note)
    return verdict


async def read_verdict(
    responses: AsyncGenerator[VerifyReplayResponse, None], on_progress: Callable[[ReplayProgress], None] | None = None
) -> ReplayVerdict:
    """Return the verdict at the end of a replay; call `on_progress` with each progress report. Raises CommandError if there is none."""
    async with aclosing(responses):
        async for response in responses:
            if response.HasField("verdict"):
                return response.verdict
            if on_progress is not None:
                on_progress(response.progress)
    raise CommandError("the replay ended without a verdict; try again, or replay the log without a server with --data or --log")


def print_verdict(verdict: ReplayVerdict, as_json: bool) -> int:
    """Print the verdict; return the exit status."""
    from gavel.v1.replay_service_pb2 import VerifyReplayResponse
    from gavel_rules.text import printable

    from gavel_server.cli.rendering import output
    from gavel_server.cli.rendering.audit import print_drifts
    from gavel_server.cli.rendering.events import loss_line

    if as_json:
        output.print_json(VerifyReplayResponse(verdict=verdict))
    else:
        if verdict.HasField("divergence"):
            divergence = verdict.divergence
            output.print_table(
                ("field", "recorded", "expected"),
                ((printable(one.path), printable(one.recorded), printable(one.expected)) for one in divergence.differences),
                title=f"Event {divergence.sequence_number} {divergence.event_id}",
            )
            output.print_table(
                ("input", "event_id"),
                ((f"#{reference.sequence_number}", reference.event_id) for reference in divergence.inputs),
            )
        for loss in verdict.data_losses:
            output.print_line(printable(loss_line(loss)))
        print_drifts(verdict.drifts, title="Drift since the log was recorded; it does not affect the verdict")
        output.print_line(printable(verdict.message))
    return exit_status(verdict)


def exit_status(verdict: ReplayVerdict) -> int:
    """Return the exit status of a verdict."""
    from gavel.v1 import replay_service_pb2

    return {
        replay_service_pb2.REPLAY_STATUS_PROVED: 0,
        replay_service_pb2.REPLAY_STATUS_DIVERGED: EXIT_DIVERGED,
        replay_service_pb2.REPLAY_STATUS_DAMAGED: EXIT_DAMAGED,
        replay_service_pb2.REPLAY_STATUS_VERSION_NOT_IMPLEMENTED: EXIT_VERSION_NOT_IMPLEMENTED,
    }[verdict.status]


async def _simulate_on_log(
    log_context: AbstractAsyncContextManager[EventLog],
    candidate: CompiledRuleSet,
    from_sequence_number: int,
    to_sequence_number: int,
    as_json: bool,
) -> AsyncGenerator[SimulateRuleSetResponse, None]:
    """Try a candidate on the log that `log_context` opens. If the log is not intact, print the verdict and exit with its status."""
    from gavel_rules.replay import DamagedError, DivergedError, VersionNotImplementedError

    from gavel_server.history.replay import ReplayRangeError, impact, verdict_of
    from gavel_server.log.protocol import LogCorruptError

    try:
        async with log_context as log:
            async for response in impact(log, candidate, from_sequence_number=from_sequence_number, to_sequence_number=to_sequence_number):
                yield response
    except ReplayRangeError as error:
        raise InvalidInputError(str(error)) from error
    except (DamagedError, DivergedError, VersionNotImplementedError, LogCorruptError) as error:
        raise typer.Exit(print_verdict(verdict_of(error), as_json)) from error
