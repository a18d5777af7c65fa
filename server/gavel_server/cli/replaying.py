"""`gavel replay`: proves that a log's decisions follow from the log, or shows the first that does not.

It needs no server: it opens the log itself, and so it also judges a server that may be wrong.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, aclosing
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from gavel_server.cli import documents, impact
from gavel_server.cli.errors import CommandError, InvalidInputError
from gavel_server.cli.options import BUS_DEFAULT, Bus, Debug, Json, countable, explained, named_log, server_address
from gavel_server.cli.passes import Passes

if TYPE_CHECKING:
    from gavel.v1.decision_pb2 import Engine
    from gavel.v1.replay_service_pb2 import ReplayVerdict, VerifyReplayResponse
    from gavel.v1.rule_set_service_pb2 import ReplayProgress, SimulateRuleSetResponse
    from gavel_rules.language.ruleset import CompiledRuleSet

    from gavel_server.log.protocol import EventLog

EXIT_DIVERGED: Final = 3
EXIT_DAMAGED: Final = 4
EXIT_VERSION_NOT_IMPLEMENTED: Final = 5


class EngineName(Enum):
    """A rule engine as `--engine` takes it."""

    RETE = "rete"
    REFERENCE = "reference"


def replay(
    data: Annotated[Path | None, typer.Option(metavar="DIR", help="Data directory of the embedded Redis. Default: .gavel.")] = None,
    redis: Annotated[str, typer.Option(metavar="URL", help="The Redis that holds the log.")] = "",
    archive: Annotated[Path | None, typer.Option(metavar="DIR", help="Sealed segments. Not available in this release.")] = None,
    server: Annotated[
        str | None,
        typer.Option("--server", callback=server_address, metavar="HOST:PORT", help="Let a running server replay its own log instead."),
    ] = None,
    bus: Bus = BUS_DEFAULT,
    from_sequence_number: Annotated[
        int,
        typer.Option("--from", min=0, callback=countable, metavar="N", help="Compare from here; what comes before builds the state."),
    ] = 0,
    to_sequence_number: Annotated[
        int, typer.Option("--to", min=0, callback=countable, metavar="N", help="Stop after this. 0: the head.")
    ] = 0,
    rules: Annotated[
        str, typer.Option("--rules", metavar="FILE", help="A candidate rule set: list the past decisions that it would change.")
    ] = "",
    engine: Annotated[EngineName, typer.Option(help="reference: decide again with the second engine.")] = EngineName.RETE,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Recompute a log's decisions and derived facts, and compare.

    Exit status: 0 proved, 3 diverged, 4 log damaged, 5 the log needs another build.
    """
    import asyncio

    from gavel.v1.decision_pb2 import Engine

    if archive is not None:
        raise InvalidInputError("--archive is not available in this release; give --data DIR or --redis URL")
    if sum((data is not None, bool(redis), server is not None)) > 1:
        raise InvalidInputError("--data, --redis and --server name three different logs; give one of them")
    if rules:
        # Compiled first: a mistake in the candidate needs no log.
        text = documents.read_rule_set(rules)
        candidate = documents.compiled(text, rules)
        if server:
            responses = impact.simulated_by_server(server, bus, rules, text, from_sequence_number, to_sequence_number)
        else:
            responses = _impact_here(_opened(data, redis, bus), candidate, from_sequence_number, to_sequence_number, as_json)
        asyncio.run(impact.show(responses, candidate, as_json))
        return
    number = Engine.Value(f"ENGINE_{engine.name}")
    if server:
        progress = _verified_by_server(server, bus, from_sequence_number, to_sequence_number, number)
    else:
        progress = verified_here(_opened(data, redis, bus), from_sequence_number, to_sequence_number, number)
    verdict = asyncio.run(_watched(progress))
    raise typer.Exit(_report(verdict, as_json))


def _opened(data: Path | None, redis: str, bus: str) -> AbstractAsyncContextManager[EventLog]:
    from gavel_server.cli import offline
    from gavel_server.log.wire import mask_url

    directory, url = named_log(data, redis)
    return offline.log_in_redis(url, bus, mask_url(url)) if url else offline.log_in_directory(directory, bus)


