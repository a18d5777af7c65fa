"""The one place that every RPC passes, on every transport (ADR 0031): our services, health and reflection.

The interceptor gives a method the call's context, and turns any exception of the method into a status of the error table; `refusals` counts
and logs it. Methods raise and never touch a status. Bytes that are not a request are INVALID_ARGUMENT here; gRPC's own decoding would
answer UNKNOWN. It refuses calls whose caller is not authenticated (`authentication`), and ends streams with their caller's credentials or
right. Each call is charged to its caller's quotas (`fairness/quotas`) before it is decoded. What a caller may do is decided elsewhere.

Over grpc.aio it receives requests and sends the answers of streams itself (`messages`). gRPC's own handlers wait for ever, and do not
answer a call that ends without a request.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, aclosing, contextmanager, nullcontext
from inspect import isasyncgenfunction, iscoroutinefunction
from typing import TYPE_CHECKING, Any, Final, Protocol

import grpc
from gavel.v1 import error_pb2
from gavel_rules.identity.principal import ANONYMOUS, Principal
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from gavel_server.errors import ServiceError, abort
from gavel_server.fairness.quotas import QuotaLimits, Quotas
from gavel_server.fairness.waiting import announce_by, announce_wait
from gavel_server.identity.errors import unauthenticated
from gavel_server.identity.sessions import Session
from gavel_server.rpc.call_context import CallContext, grpc_call_context
from gavel_server.rpc.callback_methods import Answer, CallbackMethod, Method, call, opening_of
from gavel_server.rpc.decoding import RequestDecoder
from gavel_server.rpc.encoded_response import EncodedResponse
from gavel_server.rpc.errors import as_service_error, refuse
from gavel_server.rpc.identity.access import AccessControl
from gavel_server.rpc.identity.authentication import CallAuthentication
from gavel_server.rpc.identity.authorization import (
    authorize,
    authorize_again,
    call_if_authorized,
    note_refusal,
    read_while_authorized,
    record_refusals,
    while_authorized,
)
from gavel_server.rpc.identity.open_calls import OpenCall
from gavel_server.rpc.messages import GrpcContext, abort_on_error, code_of, receive_request, send_response
from gavel_server.rpc.service_descriptors import ARBITRATION
from gavel_server.rpc.streaming import stream_answers
from gavel_server.rpc.telemetry.call_observer import CallObserver, current
from gavel_server.rpc.wire import last_text_field

# The method whose streams are subscriptions.
_SUBSCRIBE: Final = "SubscribeEvents"
# Reads that may wait long for their answer: meanwhile the caller's credentials may expire, and its right may end.
_LONG_POLLS: Final = frozenset({f"{ARBITRATION.full_name}/WaitDecision"})
Guard = Callable[[Any, Principal], Awaitable[None]]
"""Checks whether a caller may make a request. Raises ServiceError."""
if TYPE_CHECKING:  # grpc's class takes no parameters at run time
    _Handler = grpc.RpcMethodHandler[Any, Any]


class HandlerRegistry(Protocol):
    """The place where handlers are registered: a grpc.aio server, or a listener, which keeps them for the next server."""

    def add_generic_rpc_handlers(self, handlers: Sequence[grpc.GenericRpcHandler], /) -> None:
        """Serve the methods of these handlers."""


class Interceptor:
    """Registers services with a grpc.aio server so that every call passes here, and wraps callback methods for the native front's link."""

    def __init__(
        self,
        *,
        behind_front: bool = False,
        quotas: Quotas | None = None,
        observer: CallObserver | None = None,
        authentication: CallAuthentication | None = None,
    ) -> None:
        """`behind_front`: the grpc.aio server listens on its private socket alone, and callers reach the native front.

        `quotas` are charged for each call; default: those of QuotaLimits. `observer` measures and traces each call; None: nothing does.
        `authentication` checks the callers of grpc.aio; default: they need no credentials.
        """
        self._observer: Final = observer
        self._behind_front: Final = behind_front
        self.quotas: Final = Quotas(QuotaLimits()) if quotas is None else quotas
        self.access: AccessControl | None = None  # set before services are registered
        self._authentication: Final = authentication or CallAuthentication()
        self._closing: Final = asyncio.Event()

    def note_unauthenticated(self, name: str) -> None:
        """Count a call of a caller without valid credentials, which the front may have refused."""
        if self._observer is not None:
            self._observer.count_unauthenticated()
        if self.access is not None:
            self.access.refusals.note(name, "", ANONYMOUS, unauthenticated(""))

    def intercept(self, service: ServiceDescriptor, methods: Mapping[str, CallbackMethod]) -> dict[str, Method]:
        """Return a service's callback methods, by name, as methods that never raise, and those that open streams of requests."""
        intercepted = {
            name: _intercept(f"{service.full_name}/{name}", method, self.quotas, self.access, _bus_number(service.methods_by_name[name]))
            for name, method in methods.items()
        }
        observer = self._observer
        if observer is not None:
            intercepted = {name: _observe(method, observer) for name, method in intercepted.items()}
        streams = [name for name in methods if service.methods_by_name[name].client_streaming]
        return intercepted | {opening_of(name): _opening(f"{service.full_name}/{name}", self.quotas) for name in streams}

    def register_methods(self, server: HandlerRegistry, service: ServiceDescriptor, methods: Mapping[str, Method]) -> None:
        """Serve intercepted callback methods over grpc.aio. A method with a stream of requests answers each request by itself."""
        handlers = {
            method.name: (self._plain_stream if method.client_streaming else self._plain_unary)(_name(method), methods[method.name])
            for method in service.methods
            if method.name in methods
        }
        _add(server, service, handlers)

    def register(self, server: HandlerRegistry, service: ServiceDescriptor, servicer: object) -> None:
        """Serve one of our servicers: an async method for each method of the service, which takes the request and a CallContext.

        Raises AttributeError if the servicer lacks a method.
        """
        handlers = {method.name: self._handler(method, getattr(servicer, method.name)) for method in service.methods}
        _add(server, service, handlers)

    def register_library(self, server: HandlerRegistry, service: ServiceDescriptor, servicer: object, guard: Guard | None = None) -> None:
        """Serve a servicer of gRPC's own libraries, whose methods take gRPC's context and may use it to end a call.

        A method that the library does not implement is not served. `guard` checks the request of each method that takes a single request,
        and again before each answer of a stream. A stream that is silent yields None from time to time, which only has it checked.
        """
        behaviours = {method.name: getattr(servicer, method.name) for method in service.methods}
        handlers = {
            name: self._library_handler(service.methods_by_name[name], behaviour, guard)
            for name, behaviour in behaviours.items()
            if iscoroutinefunction(behaviour) or isasyncgenfunction(behaviour)
        }
        _add(server, service, handlers)

    def close_streams(self) -> None:
        """Let streams of requests end: no further request is read, and those under way are answered."""
        self._closing.set()

    async def _begin(self, name: str, context: GrpcContext) -> CallContext:
        """Return the context of a call whose caller is authenticated, or end the call."""
        session: Session | None = None
        if not self._authentication.is_open:
            async with abort_on_error(name, context):
                try:
                    session = await self._authentication.session(name, context)
                except ServiceError as error:
                    if error.reason == error_pb2.ERROR_REASON_UNAUTHENTICATED:
                        self.note_unauthenticated(name)
                    raise
        call_context = grpc_call_context(name, context, behind_front=self._behind_front, session=session)
        if self._behind_front:
            announce_by(call_context.announce_wait)
        return call_context

    @contextmanager
    def _observed(self, call_context: CallContext, context: GrpcContext, *, is_traced: bool = True) -> Iterator[None]:
        """Observe a call of a method other than the plain ones, which `intercept` observes."""
        if self._observer is None:
            yield
            return
        observation = self._observer.begin(call_context, is_traced=is_traced)
        with current(observation.trace):
            try:
                yield
            except grpc.aio.AbortError:
                observation.end_with_code(code_of(context))
                raise
            except BaseException as error:
                observation.end(as_service_error(error))
                raise
            observation.end()

    def _plain_unary(self, name: str, method: Method) -> _Handler:
        async def behaviour(_: object, context: GrpcContext) -> bytes:
            call_context = await self._begin(name, context)
            result = await call(method, await receive_request(name, context), call_context)
            if isinstance(result, ServiceError):
                await abort(context, result)
            return result

        return grpc.stream_unary_rpc_method_handler(behaviour)

    def _plain_stream(self, name: str, method: Method) -> _Handler:
        async def behaviour(requests: AsyncIterator[bytes], context: GrpcContext) -> None:
            call_context = await self._begin(name, context)
            await announce_wait()
            async with abort_on_error(name, context):
                with self.quotas.stream(call_context.address, is_subscription=False, principal=call_context.principal):
                    stream = stream_answers(requests, lambda data: call(method, data, call_context), self._closing)
                    async with _session_scope(call_context), aclosing(stream) as answers:
                        async for item in answers:
                            if isinstance(item, ServiceError):
                                await abort(context, item)
                            await send_response(context, item)

        return grpc.stream_stream_rpc_method_handler(behaviour)

    def _handler(self, method: MethodDescriptor, behaviour: Callable[..., Any]) -> _Handler:
        """Return the handler of a servicer's method: one request or a generator of requests, one answer or a generator of answers."""
        name, decode, encode = _name(method), _request_decoder(method).decode_in_turns, _encoder(method)
        access = self.access

        async def bidirectional(_: object, context: GrpcContext) -> None:
            call_context = await self._begin(name, context)
            first = await receive_request(name, context)
            await announce_wait()
            opening: Any = None

            async def requests(call: OpenCall | None) -> AsyncGenerator[Any, None]:
                nonlocal opening
                data: Any = first
                while data is not grpc.aio.EOF:
                    self.quotas.charge(call_context.address, len(data), call_context.principal)
                    request = await decode(data, call_context)
                    if opening is None:
                        # Consume, the one such method, names its bus in the first request's `open`.
                        opening = request.open
                        with record_refusals(access, name, opening, call_context):
                            await authorize(access, name, opening, call_context)
                        if call is not None:
                            call.begin(opening.bus)
                    else:
                        await authorize_again(access, name, opening, call_context)
                    yield request
                    data = await context.read()

            async with abort_on_error(name, context):
                with (
                    self._observed(call_context, context),
                    self.quotas.stream(call_context.address, is_subscription=False, principal=call_context.principal),
                ):
                    async with (
                        while_authorized(access, name, call_context) as call,
                        aclosing(behaviour(requests(call), call_context)) as responses,
                    ):
                        async for response in responses:
                            await authorize_again(access, name, opening, call_context)
                            await send_response(context, response)
                            del response  # may be large, and the next one may be long in coming

        async def unary(_: object, context: GrpcContext) -> Any:
            call_context = await self._begin(name, context)
            data = await receive_request(name, context)
            async with abort_on_error(name, context):
                with self._observed(call_context, context):
                    self.quotas.charge(call_context.address, len(data), call_context.principal)
                    request = await decode(data, call_context)
                    with record_refusals(access, name, request, call_context):
                        await authorize(access, name, request, call_context)
                        async with read_while_authorized(access, name, request, call_context):
                            return await behaviour(request, call_context)

        async def stream(_: object, context: GrpcContext) -> None:
            call_context = await self._begin(name, context)
            data = await receive_request(name, context)
            async with abort_on_error(name, context):
                with self._observed(call_context, context):
                    self.quotas.charge(call_context.address, len(data), call_context.principal)
                    is_subscription = method.name == _SUBSCRIBE
                    if not is_subscription:  # it sends headers
                        await announce_wait()
                    with self.quotas.stream(call_context.address, is_subscription=is_subscription, principal=call_context.principal):
                        request = await decode(data, call_context)
                        await authorize(access, name, request, call_context)
                        async with while_authorized(access, name, call_context) as call:
                            if call is not None:
                                call.begin(request.bus)
                            async with aclosing(behaviour(request, call_context)) as responses:
                                async for response in responses:
                                    await authorize_again(access, name, request, call_context)
                                    await send_response(context, response)
                                    del response  # may be large, and the next one may be long in coming

        if method.client_streaming:
            return grpc.stream_stream_rpc_method_handler(bidirectional, response_serializer=encode)
        if method.server_streaming:
            return grpc.stream_stream_rpc_method_handler(stream, response_serializer=encode)
        return grpc.stream_unary_rpc_method_handler(unary, response_serializer=encode)

    def _library_handler(self, method: MethodDescriptor, behaviour: Callable[..., Any], guard: Guard | None) -> _Handler:
        """Return the handler of a library's method. It is a generator of answers, or a coroutine that returns or writes them."""
        name, decode, encode = _name(method), _request_decoder(method).decode, _encoder(method)
        is_generator = isasyncgenfunction(behaviour)

        async def decoded(stream: AsyncIterator[bytes], address: str, principal: Principal) -> AsyncGenerator[Message, None]:
            async for data in stream:
                self.quotas.charge(address, len(data), principal)
                yield decode(data)

        async def library(requests: AsyncIterator[bytes], context: GrpcContext) -> Any:
            call_context = await self._begin(name, context)
            data = b"" if method.client_streaming else await receive_request(name, context)
            async with abort_on_error(name, context), _session_scope(call_context):
                # Also streams that need no credentials: a stranger could open them until the memory is full.
                address, principal = call_context.address, call_context.principal
                is_stream = method.server_streaming
                if is_stream:
                    await announce_wait()
                streams = self.quotas.stream(address, is_subscription=False, principal=principal) if is_stream else nullcontext()
                with streams, self._observed(call_context, context, is_traced=False):
                    # A health check is not charged: who watches the server must not take one noisy caller for its end.
                    request = decoded(requests, address, principal) if method.client_streaming else decode(data)
                    if guard is not None and not method.client_streaming:
                        await guard(request, call_context.principal)
                    if not is_generator:
                        return await behaviour(request, context)
                    async for response in behaviour(request, context):
                        if guard is not None and not method.client_streaming:
                            await guard(request, call_context.principal)
                        if response is not None:
                            await send_response(context, response)
            return None

        shape: Callable[..., Any] = (
            grpc.stream_stream_rpc_method_handler if method.server_streaming else grpc.stream_unary_rpc_method_handler
        )
        handler: _Handler = shape(library, response_serializer=encode)
        return handler


