"""A stream of requests, each answered by itself as soon as its answer is there: the transport's side of StreamProposals.

The front and the server's own gRPC do the same here, with one request at a time in their hands and no idea of what it means.
So many requests are taken in and not answered yet; what else a caller sends waits with him, and so does he who does not read
his answers. A stream ends when everything in it is answered, or with a status when no request of it could be any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

import grpc
from gavel.v1 import error_pb2
from google.rpc.status_pb2 import Status
from grpc_status import rpc_status

from gavel_server.errors import ServiceError

# Of one stream: requests that were read and whose answers have not been sent.
STREAM_REQUESTS_MAX: Final = 512

# Answers one request: with the response, or with the status that ends the stream.
Ask = Callable[[bytes], Awaitable[bytes | Status]]

_Context = grpc.aio.ServicerContext[Any, Any]


def streaming(ask: Ask, closing: asyncio.Event) -> grpc.RpcMethodHandler[Any, Any]:
    """Return the handler of a method whose every request has its own answer. Once `closing` is set no more requests are read."""

    async def stream(requests: AsyncIterator[bytes], context: _Context) -> AsyncIterator[bytes]:
        one = _Stream(requests, ask, closing)
        try:
            while (answer := await one.next()) is not None:
                if isinstance(answer, Status):
                    await context.abort_with_status(rpc_status.to_status(answer))
                yield answer
        finally:
            one.cancel()

    return grpc.stream_stream_rpc_method_handler(stream)


class _Stream:
    """One stream under way. Ask for the `next` answer until there is none."""

    def __init__(self, requests: AsyncIterator[bytes], ask: Ask, closing: asyncio.Event) -> None:
        self._requests = requests
        self._ask = ask
        self._closing = closing
        self._room = asyncio.Semaphore(STREAM_REQUESTS_MAX)
        self._answers: asyncio.Queue[bytes | Status | None] = asyncio.Queue()
        self._asking: set[asyncio.Task[None]] = set()
        self._ending: Status | None = None
        self._ended = asyncio.Event()
        self._sent = False  # whether the answer that was given out last waits to be sent
        self._running = asyncio.create_task(self._run())

    async def next(self) -> bytes | Status | None:
        """Return the next answer, a status that ends the stream, or None: everything is answered. The one before has been sent."""
        if self._sent:
            self._room.release()
        answer = await self._answers.get()
        self._sent = True
        return answer

    def cancel(self) -> None:
        """Nobody listens any more."""
        self._running.cancel()
        for task in self._asking:
            task.cancel()

    async def _run(self) -> None:
        """Read until the caller has sent everything, or nothing more can be answered; then wait for what is under way."""
        watched = [asyncio.create_task(waiting) for waiting in (self._read(), self._closing.wait(), self._ended.wait())]
        try:
            done, _ = await asyncio.wait(watched, return_when=asyncio.FIRST_COMPLETED)
            complete = watched[0] in done
        finally:
            for task in watched:
                task.cancel()
        await asyncio.gather(*watched, *self._asking, return_exceptions=True)
        if not complete and self._ending is None:
            error = ServiceError(error_pb2.ERROR_REASON_SHUTTING_DOWN, "the server is shutting down; go on at another one")
            self._ending = error.status()
        self._answers.put_nowait(self._ending)

    async def _read(self) -> None:
        async for request in self._requests:
            await self._room.acquire()
            task = asyncio.create_task(self._answer(request))
            self._asking.add(task)
            task.add_done_callback(self._asking.discard)

    async def _answer(self, request: bytes) -> None:
        answer = await self._ask(request)
        if isinstance(answer, Status):
            self._ending = self._ending or answer
            self._ended.set()
        else:
            self._answers.put_nowait(answer)
