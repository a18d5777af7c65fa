"""The messages of one call over grpc.aio: its request, its responses and its status. Each is received or sent within a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import grpc
from gavel.v1 import error_pb2

from gavel_server.errors import ServiceError, abort, invalid
from gavel_server.rpc.errors import refuse
from gavel_server.rpc.limits import REQUEST_SECONDS_MAX, STALL_SECONDS_MAX

GrpcContext = grpc.aio.ServicerContext[Any, Any]


async def receive_request(name: str, context: GrpcContext) -> bytes:
    """Return the request of a call that has one, or end the call if none arrives."""
    try:
        async with asyncio.timeout(REQUEST_SECONDS_MAX):
            data = await context.read()
    except TimeoutError:
        message = f"the request did not arrive within {REQUEST_SECONDS_MAX} s; try again"
        return await abort(context, refuse(name, ServiceError(error_pb2.ERROR_REASON_QUEUE_FULL, message)))
    if data is grpc.aio.EOF:
        return await abort(context, refuse(name, invalid([("request", "is missing: the call ended without a message")])))
    return cast(bytes, data)


async def send_response(context: GrpcContext, response: Any) -> None:
    """Send a response of a stream. Raises ServiceError QUEUE_FULL if the caller reads nothing for STALL_SECONDS_MAX.

    Raises CancelledError if the connection is gone: grpc.aio cancels the call a moment after its writes begin to fail.
    """
    try:
        async with asyncio.timeout(STALL_SECONDS_MAX):
            await context.write(response)
    except grpc.aio.InternalError:
        raise asyncio.CancelledError from None
    except TimeoutError:
        message = f"the answers were not read for {STALL_SECONDS_MAX} s; read them as they arrive"
        raise ServiceError(error_pb2.ERROR_REASON_QUEUE_FULL, message) from None


@asynccontextmanager
async def abort_on_error(name: str, context: GrpcContext) -> AsyncIterator[None]:
    """End the call with a status of the error table if the block raises."""
    try:
        yield
    except grpc.aio.AbortError:
        raise
    except Exception as error:  # noqa: BLE001  # a bug is answered as INTERNAL with an id, and logged under it
        await abort(context, refuse(name, error))


def code_of(context: GrpcContext) -> grpc.StatusCode:
    """Return the code that a library has ended a call with."""
    number = context.code()
    return next((code for code in grpc.StatusCode if number in (code, code.value[0])), grpc.StatusCode.UNKNOWN)
