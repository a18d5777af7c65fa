"""Callback methods: from a request's bytes to an answer's bytes by callback, without gRPC, coroutine or task.

The hot path is made of them (`services/arbitration`), because a coroutine and a task for each call cost more than the call's framing. The
native front calls them through its link; `interceptor` serves the same functions over grpc.aio.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from gavel_server.errors import ServiceError
from gavel_server.rpc.call_context import CallContext

Respond = Callable[[bytes | Exception], None]
"""Takes the outcome of a call, once: at once, or later from the event loop's thread."""
CallbackMethod = Callable[[bytes, CallContext, Respond], None]
"""Answers a request's bytes through the callback, or raises."""

Answer = Callable[[bytes | ServiceError], None]
"""Takes what the caller gets, once."""
Method = Callable[[bytes, CallContext, Answer], None]
"""A callback method behind the interceptor: it never raises."""


def opening_of(name: str) -> str:
    """Return the key, among the methods of a service, of the method that opens a stream of requests of a method.

    It answers without content if the caller may have one more stream, which lasts until the context is cancelled.
    """
    return f"{name}.open"


def open_uncounted(_: bytes, __: CallContext, answer: Answer) -> None:
    """Open a stream of requests without a quota."""
    answer(b"")


async def call(method: Method, data: bytes, context: CallContext) -> bytes | ServiceError:
    """Call a method and wait for its answer. If the caller goes meanwhile, the call's context is cancelled."""
    future: asyncio.Future[bytes | ServiceError] = asyncio.get_running_loop().create_future()

    def answer(result: bytes | ServiceError) -> None:
        if not future.done():  # a caller that has gone cancels the future
            future.set_result(result)

    method(data, context, answer)
    try:
        return await future
    except asyncio.CancelledError:
        context.cancellation.cancel()
        raise


class Tasks:
    """Coroutines that answer calls. Each is referenced until it ends, since asyncio itself keeps no strong reference to a task."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def respond(self, coroutine: Awaitable[bytes], respond: Respond) -> None:
        """Answer a call with what a coroutine returns or raises."""

        async def run() -> None:
            try:
                result: bytes | Exception = await coroutine
            except Exception as error:  # noqa: BLE001  # the interceptor makes a status of it
                result = error
            respond(result)

        self.start(run())

    def start(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine, which handles its own errors."""
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
