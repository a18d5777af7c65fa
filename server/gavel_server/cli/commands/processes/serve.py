"""`gavel serve`: runs a server in the foreground until SIGTERM, SIGINT or SIGHUP."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gavel_server.cli.commands.processes.serve_options import (
    BusOptions,
    DurabilityOptions,
    HistoryOptions,
    IdentityOptions,
    ObservationOptions,
    ProcessOptions,
    QuotaOptions,
    StoreOptions,
)
from gavel_server.cli.errors import CommandError, InvalidInputError
from gavel_server.cli.option_groups import with_option_groups
from gavel_server.cli.options import Debug

if TYPE_CHECKING:
    from gavel_server.config import Settings


@with_option_groups
def serve(
    *,
    listen: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="The address, or unix:PATH. Port 0 picks a free port. Default: 127.0.0.1:9090.")
    ] = None,
    store: StoreOptions,
    config: Annotated[Path | None, typer.Option(envvar="GAVEL_CONFIG", metavar="FILE", help="Settings in TOML.")] = None,
    durability: DurabilityOptions,
    history: HistoryOptions,
    processes: ProcessOptions,
    observation: ObservationOptions,
    new_buses: BusOptions,
    quotas: QuotaOptions,
    identity: IdentityOptions,
    container: Annotated[
        bool | None,
        typer.Option(
            "--container",
            help="Run as the only server of a container: listen on all addresses if --log, --redis or a volume at --data keeps the log.",
        ),
    ] = None,
    debug: Debug = False,
) -> None:
    """Run a server in the foreground. It prints `gavel: ready on HOST:PORT` when it accepts calls.

    SIGTERM, SIGINT or SIGHUP stops it: it answers the queued commands and exits with status 0. With files of certificates, keys or
    tokens, SIGHUP loads them again instead.

    Most options can also be set in the environment (--log-level as GAVEL_LOG_LEVEL) or in the file of --config (as log_level). The
    command line takes precedence over the environment, and the environment over the file.
    """
    options: dict[str, Any] = {"listen": listen, "container": container}
    for group in (store, durability, history, processes, observation, new_buses, quotas, identity):
        options |= group._asdict()
    if options.pop("no_front"):
        if processes.front not in (None, "none"):
            raise InvalidInputError(f"--no-front and --front {processes.front} contradict each other; give one of them")
        options["front"] = "none"
    # gRPC would write a line for each failed TLS handshake and each malformed header, past the limits of this server's log. While nobody
    # reads the log, its threads would wait to write such a line.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from gavel_server.bootstrap.errors import ServeError
    from gavel_server.bootstrap.process import run
    from gavel_server.cli.rendering import output
    from gavel_server.config import load

    settings = load(config, {name: value for name, value in options.items() if value is not None})
    _print_warnings(settings)
    try:
        run(settings, lambda address: output.print_line(f"gavel: ready on {address}"))
    except ServeError as error:
        raise CommandError(str(error)) from error


def _print_warnings(settings: Settings) -> None:
    from gavel_server.cli.rendering import output
    from gavel_server.config import is_local

    if not is_local(settings.listen) and settings.authentication == "none":
        output.print_note(f"gavel: NO AUTHENTICATION on {settings.listen}: anyone who reaches it can act as any producer")
    if settings.is_unreachable:
        output.print_note(
            f"gavel: there is neither a store (--log, --redis) nor a volume at {settings.data} (--data), so decisions would be lost with "
            "this container; the server listens on the container's loopback only"
        )