def _intercept(name: str, method: CallbackMethod, quotas: Quotas, access: AccessControl | None, bus_number: int) -> Method:
    is_long_poll = name in _LONG_POLLS

    def intercepted(data: bytes, context: CallContext, answer: Answer) -> None:
        def respond(result: bytes | Exception) -> None:
            if is_long_poll and not isinstance(result, Exception):
                result = _late_refusal(name, access, bus_number, data, context) or result
            if isinstance(result, Exception):
                if access is not None:
                    note_refusal(access, name, bus_number, result, data, context)
                result = refuse(name, result)
            answer(result)

        if context.session is not None and (error := context.session.error()) is not None:
            respond(error)
            return
        try:
            quotas.charge(context.address, len(data), context.principal)
            if access is not None and access.is_bound(name, context.principal):
                call_if_authorized(access, name, method, bus_number, data, context, respond)
            else:
                method(data, context, respond)
        except Exception as error:  # noqa: BLE001  # a bug is answered as INTERNAL with an id, and logged under it
            respond(error)

    return intercepted


def _opening(name: str, quotas: Quotas) -> Method:
    """Return the method that opens a stream of requests for the native front; `_plain_stream` does the same for grpc.aio."""

    def opening(_: bytes, context: CallContext, answer: Answer) -> None:
        with ExitStack() as stack:
            try:
                if context.session is not None:
                    context.session.check()
                stack.enter_context(quotas.stream(context.address, is_subscription=False, principal=context.principal))
            except Exception as error:  # noqa: BLE001  # a bug is answered as INTERNAL with an id, and logged under it
                answer(refuse(name, error))
                return
            context.cancellation.listen(stack.pop_all().close)
        answer(b"")

    return opening


