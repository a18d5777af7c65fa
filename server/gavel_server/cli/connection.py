"""The connection of a command to a server, and what its failures mean to the person at the terminal."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Final, TypeVar

from gavel_server.cli.documents import invalid_rule_set
from gavel_server.cli.errors import EXIT_FAILURE, EXIT_INTERRUPTED, EXIT_INVALID, CommandError, InvalidInputError
from gavel_server.cli.options import person

if TYPE_CHECKING:
    from gavel_client import GavelError, SyncGavelClient

_Response = TypeVar("_Response")

# Tries of one call: a person at a terminal learns soon that no server answers.
TRIES_MAX: Final = 5
# The field of a violation that names a place in a rule set, e.g. "document:3:9".
_PLACE: Final = re.compile(r"[a-z_]+:([0-9]+):([0-9]+)")


@contextmanager
def connect(server: str, bus: str, document: str = "") -> Iterator[SyncGavelClient]:
    """Yield a client of the server. `document` is the file of the rule set that is sent, if any. Raises CommandError."""
    from gavel_client import GavelError, SyncGavelClient

    with _exit_on_interrupt(), SyncGavelClient(server, bus=bus, tries_max=TRIES_MAX) as client:
        try:
            yield client
        except GavelError as error:
            raise command_error(error, server, bus, document) from error


def as_person(by: str | None, call: Callable[[str], _Response]) -> _Response:
    """Return the response to a call of a person; the argument of `call` is the name that the request gives.

    With authentication the server takes the name from the caller's credentials, and the request gives none. A server without
    authentication refuses that before anything is recorded, and gets --by or the login name. Raises GavelError and InvalidInputError.
    """
    from gavel_client import GavelError

    if by is not None:
        return call(person(by))
    try:
        return call("")
    except GavelError as error:
        if [violation.field for violation in error.violations] not in (["reviewer"], ["revoked_by"]):
            raise
    return call(person(None))


@contextmanager
def _exit_on_interrupt() -> Iterator[None]:
    """End the process on SIGINT at once, without an exception.

    Python may raise KeyboardInterrupt between any two steps of gRPC's synchronous calls, which are not written for it: a lock that
    one of its threads waits for stays taken, and the command never ends. Nothing is lost: output is flushed as it is printed, and
    the server carries out a request whether or not the caller waits for the answer.
    """

    def end(number: int, frame: FrameType | None) -> None:
        os._exit(EXIT_INTERRUPTED)

    previous = signal.signal(signal.SIGINT, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


def command_error(error: GavelError, server: str, bus: str, document: str = "") -> CommandError:
    """Return the CommandError that tells a person what a failed call means; `document` is the file of the rule set that was sent."""
    if not error.reason:
        return _grpc_error(error, server)
    if error.reason == "BUS_NOT_FOUND":
        return CommandError(
            f"the server at {server} has no bus {bus} (BUS_NOT_FOUND); check --bus or GAVEL_BUS; the first write to a bus creates it, "
            "e.g. gavel rules deploy FILE"
        )
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


def _grpc_error(error: GavelError, server: str) -> CommandError:
    """Return the CommandError of an error without a reason: gRPC's own, because Gavel's errors always carry one."""
    match error.code.name:
        case "UNAVAILABLE":
            return CommandError(
                f"no server answers at {server}; start one with `gavel serve`, or name another with --server or GAVEL_SERVER"
            )
        case "DEADLINE_EXCEEDED":
            return CommandError(f"the server at {server} did not answer in time; try again, and look at `gavel status`")
        case "UNIMPLEMENTED":
            return CommandError(f"the server at {server} does not know this call; check that it is a Gavel server of this version")
        case "INVALID_ARGUMENT" | "RESOURCE_EXHAUSTED":
            return InvalidInputError(f"the server at {server} refused the request: {error.message}")
    return CommandError(f"the call to {server} failed: {error.code.name}: {error.message}")
