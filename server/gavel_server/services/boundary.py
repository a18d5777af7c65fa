"""The edge between gRPC and the servicers: whatever a servicer raises becomes a status of the error table, and nothing else.

`Guard` stands in for the server when servicers are registered, and wraps every method once, so a servicer says what went
wrong by raising and never touches a status itself. A request that is no message of the contract is INVALID_ARGUMENT here,
where gRPC alone would call it UNKNOWN. An unexpected exception is a bug: the caller gets an id, the server's log the id and
the traceback. Refused calls are counted and logged here; they never reach the log of events. Refusals that speak of the server and not
of the call, of which a full disk or a full queue makes thousands, are a line a second.

A status travels in HTTP trailers, of which clients take 8 KiB; of very many violations only as many are sent as fit, and the
last one says how many more there are.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any, Final

import grpc
import structlog
from gavel.v1 import error_pb2
from gavel.v1.error_pb2 import ErrorReason
from google.protobuf.message import DecodeError
from prometheus_client import Counter

from gavel_server.errors import ServiceError, abort, internal, invalid
from gavel_server.log import LogCorruptError, LogError

# What the violations of one status may take of the 8 KiB that callers take as trailers. The status is sent in base64, and its message
# twice, once percent-encoded; beyond 8 KiB gRPC replaces what is too large at random.
VIOLATIONS_BYTES_MAX: Final = 3840
MESSAGE_BYTES_MAX: Final = 512
# How long refusals that speak of the server are gathered into one line.
GATHERED_SECONDS: Final = 1.0
_OF_THE_SERVER: Final = frozenset(
    {
        error_pb2.ERROR_REASON_QUEUE_FULL,
        error_pb2.ERROR_REASON_LOG_UNAVAILABLE,
        error_pb2.ERROR_REASON_LOG_REGRESSED,
        error_pb2.ERROR_REASON_CLOCK_SKEW,
        error_pb2.ERROR_REASON_ARBITER_VERSION_NOT_IMPLEMENTED,
        error_pb2.ERROR_REASON_SHUTTING_DOWN,
        error_pb2.ERROR_REASON_PROJECTION_BEHIND,
    }
)

CALLS_REFUSED: Final = Counter("gavel_calls_refused", "Calls and batch items that were answered with an error.", ["method", "reason"])

_UnaryMethod = Callable[[Any, Any], Awaitable[Any]]
_StreamMethod = Callable[[Any, Any], AsyncGenerator[Any, None]]

_LOG: Final = structlog.get_logger("gavel.services")


# The generated functions ask for a whole server and call two methods of it.
_Server: Any = object


class Plain(_Server):  # type: ignore[misc]  # so that it passes for a server
    """Takes a library's servicers as a server does and registers them on `server` as they are.

    Pass it to the generated `add_…_to_server` functions in the server's place.
    """

    def __init__(self, server: grpc.aio.Server) -> None:
        self._server = server

    def add_generic_rpc_handlers(self, generic_rpc_handlers: object) -> None:
        """Nothing to do: the same methods come once more, by name."""

    def add_registered_method_handlers(self, service_name: str, method_handlers: Mapping[str, Any]) -> None:
        """Register a service's methods."""
        register(self._server, service_name, method_handlers)


class Guard(Plain):
    """Does so for our own servicers, each method behind the error table."""

    def add_registered_method_handlers(self, service_name: str, method_handlers: Mapping[str, Any]) -> None:
        """Register a service's methods, guarded."""
        guarded = {name: _guarded(f"{service_name}/{name}", handler) for name, handler in method_handlers.items()}
        super().add_registered_method_handlers(service_name, guarded)


def register(server: grpc.aio.Server, service_name: str, method_handlers: Mapping[str, Any]) -> None:
    """Register a service's methods as generic ones.

    grpc.aio keeps a future for each "registered" method and waits for all of them at every call; generic methods are found by
    name. The difference is small (docs/decisions/0010-hot-path.md).
    """
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service_name, dict(method_handlers)),))


def refused(method: str, error: Exception) -> ServiceError:
    """Return the error that a caller hears, once it has been counted and logged: for a call, or for one item of a batch.

    `method` is "gavel.v1.EventService/PublishEvent" or the like.
    """
    answer = _service_error(method, error)
    reason = ErrorReason.Name(answer.reason).removeprefix("ERROR_REASON_")
    CALLS_REFUSED.labels(method, reason).inc()
    if answer.reason in _OF_THE_SERVER:
        _GATHERED.add(method, reason, _shortened(answer.message))
    elif answer.reason != error_pb2.ERROR_REASON_INTERNAL:
        _LOG.info("call.refused", method=method, reason=reason, problem=_shortened(answer.message))
    return answer


