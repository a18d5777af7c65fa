"""The front itself: a gRPC server that passes every call on and knows nothing of what it means.

Started by `keeper` with the front's end of a socket pair. It ends when that end hangs up, which the kernel sees to however
the server ends; the calls under way are then cut off, as they would be if the server had spoken gRPC itself. Signals that ask
it to end are for the server to heed: where both are sent one, the front still has the last answers to hand out.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from functools import partial
from typing import Any

import grpc
import uvloop
from google.rpc.status_pb2 import Status
from grpc_reflection.v1alpha import reflection
from grpc_status import rpc_status

from gavel_server import telemetry
from gavel_server.collector import collect_less
from gavel_server.front.calls import Calls
from gavel_server.front.forwarding import forwarding, reflecting
from gavel_server.front.link import BOUND, METHODS, PING, PONG, SERVE, STOP, UNBOUND, Link
from gavel_server.streaming import streaming
from gavel_server.surface import ARBITRATION, HEALTH, SERVICES
from gavel_server.transport import STOP_GRACE_SECONDS, bind, channel_options, make_server

Context = grpc.aio.ServicerContext[Any, Any]


class Front:
    """One front. `run` it."""

    def __init__(self, listen: str, inner: str) -> None:
        """`listen` is the address for callers, `inner` the server's own."""
        self._listen = listen
        self._told: dict[int, asyncio.Event] = {SERVE: asyncio.Event(), STOP: asyncio.Event()}
        self._link = Link(self._received, _hung_up)
        self._calls = Calls(self._link)
        # Its windows stay small: those that grow with the traffic let a stream that nobody reads fill this process.
        self._inner = grpc.aio.insecure_channel(inner, options=[*channel_options(), ("grpc.http2.bdp_probe", 0)])

    async def run(self, end: socket.socket) -> None:
        """Serve until the server says stop, or hangs up."""
        await asyncio.get_running_loop().create_unix_connection(lambda: self._link, sock=end)
        server = make_server()
        hot = {name: self._handler(kind, name) for kind, name in enumerate(METHODS)}
        handlers = {service.full_name: forwarding(service, self._inner, but=METHODS) for service in (*SERVICES, HEALTH)}
        handlers[ARBITRATION.full_name].update(hot)
        handlers[reflection.SERVICE_NAME] = reflecting()
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(name, methods) for name, methods in handlers.items()])
        try:
            address = bind(server, self._listen)
        except OSError as error:
            self._link.send(UNBOUND, 0, str(error).encode())
            self._link.close()
            return
        self._link.send(BOUND, 0, address.encode())
        await self._told[SERVE].wait()
        await server.start()
        collect_less()
        await self._told[STOP].wait()
        await server.stop(STOP_GRACE_SECONDS)
        await self._inner.close()

    def _handler(self, kind: int, name: str) -> Any:
        calls = self._calls

        async def call(request: bytes, context: Context) -> bytes:
            answer = await calls.make(kind, request)
            if isinstance(answer, Status):
                await context.abort_with_status(rpc_status.to_status(answer))
                raise AssertionError("abort_with_status returned")
            return answer

        if ARBITRATION.methods_by_name[name].client_streaming:
            return streaming(partial(calls.make, kind), self._told[STOP])
        return grpc.unary_unary_rpc_method_handler(call)

    def _received(self, kind: int, number: int, content: bytes) -> None:
        if kind in self._told:
            self._told[kind].set()
        elif kind == PING:
            self._link.send(PONG, 0, b"")
        else:
            self._calls.answered(kind, number, content)


def _hung_up() -> None:
    # Without the server there is nothing to finish, and the address is free at once for the one that follows it.
    os._exit(0)


def main() -> None:
    """Arguments: the descriptor of the socket pair's end, the address to listen on, the server's own address."""
    telemetry.configure_as_parent()
    end, listen, inner = sys.argv[1:]
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)

    async def run() -> None:
        await Front(listen, inner).run(socket.socket(fileno=int(end)))

    uvloop.run(run())


if __name__ == "__main__":
    main()
