"""The front itself: a gRPC server that passes every call on and knows nothing of what it means.

Started by `keeper` with the front's end of a socket pair. It ends when that end hangs up, which the kernel sees to however
the server ends; the calls under way are then cut off, as they would be if the server had spoken gRPC itself. Signals that ask
it to end are for the server to heed: where both are sent one, the front still has the last answers to hand out.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import grpc
import uvloop
from google.rpc.status_pb2 import Status
from grpc_status import rpc_status

from gavel_server.front.calls import Calls
from gavel_server.front.link import BOUND, METHODS, SERVE, STOP, UNBOUND, Link
from gavel_server.transport import STOP_GRACE_SECONDS, bind, channel_options, make_server

SERVICE: Final = "gavel.v1.ArbitrationService"
# gRPC makes these itself for every call.
_OWN_METADATA: Final = frozenset({"user-agent", "te", "content-type"})

Context = grpc.aio.ServicerContext[Any, Any]


class Front:
    """One front. `run` it."""

    def __init__(self, listen: str, inner: str) -> None:
        """`listen` is the address for callers, `inner` the server's own."""
        self._listen = listen
        self._told: dict[int, asyncio.Event] = {SERVE: asyncio.Event(), STOP: asyncio.Event()}
        self._link = Link(self._received, partial(_hung_up, inner))
        self._calls = Calls(self._link)
        self._inner = grpc.aio.insecure_channel(inner, options=channel_options())

    async def run(self, end: socket.socket) -> None:
        """Serve until the server says stop, or hangs up."""
        await asyncio.get_running_loop().create_unix_connection(lambda: self._link, sock=end)
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
        calls = self._calls

        async def call(request: bytes, context: Context) -> bytes:
            answer = await calls.make(kind, request)
            if isinstance(answer, Status):
                await context.abort_with_status(rpc_status.to_status(answer))
                raise AssertionError("abort_with_status returned")
            return answer

        return grpc.unary_unary_rpc_method_handler(call)

    def _received(self, kind: int, number: int, content: bytes) -> None:
        if kind in self._told:
            self._told[kind].set()
        else:
            self._calls.answered(kind, number, content)


class _Others(grpc.GenericRpcHandler):
    """Every other method, known or not: a call of any shape, passed on with its deadline and metadata, answered as it was."""

    def __init__(self, inner: grpc.aio.Channel) -> None:
        self._inner = inner

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any]:
        """Return the handler that passes the call on."""
        method: Any = self._inner.stream_stream(handler_call_details.method)

        async def forward(requests: AsyncIterator[bytes], context: Context) -> None:
            metadata = tuple(pair for pair in context.invocation_metadata() or () if _is_callers(pair[0]))
            call = method(requests, timeout=context.time_remaining(), metadata=metadata)
            try:
                await context.send_initial_metadata(tuple(await call.initial_metadata()))
                async for response in call:
                    await context.write(response)
                code = await call.code()
            except grpc.aio.AioRpcError as error:
                code = error.code()
            finally:
                # However the caller's call ends, the server's ends with it.
                call.cancel()
            context.set_trailing_metadata(tuple(await call.trailing_metadata()))
            if code != grpc.StatusCode.OK:
                await context.abort(code, await call.details() or "")

        return grpc.stream_stream_rpc_method_handler(forward)


def _is_callers(key: str) -> bool:
    return key not in _OWN_METADATA and not key.startswith("grpc-")


def _hung_up(inner: str) -> None:
    # Without the server there is nothing to finish, and the address is free at once for the one that follows it. What a
    # server that was killed could not remove is removed here: its socket, and the directory made for it.
    with contextlib.suppress(OSError):
        server_socket = Path(inner.removeprefix("unix:"))
        server_socket.unlink(missing_ok=True)
        server_socket.parent.rmdir()
    os._exit(0)


def main() -> None:
    """Arguments: the descriptor of the socket pair's end, the address to listen on, the server's own address."""
    end, listen, inner = sys.argv[1:]
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)

    async def run() -> None:
        await Front(listen, inner).run(socket.socket(fileno=int(end)))

    uvloop.run(run())


if __name__ == "__main__":
    main()
