"""The connection of a command to a server, and what its failures mean to the person at the terminal."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING, Final, TypeVar

from gavel_server.cli.documents import invalid_rule_set
from gavel_server.cli.errors import EXIT_FAILURE, EXIT_INTERRUPTED, EXIT_INVALID, CommandError, InvalidInputError
from gavel_server.cli.options import person
from gavel_server.cli.server_options import client_arguments, server_options

if TYPE_CHECKING:
    from gavel_client import GavelClient, GavelError, SyncGavelClient

_Response = TypeVar("_Response")

# Tries of one call: a person at a terminal learns soon that no server answers.
TRIES_MAX: Final = 5
# How the server of most commands is named.
SERVER_OPTION: Final = "--server or GAVEL_SERVER"
# The field of a violation that names a place in a rule set, e.g. "document:3:9".
_PLACE: Final = re.compile(r"[a-z_]+:([0-9]+):([0-9]+)")
# The texts of gRPC about a connection that the server has ended during or after the handshake.
_CLOSED: Final = re.compile(r"Socket closed|Unwrap failed|[Cc]onnection reset|Broken pipe|SSL_ERROR_SSL|settings frame|GOAWAY|EOF")
_STANDARD_ERROR: Final = 2
# Makes a terminal show its cursor (DECTCEM).
_SHOW_CURSOR: Final = b"\x1b[?25h"
_GIVE_CREDENTIALS: Final = "show who you are with --token-file, --tls-cert and --tls-key, or a context (gavel context add)"


@contextmanager
def connect(server: str, bus: str, document: str = "", option: str = SERVER_OPTION) -> Iterator[SyncGavelClient]:
    """Yield a client of the server that `option` names. `document` is the file of the rule set that is sent. Raises CommandError."""
    # Failed handshakes are reported as errors of calls; gRPC would log them, too.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from gavel_client import GavelError, SyncGavelClient

    tls, credentials = client_arguments(server)
    with _exit_on_interrupt(), SyncGavelClient(server, bus=bus, tls=tls, credentials=credentials, tries_max=TRIES_MAX) as client:
        check_credentials(client)
        try:
            yield client
        except GavelError as error:
            raise command_error(error, server, bus, document, option) from error


def open_client(server: str, bus: str, *, tries_max: int | None = None) -> GavelClient:
    """Return an asynchronous client of the server. It tries a call `tries_max` times; None: until its deadline. Raises CommandError."""
    from gavel_client import GavelClient

    tls, credentials = client_arguments(server)
    client = GavelClient(server, bus=bus, tls=tls, credentials=credentials, tries_max=tries_max)
    check_credentials(client)
    return client


def check_credentials(client: GavelClient | SyncGavelClient) -> None:
    """Raise InvalidInputError if a file of the connection cannot be used."""
    try:
        client.check_credentials()
    except (OSError, ValueError) as error:
        raise InvalidInputError(f"{error} (--tls-ca, --tls-cert, --tls-key)") from error


def as_person(by: str | None, call: Callable[[str], _Response]) -> _Response:
    """Return the response to a call of a person; the argument of `call` is the name that the request gives.

    With authentication the server takes the name from the caller's credentials, and the request gives none. A server without authentication
    refuses that before anything is recorded; the call is then repeated with the login name. With --by it is made once, with that name.
    Raises GavelError and InvalidInputError.
    """
    from gavel_client import GavelError

    if by is not None:
        return call(person(by))
    try:
        return call("")
    except GavelError as error:
        if [violation.field for violation in error.violations] not in (["reviewer"], ["revoked_by"], ["accepted_by"], ["upgraded_by"]):
            raise
    return call(person(None))


@contextmanager
def _exit_on_interrupt() -> Iterator[None]:
    """End the process on SIGINT at once, without an exception.

    Python may raise KeyboardInterrupt between any two steps of gRPC's synchronous calls, which are not written for it. A lock that one of
    its threads waits for then stays taken, and the command never ends. Nothing is lost: output is flushed as it is printed, and the server
    carries out a request whether or not the caller waits for the answer.
    """

    def end(number: int, frame: FrameType | None) -> None:
        with suppress(OSError):
            if os.isatty(_STANDARD_ERROR):
                os.write(_STANDARD_ERROR, _SHOW_CURSOR)  # a progress bar may have hidden it
        os._exit(EXIT_INTERRUPTED)

    previous = signal.signal(signal.SIGINT, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


def command_error(error: GavelError, server: str, bus: str, document: str = "", option: str = SERVER_OPTION) -> CommandError:
    """Return the CommandError that tells a person what a failed call means.

    `document` is the file of the rule set that was sent. `option` names the server.
    """
    if not error.reason:
        return _grpc_error(error, server, option)
    if error.reason == "BUS_NOT_FOUND":
        return CommandError(
            f"the server at {server} has no bus {bus} (BUS_NOT_FOUND); check --bus or GAVEL_BUS, or create it: gavel bus create {bus}"
        )
    mistakes = [(_PLACE.fullmatch(violation.field), violation.description) for violation in error.violations]
    if document and mistakes and all(place for place, _ in mistakes):
        lines = [f"{document}:{place[1]}:{place[2]}: {description}" for place, description in mistakes if place]
        return invalid_rule_set(document, lines)
    lines = [f"{error.message} ({error.reason})"]
    if error.reason == "UNAUTHENTICATED" and not server_options().has_credentials:
        lines[0] += f"; {_GIVE_CREDENTIALS}"
    if error.retry_after_ms:
        lines[0] += f"; try again in {error.retry_after_ms} ms"
    if len(error.violations) > 1:
        lines += [f"  {violation.field}: {violation.description}" for violation in error.violations]
    return CommandError("\n".join(lines), EXIT_INVALID if error.code.name == "INVALID_ARGUMENT" else EXIT_FAILURE)


def _grpc_error(error: GavelError, server: str, option: str) -> CommandError:
    """Return the CommandError of an error without a reason: gRPC's own, because Gavel's errors always carry one."""
    match error.code.name:
        case "UNAVAILABLE":
            return CommandError(_unavailable(error.message, server, option))
        case "DEADLINE_EXCEEDED":
            return CommandError(f"the server at {server} did not answer in time; try again, and look at `gavel status`")
        case "UNIMPLEMENTED":
            return CommandError(f"the server at {server} does not know this call; check that it is a Gavel server of this version")
        case "INVALID_ARGUMENT" | "RESOURCE_EXHAUSTED":
            return InvalidInputError(f"the server at {server} refused the request: {error.message}")
    return CommandError(f"the call to {server} failed: {error.code.name}: {error.message}")


def _unavailable(message: str, server: str, option: str) -> str:
    """Return why there is no connection to a server, from gRPC's message, and what to do."""
    options = server_options()
    if "Hostname Verification Check failed" in message:
        host = server.rpartition(":")[0]
        return f"the certificate of the server at {server} is not for {host}; use a name that it has, or issue one for {host}"
    if "certificate has expired" in message or "certificate is not yet valid" in message:
        return f"the certificate of the server at {server} has expired or is not valid yet; renew it, and check this machine's clock"
    if "CERTIFICATE_VERIFY_FAILED" in message:
        authorities = f"the authorities in {options.tls_ca}" if options.tls_ca else "an authority that this machine trusts"
        return f"the certificate of the server at {server} is not signed by {authorities}; name its authority with --tls-ca"
    if "WRONG_VERSION_NUMBER" in message:
        return (
            f"the server at {server} does not use TLS; omit --tls-ca (or use another context), or set tls_cert and tls_key for the server"
        )
    refused = "Connection refused" in message or "No such file" in message
    if options.has_tls and not refused and _CLOSED.search(message):
        certificate = "one of its authorities (tls_client_ca) has not signed --tls-cert, or it has expired"
        why = certificate if options.tls_cert else "if it requires a client certificate, give --tls-cert and --tls-key"
        return f"the server at {server} closed the connection: {why}"
    if not options.has_tls and not refused and _CLOSED.search(message):
        return f"the server at {server} closed the connection; if it uses TLS, name the authority of its certificate with --tls-ca"
    return f"no server answers at {server}; start one with `gavel serve`, or name another with {option}"
