"""The server's own gRPC: its limits, and how an address is bound. `limits` has the limits of both transports."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Final

import grpc

from gavel_server.rpc.limits import (
    CONNECTION_CALLS_MAX,
    HEADER_BYTES_MAX,
    IDLE_SECONDS_MAX,
    KEEPALIVE_SECONDS,
    KEEPALIVE_TIMEOUT_SECONDS,
    PING_SECONDS_MIN,
    RECEIVE_BYTES_MAX,
    REQUEST_SECONDS_MAX,
    SEND_BYTES_MAX,
)

# Calls that have arrived and wait for Python. Beyond 1,000, its default, gRPC ends some of them with CANCELLED, at random. They must reach
# the sequencer, which refuses with a reason and a retry delay.
PENDING_CALLS_MAX: Final = 50_000
STOP_GRACE_SECONDS: Final = 5.0
UNIX: Final = "unix:"
PROBE_SECONDS: Final = 1.0


def make_server(*, behind_front: bool = False) -> grpc.aio.Server:
    """Return a server without handlers and addresses.

    `behind_front`: only the front and the server's own parts connect to it. The front limits its callers' connections, and puts all
    their calls on one connection of its own.
    """
    of_connections = [
        ("grpc.max_concurrent_streams", CONNECTION_CALLS_MAX),
        ("grpc.server_handshake_timeout_ms", REQUEST_SECONDS_MAX * 1000),
        ("grpc.max_connection_idle_ms", IDLE_SECONDS_MAX * 1000),
        ("grpc.keepalive_time_ms", KEEPALIVE_SECONDS * 1000),
        ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_SECONDS * 1000),
    ]
    return grpc.aio.server(
        options=[
            *([] if behind_front else of_connections),
            # gRPC has a soft and a hard limit, and between them refuses calls at random: set both to one value.
            ("grpc.max_metadata_size", HEADER_BYTES_MAX),
            ("grpc.absolute_max_metadata_size", HEADER_BYTES_MAX),
            ("grpc.max_receive_message_length", RECEIVE_BYTES_MAX),
            ("grpc.max_send_message_length", SEND_BYTES_MAX),
            ("grpc.so_reuseport", 0),
            ("grpc.server.max_pending_requests", PENDING_CALLS_MAX),
            ("grpc.server.max_pending_requests_hard_limit", PENDING_CALLS_MAX),
            ("grpc.http2.min_ping_interval_without_data_ms", PING_SECONDS_MIN * 1000),
            ("grpc.keepalive_permit_without_calls", 1),
        ]
    )


def bind(server: grpc.aio.Server, listen: str, credentials: grpc.ServerCredentials | None = None, *, is_private: bool = False) -> str:
    """Bind an address and return it with the port that was taken. Raises OSError.

    `credentials` encrypt connections over TCP. `is_private`: only this user may connect to a Unix socket, whatever its directory.
    """
    refusal = f"cannot listen on {listen}: another server may be running there, or this machine does not have the address"
    if listen.startswith(UNIX) and _is_served(listen.removeprefix(UNIX)):
        raise OSError(refusal)
    try:
        if listen.startswith(UNIX):
            with _private_files() if is_private else nullcontext():
                server.add_insecure_port(listen)
            return listen
        port = server.add_insecure_port(listen) if credentials is None else server.add_secure_port(listen, credentials)
    except RuntimeError as error:
        raise OSError(refusal) from error
    return f"{listen.rpartition(':')[0]}:{port}"


@contextmanager
def _private_files() -> Iterator[None]:
    """Let new files and sockets belong to this user alone. A mode set after the socket is bound would come too late."""
    previous = os.umask(0o177)
    try:
        yield
    finally:
        os.umask(previous)


def own_address(address: str) -> str:
    """Return the address under which this machine reaches a server that listens on `address`."""
    host, separator, port = address.rpartition(":")
    local = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}.get(host, host)  # noqa: S104  # the wildcard of callers, not bound here
    return address if address.startswith(UNIX) else local + separator + port


def _is_served(path: str) -> bool:
    """Return whether a process listens on a unix socket. gRPC would remove such a socket silently, and cut off that server's callers."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(PROBE_SECONDS)
        try:
            probe.connect(path.removeprefix("//"))
        except TimeoutError:
            return True
        except (OSError, ValueError):
            return False  # nobody listens, or gRPC refuses the path itself
        return True
