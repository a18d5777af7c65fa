"""Errors as callers see them."""

from __future__ import annotations

import pytest
from gavel.v1 import error_pb2
from gavel_server.errors import ServiceError
from gavel_server.log import LogUnavailableError
from gavel_server.rpc.errors import ERROR_MESSAGE_BYTES_MAX, VIOLATIONS_BYTES_MAX, fit, refuse

METHOD = "gavel.v1.EventService/GetEvent"


def test_service_error_is_unchanged() -> None:
    """An error of the table is the caller's as it is, without the frames that it was raised in."""
    with pytest.raises(ServiceError) as raised:
        raise ServiceError(error_pb2.ERROR_REASON_WRONG_STATE, "no", [("field", "is wrong")], 7)
    refusal = refuse(METHOD, raised.value)
    assert raised.value.status() == refusal.status()
    assert refusal.__traceback__ is None


def test_an_unexpected_exception() -> None:
    """An unexpected exception is INTERNAL without its message."""
    bug = refuse(METHOD, RuntimeError("secret"))
    assert error_pb2.ERROR_REASON_INTERNAL == bug.reason
    assert "secret" not in bug.message


def test_bug_has_one_id() -> None:
    """The id of a bug belongs to its place: the log limits its lines, and every caller's id is in one of them."""

    def fail(problem: str) -> Exception:
        try:
            raise RuntimeError(problem)
        except RuntimeError as error:
            return error

    assert 1 == len({refuse(METHOD, fail(str(number))).message for number in range(3)})
    assert refuse(METHOD, fail("a")).message != refuse(METHOD, RuntimeError("a")).message


async def test_failing_log() -> None:
    """A log that fails is LOG_UNAVAILABLE with the log's message."""
    refusal = refuse(METHOD, LogUnavailableError("cannot reach Redis"))
    assert (error_pb2.ERROR_REASON_LOG_UNAVAILABLE, "cannot reach Redis") == (refusal.reason, refusal.message)


def test_errors_are_truncated() -> None:
    """Message and violations are cut to their limits, between characters, and the last violation says how many are left out."""
    error = fit(ServiceError(error_pb2.ERROR_REASON_INVALID_REQUEST, "ü" * 1000, [("field", "x" * 1000)] * 20))
    assert "ü" * (ERROR_MESSAGE_BYTES_MAX // 2) + "…" == error.message
    *violations, last = error.violations
    assert sum(len(field) + len(description) for field, description in violations) <= VIOLATIONS_BYTES_MAX
    assert ("request", f"has {20 - len(violations)} more violations, which this answer has no room for") == last