def _late_refusal(name: str, access: AccessControl | None, bus_number: int, data: bytes, context: CallContext) -> ServiceError | None:
    """Return why a call that was allowed when it began may not be answered now, or None."""
    if context.session is not None and (error := context.session.error()) is not None:
        return error
    if access is None or not access.is_bound(name, context.principal):
        return None
    return access.check_answer(name, last_text_field(data, bus_number), context.principal)


def _bus_number(method: MethodDescriptor) -> int:
    """Return the number of the field that names the bus."""
    return int(method.input_type.fields_by_name["bus"].number)


def _observe(method: Method, observer: CallObserver) -> Method:
    def observed(data: bytes, context: CallContext, answer: Answer) -> None:
        observation = observer.begin(context)

        def respond(result: bytes | ServiceError) -> None:
            observation.end(result if isinstance(result, ServiceError) else None)
            answer(result)

        with current(observation.trace):
            method(data, context, respond)

    return observed


def _session_scope(context: CallContext) -> AbstractAsyncContextManager[None]:
    """Return a context manager that ends a stream when the caller's credentials expire or are revoked."""
    return nullcontext() if context.session is None else context.session.scope()


def _request_decoder(method: MethodDescriptor) -> RequestDecoder[Any]:
    return RequestDecoder(_name(method), GetMessageClass(method.input_type))


def _encoder(method: MethodDescriptor) -> Callable[[Any], bytes]:
    """Return the function that encodes a response, unless the method has encoded it."""
    serialize: Callable[[Any], bytes] = GetMessageClass(method.output_type).SerializeToString
    return lambda response: response.content if isinstance(response, EncodedResponse) else serialize(response)


def _name(method: MethodDescriptor) -> str:
    return f"{method.containing_service.full_name}/{method.name}"


def _add(server: HandlerRegistry, service: ServiceDescriptor, handlers: Mapping[str, _Handler]) -> None:
    """Register handlers as generic ones.

    grpc.aio keeps a future for each "registered" method and waits for all of them at every call; generic methods are found by name. The
    difference is small (docs/decisions/0010-hot-path.md).
    """
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service.full_name, dict(handlers)),))
