"""StreamProposals over grpc.aio: a stream of requests, each answered separately as soon as its answer exists.

At most STREAM_REQUESTS_MAX requests of a stream are read and not answered. gRPC's flow control holds back the rest, and a caller that does
not read its answers. A stream ends after the answer to its last request, or with a status if the server can answer no further request.
The native front does the same (`server/front/streaming.go`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import Final

from gavel.v1 import error_pb2

from gavel_server.errors import ServiceError

# Of one stream: requests that were read and whose answers have not been sent.
STREAM_REQUESTS_MAX: Final = 512

AnswerRequest = Callable[[bytes], Awaitable[bytes | ServiceError]]
"""Returns the response to one request, or the error that ends the stream."""


async def stream_answers(
    requests: AsyncIterator[bytes], answer: AnswerRequest, closing: asyncio.Event
) -> AsyncGenerator[bytes | ServiceError, None]:
    """Yield the responses as they come; an error, if one ends the stream, comes last. Once `closing` is set no more requests are read."""
    stream = _Stream(requests, answer, closing)
    try:
        while (response := await stream.next()) is not None:
            yield response
    finally:
        stream.cancel()


class _Stream:
    """One stream under way. Call `next` until it returns None."""

    def __init__(self, requests: AsyncIterator[bytes], answer: AnswerRequest, closing: asyncio.Event) -> None:
        self._requests = requests
        self._answer_request = answer
        self._closing = closing
        self._room = asyncio.Semaphore(STREAM_REQUESTS_MAX)
        self._responses: asyncio.Queue[bytes | ServiceError | None] = asyncio.Queue()
        self._answering: set[asyncio.Task[None]] = set()
        self._final_error: ServiceError | None = None
        self._refused = asyncio.Event()
        self._sending = False  # the response that `next` returned last is not sent yet
        self._running = asyncio.create_task(self._run())

    async def next(self) -> bytes | ServiceError | None:
        """Return the next response, the error that ends the stream, or None at its end. Call it once the last response has been sent."""
        if self._sending:
            self._room.release()
        response = await self._responses.get()
        self._sending = True
        return response

    def cancel(self) -> None:
        """Stop reading and answering: the caller has gone, or the stream has ended."""
        self._running.cancel()
        for task in self._answering:
            task.cancel()

    async def _run(self) -> None:
        """Read until the caller has sent everything or no more requests are answered; then wait for the requests under way."""
        watched = [asyncio.create_task(waiting) for waiting in (self._read(), self._closing.wait(), self._refused.wait())]
        try:
            done, _ = await asyncio.wait(watched, return_when=asyncio.FIRST_COMPLETED)
            complete = watched[0] in done
        finally:
            for task in watched:
                task.cancel()
        await asyncio.gather(*watched, *self._answering, return_exceptions=True)
        if not complete and self._final_error is None:
            message = "the server is shutting down; try again, or use another server"
            self._final_error = ServiceError(error_pb2.ERROR_REASON_SHUTTING_DOWN, message)
        self._responses.put_nowait(self._final_error)

    async def _read(self) -> None:
        async for request in self._requests:
            await self._room.acquire()
            task = asyncio.create_task(self._answer(request))
            self._answering.add(task)
            task.add_done_callback(self._answering.discard)

    async def _answer(self, request: bytes) -> None:
        response = await self._answer_request(request)
        if isinstance(response, ServiceError):
            self._final_error = self._final_error or response
            self._refused.set()
        else:
            self._responses.put_nowait(response)
