"""gRPC servers and channels of Gavel's own making: their limits, and how an address is bound."""

from __future__ import annotations

import socket
from typing import Any, Final

import grpc

# Above the contract's own limits, so that those are refused with a named violation and not by the transport.
RECEIVE_BYTES_MAX: Final = 16 * 1024 * 1024
SEND_BYTES_MAX: Final = 64 * 1024 * 1024
# Calls that have arrived and wait for Python. From 1,000 on gRPC would end some of them with CANCELLED, at random; they are to
# reach the sequencer, which says why a call is refused and when to come back.
PENDING_CALLS_MAX: Final = 50_000
STOP_GRACE_SECONDS: Final = 5.0
# How often a caller may ask whether the connection is alive, also while no call is under way: subscribers behind a load balancer have
# to. gRPC's own limit, five minutes, is longer than such a thing keeps a silent connection.
PINGS_APART_MS_MIN: Final = 10_000
UNIX: Final = "unix:"
PROBE_SECONDS: Final = 1.0


def make_server() -> grpc.aio.Server:
    """Return a server without handlers and addresses."""
    return grpc.aio.server(
        options=[
            ("grpc.max_receive_message_length", RECEIVE_BYTES_MAX),
            ("grpc.max_send_message_length", SEND_BYTES_MAX),
            ("grpc.so_reuseport", 0),
            ("grpc.server.max_pending_requests", PENDING_CALLS_MAX),
            ("grpc.server.max_pending_requests_hard_limit", PENDING_CALLS_MAX),
            ("grpc.http2.min_ping_interval_without_data_ms", PINGS_APART_MS_MIN),
            ("grpc.keepalive_permit_without_calls", 1),
        ]
    )


def channel_options() -> list[tuple[str, Any]]:
    """Return the options of a channel to such a server."""
    return [("grpc.max_receive_message_length", SEND_BYTES_MAX), ("grpc.max_send_message_length", RECEIVE_BYTES_MAX)]


def bind(server: grpc.aio.Server, listen: str) -> str:
    """Bind the address and return it with the port that was really taken. Raises OSError."""
    refusal = f"cannot listen on {listen}: is another server running there, or is it no address of this machine?"
    if listen.startswith(UNIX) and _is_served(listen.removeprefix(UNIX)):
        raise OSError(refusal)
    try:
        port = server.add_insecure_port(listen)
    except RuntimeError as error:
        raise OSError(refusal) from error
    if listen.startswith(UNIX):
        return listen
    return f"{listen.rpartition(':')[0]}:{port}"


def _is_served(path: str) -> bool:
    """Whether somebody listens on a unix socket. gRPC would take its path away, and with it the other server's callers, unseen."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(PROBE_SECONDS)
        try:
            probe.connect(path.removeprefix("//"))
        except TimeoutError:
            return True
        except (OSError, ValueError):
            return False  # nobody, or a path that gRPC refuses with its own words
        return True
