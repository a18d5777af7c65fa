"""Shared by the commands of `gavel mcp`: the configuration, the client, and the check that the extra is installed."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from gavel_server.cli.errors import CommandError, InvalidInputError

if TYPE_CHECKING:
    from gavel_client import GavelClient
    from gavel_client.mcp.configuration import Configuration

# A call of a client waits for its answer: it learns soon that Gavel is away.
TRIES_MAX: Final = 3
# The name of a scaffolded rule set.
RULE_SET_DEFAULT: Final = "mcp-tools"

ConfigFile = Annotated[
    Path, typer.Option("--config", metavar="FILE", help="The configuration of the proxy, as `gavel mcp scaffold` writes it.")
]


def mcp_extra() -> None:
    """Raise CommandError unless the packages of the proxy are installed."""
    missing = [name for name in ("mcp", "cel_expr_python", "fsspec", "jsonschema_rs", "ruamel") if find_spec(name) is None]
    if missing:
        raise CommandError(f"`gavel mcp` needs {', '.join(missing)}; install it: pip install 'gavel-client[mcp]'")
    # URLs may hold secrets, which the log of requests would show; messages of the SDK quote what servers and clients send.
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    logging.getLogger("mcp").setLevel(logging.CRITICAL)


def load(path: Path) -> Configuration:
    """Return the configuration of a file. Raises InvalidInputError with all mistakes."""
    from gavel_client.mcp.configuration import load_configuration
    from gavel_client.mcp.errors import ConfigurationError

    try:
        return load_configuration(path)
    except OSError as error:
        raise InvalidInputError(f"cannot read {path}: {error.strerror} (--config)") from error
    except ConfigurationError as error:
        lines = [f"{path} is not a valid configuration; fix these mistakes and try again", *error.messages]
        raise InvalidInputError("\n".join(lines)) from error


@contextmanager
def configuration_errors() -> Iterator[None]:
    """Raise InvalidInputError for a secret of the configuration that cannot be read in the block."""
    from gavel_client.mcp.errors import ConfigurationError

    try:
        yield
    except ConfigurationError as error:
        raise InvalidInputError("\n".join(error.messages)) from error


def open_proxy_client(server: str, bus: str, *, token: str = "") -> GavelClient:
    """Return a client that gives up soon; `token` replaces the credentials of the command. Raises CommandError."""
    from gavel_client import GavelClient

    from gavel_server.cli.connection import check_credentials
    from gavel_server.cli.server_options import check_token_is_protected, client_arguments

    tls, credentials = client_arguments(server)
    if token:
        check_token_is_protected(server, has_tls=tls is not None)
    client = GavelClient(server, bus=bus, tls=tls, credentials=token or credentials, tries_max=TRIES_MAX)
    check_credentials(client)
    return client
