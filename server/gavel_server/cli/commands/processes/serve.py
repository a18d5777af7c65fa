"""`gavel serve`: runs a server in the foreground until SIGTERM, SIGINT or SIGHUP."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from gavel_server.cli.errors import CommandError, InvalidInputError
from gavel_server.cli.options import Debug, check_redis


def serve(
    listen: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="The address, or unix:PATH. Port 0 picks a free port. Default: 127.0.0.1:9090.")
    ] = None,
    data: Annotated[Path | None, typer.Option(metavar="DIR", help="Data directory of the embedded Redis. Default: .gavel.")] = None,
    redis: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            callback=check_redis,
            help="A Redis, Sentinel set or cluster to use in place of the embedded Redis. Give a URL with a password as GAVEL_REDIS.",
        ),
    ] = None,
    redis_memory_mib: Annotated[
        int | None, typer.Option(metavar="N", help="Memory for the data of the embedded Redis, in MiB. Default: half of the machine's.")
    ] = None,
    config: Annotated[Path | None, typer.Option(envvar="GAVEL_CONFIG", metavar="FILE", help="Settings in TOML.")] = None,
    accept_volatile: Annotated[
        bool | None, typer.Option("--accept-volatile", help="Serve even if --redis can lose acknowledged events.")
    ] = None,
    ack: Annotated[
        str | None,
        typer.Option(
            metavar="replicas:N|aof:N",
            help="Wait until N replicas have a write, or have it on disk (aof), before answering it. Default: replicas:0.",
        ),
    ] = None,
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="The file that notes the last acknowledged event. Default: checkpoint.json in the data directory."
        ),
    ] = None,
    snapshot_every: Annotated[
        int | None,
        typer.Option(metavar="N", help="Write a snapshot of a bus after every N events, and on a clean stop. 0: never. Default: 100,000."),
    ] = None,
    index_from: Annotated[
        int | None, typer.Option(metavar="N", help="How many events a bus must have to get an index of its events. Default: 10,000.")
    ] = None,
    archive: Annotated[
        str | None, typer.Option(metavar="DIR|URL", help="The archive of old events: a directory, or s3://BUCKET/PATH. Default: none.")
    ] = None,
    archive_after_days: Annotated[
        int | None, typer.Option(metavar="N", help="Age in days from which events are in the archive only. Default: 30.")
    ] = None,
    front: Annotated[
        str | None,
        typer.Option(
            metavar="WHICH",
            autocompletion=lambda: ["auto", "native", "none"],
            help="What speaks gRPC: native (a process of its own), none (this process) or auto (native if it is installed and there are "
            "several processors). Default: auto.",
        ),
    ] = None,
    no_front: Annotated[bool, typer.Option("--no-front", help="The same as --front none.")] = False,
    fdr: Annotated[bool | None, typer.Option("--fdr/--no-fdr", help="Derive facts from executions in this process. Default: yes.")] = None,
    metrics: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Serve Prometheus metrics at this address. Default: no metrics.")
    ] = None,
    log_level: Annotated[
        str | None,
        typer.Option(
            metavar="LEVEL",
            autocompletion=lambda: ["debug", "info", "warning", "error"],
            help="Lowest level of the log lines: debug, info, warning or error. Default: info.",
        ),
    ] = None,
    log_json: Annotated[bool | None, typer.Option("--log-json", help="Write log lines as JSON.")] = None,
    cross_check: Annotated[
        str | None,
        typer.Option(metavar="MODE", help="When both engines decide, for buses created here: always, off or 'sample N'. Default: always."),
    ] = None,
    idempotency_window_days: Annotated[
        int | None, typer.Option(metavar="N", help="How long an event_id is remembered, for buses created here: 1 to 365 days. Default: 7.")
    ] = None,
    create_buses: Annotated[
        str | None,
        typer.Option(
            metavar="true|false",
            autocompletion=lambda: ["true", "false"],
            help="Whether a write without authentication creates its bus. Otherwise only `gavel bus create` does. Default: true.",
        ),
    ] = None,
    quota_calls_per_second: Annotated[int | None, typer.Option(metavar="N", help="Calls a second of one caller. Default: 20,000.")] = None,
    quota_bytes_per_second: Annotated[
        int | None, typer.Option(metavar="N", help="Bytes of requests a second of one caller. Default: 256 MiB.")
    ] = None,
    quota_streams: Annotated[int | None, typer.Option(metavar="N", help="Open streams of one caller. Default: 256.")] = None,
    quota_subscriptions: Annotated[int | None, typer.Option(metavar="N", help="Open subscriptions of one caller. Default: 128.")] = None,
    authentication: Annotated[
        str | None,
        typer.Option(
            metavar="WHICH",
            autocompletion=lambda: ["none", "required"],
            help="Whether callers must be authenticated: none or required. Default: none.",
        ),
    ] = None,
    tls_cert: Annotated[Path | None, typer.Option(metavar="FILE", help="The server's certificate in PEM. Default: no TLS.")] = None,
    tls_key: Annotated[Path | None, typer.Option(metavar="FILE", help="The private key of --tls-cert in PEM.")] = None,
    tls_client_ca: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The authorities of client certificates in PEM; callers must present one.")
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The file of `gavel token create`: callers with these tokens are accepted.")
    ] = None,
    allow_unauthenticated_network: Annotated[
        bool | None,
        typer.Option(
            "--allow-unauthenticated-network",
            help="Listen beyond this machine without authentication or without TLS, if the network is protected by other means.",
        ),
    ] = None,
    container: Annotated[
        bool | None,
        typer.Option(
            "--container",
            help="Run as the only server of a container: listen on all addresses if --redis or a volume at --data keeps the log.",
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
    if no_front and front not in (None, "none"):
        raise InvalidInputError(f"--no-front and --front {front} contradict each other; give one of them")
    options: dict[str, Any] = {
        "listen": listen,
        "data": data,
        "redis": redis,
        "redis_memory_mib": redis_memory_mib,
        "accept_volatile": accept_volatile,
        "ack": ack,
        "checkpoint": checkpoint,
        "snapshot_every": snapshot_every,
        "index_from": index_from,
        "archive": archive,
        "archive_after_days": archive_after_days,
        "front": "none" if no_front else front,
        "fdr": fdr,
        "metrics": metrics,
        "log_level": log_level,
        "log_json": log_json,
        "cross_check": cross_check,
        "idempotency_window_days": idempotency_window_days,
        "create_buses": create_buses,
        "quota_calls_per_second": quota_calls_per_second,
        "quota_bytes_per_second": quota_bytes_per_second,
        "quota_streams": quota_streams,
        "quota_subscriptions": quota_subscriptions,
        "authentication": authentication,
        "tls_cert": tls_cert,
        "tls_key": tls_key,
        "tls_client_ca": tls_client_ca,
        "token_file": token_file,
        "allow_unauthenticated_network": allow_unauthenticated_network,
        "container": container,
    }
    # gRPC would write a line for each failed TLS handshake, past the limits of this server's log.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    from gavel_server import bootstrap
    from gavel_server import config as settings_of_server
    from gavel_server.cli.rendering import output

    settings = settings_of_server.load(config, {name: value for name, value in options.items() if value is not None})
    if not settings_of_server.is_local(settings.listen) and settings.authentication == "none":
        output.print_note(f"gavel: NO AUTHENTICATION on {settings.listen}: anyone who reaches it can act as any producer")
    if settings.is_unreachable:
        output.print_note(
            f"gavel: there is neither a Redis (--redis) nor a volume at {settings.data} (--data), so decisions would be lost with this "
            "container; the server listens on the container's loopback only"
        )
    try:
        bootstrap.run(settings, lambda address: output.print_line(f"gavel: ready on {address}"))
    except bootstrap.ServeError as error:
        raise CommandError(str(error)) from error
