"""The front itself: a gRPC server that passes every call on and knows nothing of what it means.

Started by `keeper` with the front's end of a socket pair. It ends when that end hangs up, which the kernel sees to however
the server ends; the calls under way are then cut off, as they would be if the server had spoken gRPC itself.
"""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import sys
from collections.abc import AsyncIterator
from itertools import count
from typing import Any, Final

import grpc
import uvloop
from gavel.v1 import error_pb2
from google.rpc.status_pb2 import Status
from grpc_status import rpc_status

from gavel_server.errors import ServiceError, abort
from gavel_server.front.link import BOUND, METHODS, RESPONSE, SERVE, STATUS, STOP, UNBOUND, Link
from gavel_server.transport import STOP_GRACE_SECONDS, bind, channel_options, make_server

SERVICE: Final = "gavel.v1.ArbitrationService"
# What the requests that wait for the server may hold in memory.
UNDER_WAY_BYTES_MAX: Final = 256 * 1024 * 1024
_NUMBERS: Final = 1 << 32
# gRPC makes these itself for every call.
_OWN_METADATA: Final = frozenset({"user-agent", "te", "content-type"})

Context = grpc.aio.ServicerContext[Any, Any]


class _RefusedError(Exception):
    """The server answered a call with a status."""

    def __init__(self, status: Status) -> None:
        super().__init__(status.message)
        self.status = status


class Front:
    """One front. `run` it."""

    def __init__(self, listen: str, inner: str) -> None:
        self._listen = listen
        self._numbers = count(1)
        self._waiting: dict[int, asyncio.Future[bytes]] = {}
        self._bytes_under_way = 0
        self._told: dict[int, asyncio.Event] = {SERVE: asyncio.Event(), STOP: asyncio.Event()}
        self._loop = asyncio.get_running_loop()
        self._link = Link(self._received, _hung_up)
        self._inner = grpc.aio.insecure_channel(inner, options=channel_options())

    async def run(self, end: socket.socket) -> None:
        """Serve until the server says stop, or hangs up."""
        await self._loop.create_unix_connection(lambda: self._link, sock=end)
        server = make_server()
        hot = {name: self._handler(kind) for kind, name in enumerate(METHODS)}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, hot), _Others(self._inner)))
        try:
            address = bind(server, self._listen)
        except OSError as error:
            self._link.send(UNBOUND, 0, str(error).encode())
            self._link.close()
            return
        self._link.send(BOUND, 0, address.encode())
        await self._told[SERVE].wait()
        await server.start()
        gc.collect()
        gc.freeze()
        gc.set_threshold(20_000, 50, 100)
        await self._told[STOP].wait()
        await server.stop(STOP_GRACE_SECONDS)
        await self._inner.close()

    def _handler(self, kind: int) -> Any:
        link = self._link
        waiting = self._waiting
        loop = self._loop

        async def call(request: bytes, context: Context) -> bytes:
            size = len(request)
            if self._bytes_under_way + size > UNDER_WAY_BYTES_MAX:
                problem = f"{UNDER_WAY_BYTES_MAX} bytes of requests wait for decisions; try again"
                await abort(context, ServiceError(error_pb2.ERROR_REASON_QUEUE_FULL, problem))
            number = next(self._numbers) % _NUMBERS
            future: asyncio.Future[bytes] = loop.create_future()
            waiting[number] = future
            self._bytes_under_way += size
            link.send(kind, number, request)
            try:
                return await future
            except _RefusedError as error:
                await context.abort_with_status(rpc_status.to_status(error.status))
                raise AssertionError("abort_with_status returned") from error
            finally:
                self._bytes_under_way -= size
                del waiting[number]

        return grpc.unary_unary_rpc_method_handler(call)

    def _received(self, kind: int, number: int, content: bytes) -> None:
        if kind in self._told:
            self._told[kind].set()
            return
        future = self._waiting.get(number)
        if future is None or future.done():
            return  # the caller has gone
        if kind == RESPONSE:
            future.set_result(content)
        elif kind == STATUS:
            future.set_exception(_RefusedError(Status.FromString(content)))


class _Others(grpc.GenericRpcHandler):
    """Every other method, known or not: a call of any shape, passed on with its deadline and metadata, answered as it was."""

    def __init__(self, inner: grpc.aio.Channel) -> None:
        self._inner = inner

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any]:
        """Return the handler that passes the call on."""
        method: Any = self._inner.stream_stream(handler_call_details.method)

        async def forward(requests: AsyncIterator[bytes], context: Context) -> AsyncIterator[bytes]:
            metadata = tuple(pair for pair in context.invocation_metadata() or () if _is_callers(pair[0]))
            call = method(requests, timeout=context.time_remaining(), metadata=metadata)
            try:
                await context.send_initial_metadata(tuple(await call.initial_metadata()))
                async for response in call:
                    yield response
                code = await call.code()
            except grpc.aio.AioRpcError as error:
                code = error.code()
            finally:
                call.cancel()
            if code != grpc.StatusCode.OK:
                await context.abort(code, await call.details() or "", tuple(await call.trailing_metadata()))

        return grpc.stream_stream_rpc_method_handler(forward)


def _is_callers(key: str) -> bool:
    return key not in _OWN_METADATA and not key.startswith("grpc-")


def _hung_up() -> None:
    # Without the server there is nothing to finish, and the address is free at once for the one that follows it.
    os._exit(0)


def main() -> None:
    """Arguments: the descriptor of the socket pair's end, the address to listen on, the server's own address."""
    end, listen, inner = sys.argv[1:]

    async def run() -> None:
        await Front(listen, inner).run(socket.socket(fileno=int(end)))

    uvloop.run(run())


if __name__ == "__main__":
    main()
