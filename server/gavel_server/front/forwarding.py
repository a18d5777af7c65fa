"""Every method off the hot path: a call is passed on to the server's own gRPC with its deadline and metadata, and answered as it was.

Handlers are made from the contract's descriptors, because a call has to be passed on in its own shape: grpc.aio sends a single
request together with the call, whereas a stream's request can lose the race against a server that answers at once, and then its
caller would hear INTERNAL in place of that answer. No method that is passed on reads a stream of requests: the one that does
takes the link. A method that the contract does not have is UNIMPLEMENTED here already, as the server would say it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, Final

import grpc
from google.protobuf.descriptor import ServiceDescriptor
from grpc_reflection.v1alpha import reflection, reflection_pb2

from gavel_server.surface import NAMES

# gRPC makes these itself for every call.
_OWN_METADATA: Final = frozenset({"user-agent", "te", "content-type"})

Context = grpc.aio.ServicerContext[Any, Any]


def forwarding(service: ServiceDescriptor, inner: grpc.aio.Channel, but: Collection[str] = ()) -> dict[str, Any]:
    """Return handlers, by name, that pass a service's methods on to `inner`; all `but` some."""
    return {
        method.name: (_stream if method.server_streaming else _unary)(f"/{service.full_name}/{method.name}", inner)
        for method in service.methods
        if method.name not in but
    }


def reflecting() -> dict[str, Any]:
    """Return the handlers of server reflection, which is the same wherever it is asked."""
    handler = grpc.stream_stream_rpc_method_handler(
        reflection.aio.ReflectionServicer(NAMES).ServerReflectionInfo,
        reflection_pb2.ServerReflectionRequest.FromString,
        reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    return {"ServerReflectionInfo": handler}


def _unary(path: str, inner: grpc.aio.Channel) -> grpc.RpcMethodHandler[Any, Any]:
    method: Any = inner.unary_unary(path)

    async def forward(request: bytes, context: Context) -> bytes:
        call = method(request, timeout=context.time_remaining(), metadata=tuple(_callers_metadata(context)))
        try:
            response: bytes = await call
        except grpc.aio.AioRpcError:
            await _abort(context, call)
        await context.send_initial_metadata(tuple(await call.initial_metadata()))
        context.set_trailing_metadata(tuple(await call.trailing_metadata()))
        return response

    return grpc.unary_unary_rpc_method_handler(forward)


def _stream(path: str, inner: grpc.aio.Channel) -> grpc.RpcMethodHandler[Any, Any]:
    method: Any = inner.unary_stream(path)

    async def forward(request: bytes, context: Context) -> None:
        call = method(request, timeout=context.time_remaining(), metadata=tuple(_callers_metadata(context)))
        try:
            # Some methods send it before there is anything to answer: so a caller knows that it is subscribed.
            await context.send_initial_metadata(tuple(await call.initial_metadata()))
            async for response in call:
                await context.write(response)
            context.set_trailing_metadata(tuple(await call.trailing_metadata()))
        except grpc.aio.AioRpcError:
            await _abort(context, call)
        finally:
            # However the caller's call ends, the server's ends with it.
            call.cancel()

    return grpc.unary_stream_rpc_method_handler(forward)


async def _abort(context: Context, call: Any) -> None:
    """End a call as the server has ended it."""
    await context.abort(await call.code(), await call.details() or "", tuple(await call.trailing_metadata()))


def _callers_metadata(context: Context) -> Iterator[Any]:
    return (pair for pair in context.invocation_metadata() or () if pair[0] not in _OWN_METADATA and not pair[0].startswith("grpc-"))
