"""`gavel serve`: a server in the foreground, until SIGTERM or SIGINT."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from gavel_server.cli.errors import CommandError, InvalidInputError
from gavel_server.cli.options import Debug


def serve(
    listen: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Or unix:PATH. Port 0: a free one. Default: 127.0.0.1:9090.")
    ] = None,
    data: Annotated[Path | None, typer.Option(metavar="DIR", help="Data directory of the embedded Redis. Default: .gavel.")] = None,
    redis: Annotated[str | None, typer.Option(metavar="URL", help="A Redis or Valkey to use instead of the embedded one.")] = None,
    config: Annotated[Path | None, typer.Option(envvar="GAVEL_CONFIG", metavar="FILE", help="Settings as TOML.")] = None,
    accept_volatile: Annotated[
        bool | None, typer.Option("--accept-volatile", help="Serve although that Redis may lose acknowledged events.")
    ] = None,
    ack: Annotated[str | None, typer.Option(metavar="replicas:N", help="Replicas that must have a write before it is answered.")] = None,
    checkpoint: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where to note what was acknowledged. Default: in the data directory.")
    ] = None,
    front: Annotated[
        str | None,
        typer.Option(metavar="WHICH", help="What speaks gRPC for the server: native, python, none or auto. Default: auto."),
    ] = None,
    no_front: Annotated[bool, typer.Option("--no-front", help="The same as --front none.")] = False,
    fdr: Annotated[bool | None, typer.Option("--fdr/--no-fdr", help="Derive facts from executions in this process. Default: yes.")] = None,
    metrics: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Where to serve Prometheus metrics. Default: nowhere.")] = None,
    log_level: Annotated[str | None, typer.Option(metavar="LEVEL", help="debug, info, warning or error.")] = None,
    log_json: Annotated[bool | None, typer.Option("--log-json", help="Log lines as JSON.")] = None,
    cross_check: Annotated[
        str | None, typer.Option(metavar="MODE", help="For buses opened here, when both engines are asked: always, off or 'sample N'.")
    ] = None,
    idempotency_window_days: Annotated[
        int | None, typer.Option(metavar="N", help="For buses opened here, how long an event_id is remembered.")
    ] = None,
    allow_unauthenticated_network: Annotated[
        bool | None,
        typer.Option(
            "--allow-unauthenticated-network",
            help="Listen beyond this machine although no authentication is configured: whoever reaches the port may claim to be anybody.",
        ),
    ] = None,
    container: Annotated[
        bool | None,
        typer.Option(
            "--container", help="Serve alone in a container: listen on all its addresses, where --redis or a volume at --data outlives it."
        ),
    ] = None,
    debug: Debug = False,
) -> None:
    """Serve, and print `gavel: ready on HOST:PORT` once it answers. SIGTERM drains, commits and ends with exit status 0.

    Every option is also a setting: command line > environment GAVEL_* > the file of --config.
    """
    if no_front and front not in (None, "none"):
        raise InvalidInputError(f"--no-front and --front {front} contradict each other; give one of them")
    given: dict[str, Any] = {
        "listen": listen,
        "data": data,
        "redis": redis,
        "accept_volatile": accept_volatile,
        "ack": ack,
        "checkpoint": checkpoint,
        "front": "none" if no_front else front,
        "fdr": fdr,
        "metrics": metrics,
        "log_level": log_level,
        "log_json": log_json,
        "cross_check": cross_check,
        "idempotency_window_days": idempotency_window_days,
        "allow_unauthenticated_network": allow_unauthenticated_network,
        "container": container,
    }
    from gavel_server import bootstrap
    from gavel_server import config as settings_of_server
    from gavel_server.cli import output

    settings = settings_of_server.load(config, {name: value for name, value in given.items() if value is not None})
    if not settings_of_server.is_local(settings.listen):
        output.note(f"gavel: NO AUTHENTICATION on {settings.listen}: whoever reaches it may claim to be any producer")
    if settings.is_shut_in:
        output.note(
            f"gavel: there is neither a Redis (redis) nor a volume at {settings.data} (data), and decisions would be lost with this "
            "container: it listens on its own loopback only"
        )
    try:
        bootstrap.run(settings, lambda address: output.say(f"gavel: ready on {address}"))
    except bootstrap.ServeError as error:
        raise CommandError(str(error)) from error
