"""What commands share: their common options, and the connection to a server.

Nothing heavy is imported here or in any module of commands, so that `gavel --help` answers at once; commands import what they
need when they run.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Final

import typer
from gavel_rules.limits import BUS

from gavel_server.cli.documents import invalid_rule_set
from gavel_server.cli.errors import EXIT_FAILURE, EXIT_INTERRUPTED, EXIT_INVALID, CommandError, InvalidInputError

if TYPE_CHECKING:
    from gavel_client import GavelError, SyncGavelClient

SERVER_DEFAULT: Final = "127.0.0.1:9090"
BUS_DEFAULT: Final = "default"
DATA_DEFAULT: Final = Path(".gavel")

# How the server names a place in a rule set.
_PLACE: Final = re.compile(r"[a-z_]+:([0-9]+):([0-9]+)")

# Of a server: unix:PATH, HOST:PORT or [IPV6]:PORT.
_ADDRESS: Final = re.compile(r"unix:.+|(?:[^\s:/\[\]]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}")
PORT_MAX: Final = 65_535

# What an int64 of the contract holds: sequence numbers and versions.
COUNTABLE_MAX: Final = 2**63 - 1

_debugging = False


def _debug(value: bool) -> bool:
    global _debugging
    _debugging = _debugging or value
    return value


def debugging() -> bool:
    """Whether a failure is to show its traceback."""
    return _debugging


def server_address(value: str | None) -> str | None:
    """Refuse what is no address of a server: gRPC would say of it that nobody answers."""
    if value is None:
        return None
    if not _ADDRESS.fullmatch(value) or (not value.startswith("unix:") and int(value.rpartition(":")[2]) not in range(1, PORT_MAX + 1)):
        raise typer.BadParameter(f"{value!r} is no address of a server; give HOST:PORT, e.g. {SERVER_DEFAULT}, or unix:PATH")
    return value


def bus_name(value: str) -> str:
    """Refuse what no bus is called; the empty name is the default bus's. Consumers would wait for it for ever, and nobody would say why."""
    if not re.fullmatch(BUS, value or BUS_DEFAULT):
        raise typer.BadParameter(f"{value!r} is no name of a bus: it has 1 to 63 characters of a-z, 0-9 and -")
    return value or BUS_DEFAULT


def countable(value: int | None) -> int | None:
    """Refuse a number that no field of the contract can hold."""
    if value is not None and value > COUNTABLE_MAX:
        raise typer.BadParameter(f"{value} is larger than 2^63 - 1")
    return value


Server = Annotated[
    str, typer.Option("--server", envvar="GAVEL_SERVER", callback=server_address, metavar="HOST:PORT", help="The server, or unix:PATH.")
]
Bus = Annotated[str, typer.Option("--bus", envvar="GAVEL_BUS", callback=bus_name, metavar="NAME", help="The bus.")]
Json = Annotated[bool, typer.Option("--json", help="Print protobuf JSON of the response, for machines.")]
JsonReport = Annotated[bool, typer.Option("--json", help="Print JSON, for machines.")]
Debug = Annotated[bool, typer.Option("--debug", callback=_debug, help="Show the traceback of a failure.")]


def named_log(data: Path | None, redis: str) -> tuple[Path, str]:
    """Return the data directory and the Redis URL that a command is to use; the URL, where there is one, counts.

    Options come before GAVEL_REDIS and GAVEL_DATA, whichever of the two they name.
    """
    if data is None and not redis:
        redis = os.environ.get("GAVEL_REDIS", "")
        data = Path(os.environ.get("GAVEL_DATA") or DATA_DEFAULT)
    return data or DATA_DEFAULT, redis


@contextmanager
def connected(server: str, bus: str, document: str = "") -> Iterator[SyncGavelClient]:
    """Yield a client of the server; its errors leave as CommandError. `document` names the rule set that is sent, if one is."""
    from gavel_client import GavelError, SyncGavelClient

    with _ended_by_interrupt(), SyncGavelClient(server, bus=bus) as client:
        try:
            yield client
        except GavelError as error:
            raise explained(error, server, document) from error


@contextmanager
def _ended_by_interrupt() -> Iterator[None]:
    """Let SIGINT end the process at once, not by an exception.

    KeyboardInterrupt may be raised between any two steps of gRPC's synchronous calls, which are not written for it: the lock that
    one of its threads waits for stays taken, and the command would never end. Nothing is lost this way: what was printed has
    been flushed, and what the server has been asked stays asked, however the caller leaves.
    """

    def end(number: int, frame: FrameType | None) -> None:
        os._exit(EXIT_INTERRUPTED)

    before = signal.signal(signal.SIGINT, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def explained(error: GavelError, server: str, document: str = "") -> CommandError:
    """Return what a failed call means for the person who made it."""
    if not error.reason:
        return _unreached(error, server)
    mistakes = [(_PLACE.fullmatch(violation.field), violation.description) for violation in error.violations]
    if document and mistakes and all(place for place, _ in mistakes):
        lines = [f"{document}:{place[1]}:{place[2]}: {description}" for place, description in mistakes if place]
        return invalid_rule_set(document, lines)
    lines = [f"{error.message} ({error.reason})"]
    if error.retry_after_ms:
        lines[0] += f"; try again in {error.retry_after_ms} ms"
    if len(error.violations) > 1:
        lines += [f"  {violation.field}: {violation.description}" for violation in error.violations]
    return CommandError("\n".join(lines), EXIT_INVALID if error.code.name == "INVALID_ARGUMENT" else EXIT_FAILURE)


def _unreached(error: GavelError, server: str) -> CommandError:
    """The error is gRPC's own: Gavel's always carry a reason."""
    match error.code.name:
        case "UNAVAILABLE":
            return CommandError(
                f"no server answers at {server}; start one with `gavel serve`, or name another with --server or GAVEL_SERVER"
            )
        case "DEADLINE_EXCEEDED":
            return CommandError(f"the server at {server} did not answer in time; try again, and look at `gavel status`")
        case "UNIMPLEMENTED":
            return CommandError(f"the server at {server} does not know this call; is it Gavel, and of this version?")
        case "INVALID_ARGUMENT" | "RESOURCE_EXHAUSTED":
            return InvalidInputError(f"the server at {server} refuses the request: {error.message}")
    return CommandError(f"the call to {server} failed: {error.code.name}: {error.message}")