async def verified_here(
    opened: AbstractAsyncContextManager[EventLog],
    from_sequence_number: int,
    to_sequence_number: int,
    engine: Engine.ValueType,
) -> AsyncGenerator[VerifyReplayResponse, None]:
    """Verify a log that is opened here. Yields progress and last the verdict, also on a log that cannot be opened for damage."""
    from gavel.v1.replay_service_pb2 import VerifyReplayResponse

    from gavel_server.log.protocol import LogCorruptError
    from gavel_server.replaying import ReplayRangeError, verdict_of, verify

    try:
        async with opened as log:
            async for response in verify(
                log, engine=engine, from_sequence_number=from_sequence_number, to_sequence_number=to_sequence_number
            ):
                yield response
    except ReplayRangeError as error:
        raise InvalidInputError(str(error)) from error
    except LogCorruptError as error:
        # The log already contradicted itself when it was opened.
        yield VerifyReplayResponse(verdict=verdict_of(error))


async def _verified_by_server(
    server: str, bus: str, from_sequence_number: int, to_sequence_number: int, engine: Engine.ValueType
) -> AsyncGenerator[VerifyReplayResponse, None]:
    from gavel_client import GavelClient, GavelError

    try:
        async with GavelClient(server, bus=bus) as client:
            async for response in client.verify_replay(
                from_sequence_number=from_sequence_number, to_sequence_number=to_sequence_number, engine=engine
            ):
                yield response
    except GavelError as error:
        raise explained(error, server) from error


async def _watched(responses: AsyncGenerator[VerifyReplayResponse, None]) -> ReplayVerdict:
    """Show progress; return the verdict."""
    with Passes() as passes:
        return await verdict_in(responses, passes.show)


async def verdict_in(
    responses: AsyncGenerator[VerifyReplayResponse, None], show: Callable[[ReplayProgress], None] | None = None
) -> ReplayVerdict:
    """Return the verdict that a replay ends with; `show` hears of its progress."""
    async with aclosing(responses):
        async for response in responses:
            if response.HasField("verdict"):
                return response.verdict
            if show is not None:
                show(response.progress)
    raise CommandError("the replay ended without a verdict; try again, or replay the log itself with --data or --redis")


def _report(verdict: ReplayVerdict, as_json: bool) -> int:
    """Print the verdict; return the exit status."""
    from gavel.v1.replay_service_pb2 import VerifyReplayResponse

    from gavel_server.cli import output
    from gavel_server.cli.describe import printable

    if as_json:
        output.print_json(VerifyReplayResponse(verdict=verdict))
    else:
        if verdict.HasField("divergence"):
            divergence = verdict.divergence
            output.print_table(
                ("field", "recorded", "expected"),
                ((printable(found.path), printable(found.recorded), printable(found.expected)) for found in divergence.differences),
                title=f"Event {divergence.sequence_number} {divergence.event_id}",
            )
            output.print_table(
                ("comes from", "event_id"),
                ((f"#{reference.sequence_number}", reference.event_id) for reference in divergence.inputs),
            )
        output.say(printable(verdict.message))
    return exit_status(verdict)


def exit_status(verdict: ReplayVerdict) -> int:
    """Return the exit status that says what the verdict says."""
    from gavel.v1 import replay_service_pb2

    return {
        replay_service_pb2.REPLAY_STATUS_PROVED: 0,
        replay_service_pb2.REPLAY_STATUS_DIVERGED: EXIT_DIVERGED,
        replay_service_pb2.REPLAY_STATUS_DAMAGED: EXIT_DAMAGED,
        replay_service_pb2.REPLAY_STATUS_VERSION_NOT_IMPLEMENTED: EXIT_VERSION_NOT_IMPLEMENTED,
    }[verdict.status]


async def _impact_here(
    opened: AbstractAsyncContextManager[EventLog],
    candidate: CompiledRuleSet,
    from_sequence_number: int,
    to_sequence_number: int,
    as_json: bool,
) -> AsyncGenerator[SimulateRuleSetResponse, None]:
    """Try a candidate on a log that is opened here. A log that is not intact is no ground for a forecast: the verdict is printed."""
    from gavel_rules.replay import DamagedError, DivergedError, VersionNotImplementedError

    from gavel_server.log.protocol import LogCorruptError
    from gavel_server.replaying import ReplayRangeError, impact, verdict_of

    try:
        async with opened as log:
            async for response in impact(log, candidate, from_sequence_number=from_sequence_number, to_sequence_number=to_sequence_number):
                yield response
    except ReplayRangeError as error:
        raise InvalidInputError(str(error)) from error
    except (DamagedError, DivergedError, VersionNotImplementedError, LogCorruptError) as error:
        raise typer.Exit(_report(verdict_of(error), as_json)) from error