class _Gathered:
    """Says the first refusal of a method for a reason at once, and each second how many more there were, with the latest problem."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._more: dict[tuple[str, str], tuple[int, str]] = {}

    def add(self, method: str, reason: str, problem: str) -> None:
        """Note a refusal. Within the event loop."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:  # what another one had still to say, it took with it
            self._loop, self._more = loop, {}
        more = self._more.get((method, reason))
        if more is not None:
            self._more[method, reason] = more[0] + 1, problem
            return
        _LOG.info("call.refused", method=method, reason=reason, problem=problem)
        self._gather(loop, method, reason)

    def _gather(self, loop: asyncio.AbstractEventLoop, method: str, reason: str) -> None:
        self._more[method, reason] = 0, ""
        loop.call_later(GATHERED_SECONDS, self._say, loop, method, reason)

    def _say(self, loop: asyncio.AbstractEventLoop, method: str, reason: str) -> None:
        count, problem = self._more.pop((method, reason))
        if count:
            _LOG.info("call.refused", method=method, reason=reason, problem=problem, count=count)
            self._gather(loop, method, reason)


_GATHERED: Final = _Gathered()


def _service_error(method: str, error: Exception) -> ServiceError:
    if isinstance(error, ServiceError):
        return error
    if isinstance(error, LogError):
        if isinstance(error, LogCorruptError):
            _LOG.error("log.corrupt", method=method, problem=str(error))
        return ServiceError(error_pb2.ERROR_REASON_LOG_UNAVAILABLE, str(error))
    error_id = uuid.uuid4().hex
    _LOG.error("call.failed", method=method, error_id=error_id, exc_info=error)
    return internal(error_id)


def _guarded(method: str, handler: Any) -> Any:
    serializer = handler.response_serializer
    assert not handler.request_streaming  # noqa: S101  # the one stream of requests, StreamProposals, is not registered through Guard
    decode = _decoder(handler.request_deserializer)
    if handler.response_streaming:
        return grpc.unary_stream_rpc_method_handler(_guarded_stream(method, handler.unary_stream), decode, serializer)
    return grpc.unary_unary_rpc_method_handler(_guarded_unary(method, handler.unary_unary), decode, serializer)


def _decoder(decode: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """Return the decoder made total: it runs before the method, where gRPC answers UNKNOWN to whatever is raised."""

    def total(data: bytes) -> Any:
        try:
            return decode(data)
        except DecodeError as error:
            return invalid([("request", f"is not a message of the contract: {error}")])

    return total


def _guarded_unary(method: str, behaviour: _UnaryMethod) -> _UnaryMethod:
    async def answer(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        try:
            if isinstance(request, ServiceError):
                raise request
            return await behaviour(request, context)
        except grpc.aio.AbortError:
            raise
        except Exception as error:  # noqa: BLE001  # a bug is answered as INTERNAL with an id, and logged under it
            await abort(context, fitted(refused(method, error)))

    return answer


def _guarded_stream(method: str, behaviour: _StreamMethod) -> _StreamMethod:
    async def answer(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> AsyncGenerator[Any, None]:
        try:
            if isinstance(request, ServiceError):
                raise request
            async with aclosing(behaviour(request, context)) as responses:
                async for response in responses:
                    yield response
        except grpc.aio.AbortError:
            raise
        except Exception as error:  # noqa: BLE001  # a bug is answered as INTERNAL with an id, and logged under it
            await abort(context, fitted(refused(method, error)))

    return answer


def fitted(error: ServiceError) -> ServiceError:
    """Return the error with as many of its violations as the trailers hold, each and the message cut where too long."""
    room = VIOLATIONS_BYTES_MAX
    kept: list[tuple[str, str]] = []
    for field, description in error.violations:
        violation = (_shortened(field), _shortened(description))
        room -= sum(len(text.encode()) for text in violation) + 16  # tags and lengths
        if room < 0:
            kept.append(("request", f"has {len(error.violations) - len(kept)} more violations, which this answer has no room for"))
            break
        kept.append(violation)
    return ServiceError(error.reason, _shortened(error.message), kept, error.retry_after_ms)


def _shortened(text: str) -> str:
    encoded = text.encode()
    if len(encoded) <= MESSAGE_BYTES_MAX:
        return text
    return encoded[:MESSAGE_BYTES_MAX].decode(errors="ignore") + "…"
