"""Errors as callers see them: each exception becomes an error of the table (`errors`), is counted, and is logged.

An unexpected exception is a bug: the caller gets an id, the server's log the id and the traceback. Refusals of one method for one reason
share a log line a second (`process/logging/limit`). The log of events tells only of calls without credentials or rights, by their number
(`identity/access_refusals`).

A status travels in HTTP trailers, of which clients accept 8 KiB. Violations beyond that are left out, and the last one says how many. The
same holds for the items of batches and streams, so that a batch of refused items is answered with 3 MiB at most.
"""

from __future__ import annotations

from functools import cache
from typing import Final

import structlog
from gavel.v1 import error_pb2
from gavel.v1.error_pb2 import ErrorReason
from prometheus_client import Counter

from gavel_server.errors import Bug, ServiceError, reason_name
from gavel_server.log import LogCorruptError, LogError
from gavel_server.process.logging.repeated_line import RepeatedLine

# What the violations of one status may take of the 8 KiB of trailers. The status is sent in base64, and its message twice, once
# percent-encoded; beyond 8 KiB gRPC refuses the call at random.
VIOLATIONS_BYTES_MAX: Final = 3840
ERROR_MESSAGE_BYTES_MAX: Final = 512
# How much of a refusal's message its log line quotes. It may be the caller's text.
LOG_MESSAGE_BYTES_MAX: Final = 128

CALLS_REFUSED: Final = Counter("gavel_calls_refused", "Calls and batch items that were answered with an error.", ["method", "reason"])

_LOG: Final = structlog.get_logger("gavel.services")


def refuse(method: str, error: Exception) -> ServiceError:
    """Return the error that the caller gets for a call, or for one item of a batch or stream, after counting and logging it.

    `method` is "gavel.v1.EventService/PublishEvent" or the like.
    """
    refusal = _service_error(method, error)
    counter, line = _instruments(method, refusal.reason)
    counter.inc()
    if refusal.reason != error_pb2.ERROR_REASON_INTERNAL:
        line.info(problem=_shorten(refusal.message, LOG_MESSAGE_BYTES_MAX))
    return fit(refusal)


def fit(error: ServiceError) -> ServiceError:
    """Return a new error with as many violations as fit into the trailers; the message and each violation are cut if they are too long."""
    room = VIOLATIONS_BYTES_MAX
    violations: list[tuple[str, str]] = []
    for field, description in error.violations:
        violation = (_shorten(field), _shorten(description))
        room -= _size_bytes(violation[0]) + _size_bytes(violation[1]) + 16  # tags and lengths
        if room < 0:
            rest = len(error.violations) - len(violations)
            violations.append(("request", f"has {rest} more violations, which this answer has no room for"))
            break
        violations.append(violation)
    return ServiceError(error.reason, _shorten(error.message), violations, error.retry_after_ms, error.quota)


def as_service_error(error: BaseException) -> BaseException:
    """Return the error that a caller gets for an exception of the log; any other exception as it is."""
    return ServiceError(error_pb2.ERROR_REASON_LOG_UNAVAILABLE, str(error)) if isinstance(error, LogError) else error


def _service_error(method: str, error: Exception) -> ServiceError:
    if isinstance(error, ServiceError):
        return error
    if isinstance(error, LogError):
        if isinstance(error, LogCorruptError):
            _LOG.error("log.corrupt", method=method, problem=str(error))
        return ServiceError(error_pb2.ERROR_REASON_LOG_UNAVAILABLE, str(error))
    bug = Bug(error)
    _LOG.error("call.failed", method=method, error_id=bug.error_id, where=bug.where, exc_info=error)
    return bug.service_error()


@cache
def _instruments(method: str, reason: ErrorReason.ValueType) -> tuple[Counter, RepeatedLine]:
    """Return the metric and the log line of a method's refusals for one reason."""
    name = reason_name(reason)
    return CALLS_REFUSED.labels(method, name), RepeatedLine(_LOG, "call.refused", method=method, reason=name)


def _shorten(text: str, bytes_max: int = ERROR_MESSAGE_BYTES_MAX) -> str:
    if 4 * len(text) <= bytes_max:  # a character takes 4 bytes in UTF-8 at most
        return text
    encoded = text.encode()
    if len(encoded) <= bytes_max:
        return text
    return encoded[:bytes_max].decode(errors="ignore") + "…"


def _size_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())
