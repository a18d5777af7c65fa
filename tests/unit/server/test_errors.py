"""How calls end with an error."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from gavel.v1 import error_pb2
from gavel_server.errors import DETAILS_KEY, PUSHBACK_KEY, ServiceError, abort
from google.rpc.error_details_pb2 import BadRequest, ErrorInfo, QuotaFailure, RetryInfo
from google.rpc.status_pb2 import Status


class GoneConnection:
    """The context of a call whose connection has broken, as grpc.aio behaves."""

    async def abort(self, *_: Any) -> None:
        """Fail to send the status."""
        raise grpc.aio.InternalError("the connection is gone")


async def test_the_connection_is_gone() -> None:
    """A call that cannot be told its error ends as cancelled: it is no bug of the server, and nothing is logged."""
    context: Any = GoneConnection()
    with pytest.raises(asyncio.CancelledError):
        await abort(context, ServiceError(error_pb2.ERROR_REASON_INVALID_REQUEST, "no"))


def test_encoded_status() -> None:
    """The encoded status has the code, the message and every detail of the error; of equal errors it is equal."""
    error = ServiceError(error_pb2.ERROR_REASON_QUOTA_EXCEEDED, "no", [("field", "is wrong")], 1_250, ("caller", "calls are limited"))
    status = Status.FromString(error.encoded_status())
    info, request, quota, retry = ErrorInfo(), BadRequest(), QuotaFailure(), RetryInfo()
    for detail, message in zip(status.details, (info, request, quota, retry), strict=True):
        assert detail.Unpack(message)
    assert (grpc.StatusCode.RESOURCE_EXHAUSTED.value[0], "no") == (status.code, status.message)
    assert ErrorInfo(reason="QUOTA_EXCEEDED", domain="gavel") == info
    assert [("field", "is wrong")] == [(one.field, one.description) for one in request.field_violations]
    assert [("caller", "calls are limited")] == [(one.subject, one.description) for one in quota.violations]
    assert 1_250 == retry.retry_delay.ToMilliseconds()
    assert error.encoded_status() == error.copy().encoded_status()
    assert status == error.status()


async def test_an_error_that_names_its_delay() -> None:
    """An error that names its delay has it as RetryInfo and in the trailing metadata, whatever its code; another of that code has none."""
    wrong_state = error_pb2.ERROR_REASON_WRONG_STATE
    calls: list[tuple[Any, ...]] = []

    class Context:
        async def abort(self, *arguments: Any) -> None:
            calls.append(arguments)
            raise grpc.aio.AbortError

    context: Any = Context()
    for error in (ServiceError(wrong_state, "no"), ServiceError(wrong_state, "no", retry_after_ms=70)):
        with pytest.raises(grpc.aio.AbortError):
            await abort(context, error)
    (_, _, lasting), (_, _, passing) = calls
    assert [None, "70"] == [dict(metadata).get(PUSHBACK_KEY) for metadata in (lasting, passing)]
    retry = RetryInfo()
    assert Status.FromString(dict(passing)[DETAILS_KEY]).details[1].Unpack(retry)
    assert 70 == retry.retry_delay.ToMilliseconds()


def test_errors_that_differ_have_other_statuses() -> None:
    """No part of an error is left out when its encoded status is remembered."""
    invalid, full = error_pb2.ERROR_REASON_INVALID_REQUEST, error_pb2.ERROR_REASON_QUEUE_FULL
    errors = [
        ServiceError(invalid, "no"),
        ServiceError(invalid, "yes"),
        ServiceError(full, "no"),
        ServiceError(full, "no", retry_after_ms=1),
        ServiceError(invalid, "no", [("a", "b")]),
        ServiceError(invalid, "no", [("a", "c")]),
        ServiceError(invalid, "no", quota=("a", "b")),
    ]
    assert len(errors) == len({error.encoded_status() for error in errors})
