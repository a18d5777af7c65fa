"""Options that commands share, and the checks of their values.

Neither this module nor a module of commands imports anything heavy, so that `gavel --help` answers at once. Commands import what
they need when they run.
"""

from __future__ import annotations

import getpass
import os
import re
from pathlib import Path
from typing import Annotated, Final

import typer
from gavel_rules.limits import BUS

from gavel_server.cli.errors import InvalidInputError

SERVER_DEFAULT: Final = "127.0.0.1:9090"
BUS_DEFAULT: Final = "default"
DATA_DEFAULT: Final = Path(".gavel")

# A server's address: unix:PATH, HOST:PORT or [IPV6]:PORT.
_ADDRESS: Final = re.compile(r"unix:.+|(?:[^\s:/\[\]]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}")
PORT_MAX: Final = 65_535

# The largest int64, the contract's type of sequence numbers and versions.
INT64_MAX: Final = 2**63 - 1

# No option lets a command wait or pause for longer than a day.
WAIT_SECONDS_MAX: Final = 86_400

_debugging = False


def _debug(value: bool) -> bool:
    global _debugging
    _debugging = _debugging or value
    return value


def debugging() -> bool:
    """Whether a failure shows its traceback."""
    return _debugging


def check_address(value: str | None) -> str | None:
    """Return a server's address. Raises BadParameter for a malformed one, which gRPC would report as a server that does not answer."""
    if value is None:
        return None
    if not _ADDRESS.fullmatch(value) or (not value.startswith("unix:") and int(value.rpartition(":")[2]) not in range(1, PORT_MAX + 1)):
        raise typer.BadParameter(f"{value!r} is not a server's address; give HOST:PORT, e.g. {SERVER_DEFAULT}, or unix:PATH")
    return value


def check_bus(value: str) -> str:
    """Return a bus name; the empty one means the default bus. Raises BadParameter for a malformed name.

    The check is local because a consumer waits for a bus that does not exist yet, and would wait for ever for a malformed name.
    """
    if not re.fullmatch(BUS, value or BUS_DEFAULT):
        raise typer.BadParameter(f"{value!r} is not a bus name; use 1 to 63 characters of a-z, 0-9 and -")
    return value or BUS_DEFAULT


def check_store(url: str | None) -> str | None:
    """Return a store's URL from the command line. Raises BadParameter if it holds a password, which `ps` would show to everybody."""
    return refuse_password(url, "GAVEL_REDIS or GAVEL_LOG (`gavel serve` also takes it from the file of --config)")


def refuse_password(url: str | None, variables: str) -> str | None:
    """Return a URL of the command line. Raises BadParameter, which names the environment variables to use, if it holds a password."""
    if url is not None and re.search(r"^[^?]*://[^?@]*:[^?]*@|[?&][^=&]*password=", url, re.DOTALL):
        raise typer.BadParameter(
            "the URL holds a password, which every user of this machine can read in the list of processes; give the URL in the "
            f"environment, as {variables}"
        )
    return url


def check_int64(value: int | None) -> int | None:
    """Return a number that fits the contract's int64 fields. Raises BadParameter."""
    if value is not None and value > INT64_MAX:
        raise typer.BadParameter(f"{value} is larger than 2^63 - 1")
    return value


Server = Annotated[
    str,
    typer.Option(
        "--server", envvar="GAVEL_SERVER", callback=check_address, metavar="HOST:PORT", help="The server's address, or unix:PATH."
    ),
]
Bus = Annotated[str, typer.Option("--bus", envvar="GAVEL_BUS", callback=check_bus, metavar="NAME", help="The bus.")]
Json = Annotated[bool, typer.Option("--json", help="Print the response as protobuf JSON; --json=snake prints the contract's field names.")]
JsonReport = Annotated[bool, typer.Option("--json", help="Print the report as JSON.")]
Debug = Annotated[bool, typer.Option("--debug", callback=_debug, help="Show the traceback of a failure.")]
ExitCode = Annotated[
    bool, typer.Option("--exit-code", help="Exit with 10 if the outcome is REJECTED, and with 11 if it is NEEDS_HUMAN_REVIEW.")
]
EnvelopeFile = Annotated[str, typer.Argument(metavar="FILE", help="An Envelope in protobuf JSON or YAML; - is standard input.")]
RuleSetFile = Annotated[str, typer.Argument(metavar="FILE", help="A rule set in YAML or JSON; - is standard input.")]
PolicyId = Annotated[str, typer.Argument(metavar="POLICY_ID", help="The rule set's name.")]

Log = Annotated[
    str,
    typer.Option(
        "--log",
        "--redis",
        metavar="URL",
        callback=check_store,
        help="The PostgreSQL or Redis that holds the log. Default: GAVEL_LOG or GAVEL_REDIS.",
    ),
]

ExpectedActiveVersion = Annotated[
    int | None,
    typer.Option(
        "--expected-active-version",
        metavar="VERSION",
        min=0,
        callback=check_int64,
        help="Fail if another version is in force. 0: if any version is.",
    ),
]
RulePaths = Annotated[
    list[str], typer.Argument(metavar="PATH…", help="Rule sets and suites (*_test.yaml), or folders of them; - is standard input.")
]
Reason = Annotated[str, typer.Option("--reason", metavar="TEXT", help="The reason, for the log.")]
By = Annotated[
    str | None,
    typer.Option(
        "--by",
        metavar="WHO",
        help="The person who decides, for the log, on a server without authentication. Default: your login name. With authentication it is "
        "the caller.",
    ),
]


def person(by: str | None) -> str:
    """Return who decides: --by, else the login name. Raises InvalidInputError, also for an empty --by, such as an unset variable."""
    if by is not None:
        if not by.strip():
            raise InvalidInputError("--by is empty; name the person who decides, or omit it to use your login name")
        return by
    try:
        return getpass.getuser()
    except (KeyError, OSError) as error:
        raise InvalidInputError("this login has no name; name the person who decides with --by WHO") from error


def check_reason(reason: str) -> str:
    """Return a reason that is not blank. Raises InvalidInputError."""
    if not reason.strip():
        raise InvalidInputError("--reason is empty; give the reason, for readers of the log")
    return reason


def log_location(data: Path | None, log: str) -> tuple[Path, str]:
    """Return the data directory and the URL of the store that a command uses; a URL that is not empty takes precedence.

    Options take precedence over GAVEL_LOG, GAVEL_REDIS and GAVEL_DATA, whichever of them they name. Raises InvalidInputError for both
    options.
    """
    if data is not None and log:
        raise InvalidInputError("--data and --log name two different logs; give one of them")
    if data is None and not log:
        log = os.environ.get("GAVEL_LOG") or os.environ.get("GAVEL_REDIS", "")
        data = Path(os.environ.get("GAVEL_DATA") or DATA_DEFAULT)
    return data or DATA_DEFAULT, log
