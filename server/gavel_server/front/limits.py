"""The limits that the server sends to the native front with the order to serve (`server/front/limits.go`)."""

from __future__ import annotations

from typing import Any

from gavel_rules.limits import BATCH_BYTES_MAX
from google.protobuf.descriptor import MethodDescriptor

from gavel_server.rpc import limits
from gavel_server.rpc.identity.authentication import OPEN_METHODS
from gavel_server.rpc.service_descriptors import HEALTH, REFLECTIONS, SERVICES


def limits_and_methods() -> dict[str, Any]:
    """Return every limit by name, and every method by path."""
    methods = {f"/{method.containing_service.full_name}/{method.name}": _method(method) for method in _methods()}
    return {
        "connections": limits.CONNECTIONS_MAX,
        "caller_connections": limits.CALLER_CONNECTIONS_MAX,
        "connection_calls": limits.CONNECTION_CALLS_MAX,
        "connection_bytes": limits.CONNECTION_BYTES_MAX,
        "bytes_in_flight": limits.BYTES_IN_FLIGHT_MAX,
        "send_bytes": limits.SEND_BYTES_MAX,
        "header_bytes": limits.HEADER_BYTES_MAX,
        "header_list_bytes": limits.HEADER_LIST_BYTES_MAX,
        "decompressions": limits.DECOMPRESSIONS_MAX,
        "forwarded_calls": limits.FORWARDED_CALLS_MAX,
        "authentications": limits.AUTHENTICATIONS_MAX,
        "large_requests": limits.LARGE_REQUESTS_MAX,
        "large_request_bytes": limits.LARGE_REQUEST_BYTES,
        "resets": limits.RESETS_MAX,
        "reset_seconds": limits.RESET_SECONDS,
        "idle_seconds": limits.IDLE_SECONDS_MAX,
        "request_seconds": limits.REQUEST_SECONDS_MAX,
        "stall_seconds": limits.STALL_SECONDS_MAX,
        "ping_seconds_min": limits.PING_SECONDS_MIN,
        "keepalive_seconds": limits.KEEPALIVE_SECONDS,
        "keepalive_timeout_seconds": limits.KEEPALIVE_TIMEOUT_SECONDS,
        "memory_bytes": limits.FRONT_MEMORY_BYTES,
        "methods": methods,
    }


def _methods() -> list[MethodDescriptor]:
    return [method for service in (*SERVICES, HEALTH, *REFLECTIONS) for method in service.methods]


def _method(method: MethodDescriptor) -> dict[str, Any]:
    name = f"{method.containing_service.full_name}/{method.name}"
    request_bytes = limits.request_limit(name).bytes_max
    if method.client_streaming:
        # The server refuses an item of a stream by itself. Only one that is larger than any request ends the stream.
        request_bytes = BATCH_BYTES_MAX
    return {
        "request_bytes": request_bytes,
        "client_streaming": method.client_streaming,
        "is_open": name in OPEN_METHODS,
        # Anybody may hold these streams open for ever: they must not keep others from connecting.
        "counts_as_idle": method.containing_service in (HEALTH, *REFLECTIONS),
    }
