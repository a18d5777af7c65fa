"""The options of `gavel serve`, by concern. Each has the name of its setting (`config.Settings`); None: it is not on the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from gavel_server.cli.options import check_store


class StoreOptions(NamedTuple):
    """The options of the place of the log."""

    data: Annotated[Path | None, typer.Option(metavar="DIR", help="Data directory of the embedded Redis. Default: .gavel.")] = None
    redis: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            callback=check_store,
            help="A Redis, Sentinel set or cluster to use in place of the embedded Redis. Give a URL with a password as GAVEL_REDIS.",
        ),
    ] = None
    log: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            callback=check_store,
            help="A PostgreSQL (postgresql://…), or a Redis as with --redis, to use in place of the embedded Redis. Give a URL with a "
            "password as GAVEL_LOG.",
        ),
    ] = None
    redis_memory_mib: Annotated[
        int | None, typer.Option(metavar="N", help="Memory for the data of the embedded Redis, in MiB. Default: half of the machine's.")
    ] = None


class DurabilityOptions(NamedTuple):
    """How surely the log keeps acknowledged events."""

    accept_volatile: Annotated[
        bool | None, typer.Option("--accept-volatile", help="Serve even if the store can lose acknowledged events.")
    ] = None
    ack: Annotated[
        str | None,
        typer.Option(
            metavar="replicas:N|aof:N",
            help="Wait until N replicas have a write, or have it on disk (aof), before answering it. Default: replicas:0.",
        ),
    ] = None
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="The file that notes the last acknowledged event. Default: checkpoint.json in the data directory."
        ),
    ] = None


class HistoryOptions(NamedTuple):
    """How the server finds its way in a long log: snapshots, the index and the archive."""

    snapshot_every: Annotated[
        int | None,
        typer.Option(metavar="N", help="Write a snapshot of a bus after every N events, and on a clean stop. 0: never. Default: 100,000."),
    ] = None
    index_from: Annotated[
        int | None, typer.Option(metavar="N", help="How many events a bus must have to get an index of its events. Default: 10,000.")
    ] = None
    archive: Annotated[
        str | None, typer.Option(metavar="DIR|URL", help="The archive of old events: a directory, or s3://BUCKET/PATH. Default: none.")
    ] = None
    archive_after_days: Annotated[
        int | None, typer.Option(metavar="N", help="Age in days from which events are in the archive only. Default: 30.")
    ] = None


class ProcessOptions(NamedTuple):
    """The processes of the server: what speaks gRPC, and where facts are derived."""

    front: Annotated[
        str | None,
        typer.Option(
            metavar="WHICH",
            autocompletion=lambda: ["auto", "native", "none"],
            help="The process that speaks gRPC: native (one of its own), none (this process) or auto (native if it is installed and there "
            "are several processors). Default: auto.",
        ),
    ] = None
    no_front: Annotated[bool, typer.Option("--no-front", help="The same as --front none.")] = False
    fdr: Annotated[bool | None, typer.Option("--fdr/--no-fdr", help="Derive facts from executions in this process. Default: yes.")] = None


class ObservationOptions(NamedTuple):
    """The options of metrics and log lines."""

    metrics: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Serve Prometheus metrics at this address. Default: no metrics.")
    ] = None
    log_level: Annotated[
        str | None,
        typer.Option(
            metavar="LEVEL",
            autocompletion=lambda: ["debug", "info", "warning", "error"],
            help="Lowest level of the log lines: debug, info, warning or error. Default: info.",
        ),
    ] = None
    log_json: Annotated[bool | None, typer.Option("--log-json", help="Write log lines as JSON.")] = None


class BusOptions(NamedTuple):
    """The buses that the server creates."""

    cross_check: Annotated[
        str | None,
        typer.Option(metavar="MODE", help="When both engines decide, for buses created here: always, off or 'sample N'. Default: always."),
    ] = None
    idempotency_window_days: Annotated[
        int | None, typer.Option(metavar="N", help="How long an event_id is remembered, for buses created here: 1 to 365 days. Default: 7.")
    ] = None
    create_buses: Annotated[
        str | None,
        typer.Option(
            metavar="true|false",
            autocompletion=lambda: ["true", "false"],
            help="Whether a write without authentication creates its bus. Otherwise only `gavel bus create` does. Default: true.",
        ),
    ] = None


class QuotaOptions(NamedTuple):
    """How much one caller may ask of the server."""

    quota_calls_per_second: Annotated[int | None, typer.Option(metavar="N", help="Calls a second of one caller. Default: 20,000.")] = None
    quota_bytes_per_second: Annotated[
        int | None, typer.Option(metavar="N", help="Bytes of requests a second of one caller. Default: 256 MiB.")
    ] = None
    quota_streams: Annotated[int | None, typer.Option(metavar="N", help="Open streams of one caller. Default: 256.")] = None
    quota_subscriptions: Annotated[int | None, typer.Option(metavar="N", help="Open subscriptions of one caller. Default: 128.")] = None


class IdentityOptions(NamedTuple):
    """How callers are authenticated, and what protects the connection."""

    authentication: Annotated[
        str | None,
        typer.Option(
            metavar="WHICH",
            autocompletion=lambda: ["none", "required"],
            help="Whether callers must be authenticated: none or required. Default: none.",
        ),
    ] = None
    tls_cert: Annotated[Path | None, typer.Option(metavar="FILE", help="The server's certificate in PEM. Default: no TLS.")] = None
    tls_key: Annotated[Path | None, typer.Option(metavar="FILE", help="The private key of --tls-cert in PEM.")] = None
    tls_client_ca: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The authorities of client certificates in PEM; callers must present one.")
    ] = None
    token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The file of `gavel token create`: callers with these tokens are accepted.")
    ] = None
    allow_unauthenticated_network: Annotated[
        bool | None,
        typer.Option(
            "--allow-unauthenticated-network",
            help="Listen beyond this machine without authentication or without TLS, if the network is protected by other means.",
        ),
    ] = None
