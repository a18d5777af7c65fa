"""Callback methods: from a request's bytes to an answer's bytes by callback, without gRPC, coroutine or task.

The hot path is made of them (`services/arbitration`), because a coroutine and a task for each call cost more than the call's framing. The
native front calls them through its link; `interceptor` serves the same functions over grpc.aio.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, cast

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
    """Coroutines that answer calls. Each is referenced until it ends, since asyncio itself keeps no strong reference to a task.

    The work for a call ends when its caller goes: from then on the transport no longer counts the request towards its limits.
    """

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def respond(
        self, method: Callable[[bytes, CallContext], Awaitable[bytes]], data: bytes, context: CallContext, respond: Respond
    ) -> None:
        """Answer a call with what a method returns or raises, unless the caller goes before that."""

        async def run() -> None:
            try:
                result: bytes | Exception = await method(data, context)
            except Exception as error:  # noqa: BLE001  # the interceptor makes a status of it
                result = error
            respond(result)

        self.serve(run(), context)

    def serve(self, coroutine: Coroutine[Any, Any, None], context: CallContext) -> None:
        """Run a coroutine, which handles its own errors, for a call. Cancel it when the caller goes."""
        cancellation = context.cancellation
        if cancellation.is_cancelled:
            coroutine.close()
            return
        task = self.start(coroutine)
        cancel = cast("Callable[[], None]", task.cancel)  # nobody needs its result
        cancellation.listen(cancel)
        task.add_done_callback(lambda _: cancellation.unlisten(cancel))

    def start(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a coroutine, which handles its own errors and belongs to no call."""
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
