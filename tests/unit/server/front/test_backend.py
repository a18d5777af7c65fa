"""The server's end of the link: each call is answered under its own number."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest
from gavel.v1 import error_pb2
from gavel_server.errors import ServiceError
from gavel_server.front.backend import Backend
from gavel_server.front.frames import (
    BOUND,
    CANCEL,
    METHODS,
    NO_DEADLINE,
    PING,
    PONG,
    REQUEST_HEADER,
    RESPONSE,
    SERVE,
    STATUS,
    STOP,
    UNBOUND,
)
from gavel_server.front.link import Link
from gavel_server.rpc.call_context import CallContext
from gavel_server.rpc.callback_methods import Answer, Method
from google.rpc.status_pb2 import Status

Frame = tuple[int, int, bytes]
UNIX_CALLER = b"\x05unix:"
RECEIVED_NS = 1_700_000_000_000_000_017
SUBMIT, PREFLIGHT = METHODS.index("SubmitProposal"), METHODS.index("Preflight")


class Caller:
    """The front's end of a link, and a backend whose methods the test answers."""

    def __init__(self) -> None:
        self.requests: asyncio.Queue[tuple[str, bytes, CallContext, Answer]] = asyncio.Queue()
        self.backend = Backend({name: self._method(name) for name in METHODS})
        self.frames: asyncio.Queue[Frame] = asyncio.Queue()
        self.hung_up = asyncio.Event()
        self.link = Link(lambda *frame: self.frames.put_nowait(frame), self.hung_up.set)

    async def connect(self) -> None:
        """Connect both ends."""
        ours, theirs = socket.socketpair()
        await self.backend.connect(ours)
        await asyncio.get_running_loop().create_unix_connection(lambda: self.link, sock=theirs)

    def _method(self, name: str) -> Method:
        def method(data: bytes, context: CallContext, answer: Answer) -> None:
            self.requests.put_nowait((name, data, context, answer))

        return method

    async def calls(self, kind: int, number: int, message: bytes, caller: bytes = UNIX_CALLER) -> Answer:
        """Make a call; return the callback by which the method answers."""
        _, answer = await self.calls_as(kind, number, message, caller)
        return answer

    async def calls_as(
        self, kind: int, number: int, message: bytes, caller: bytes, remaining_ms: int = NO_DEADLINE
    ) -> tuple[CallContext, Answer]:
        """Make a call as a caller; return its context and the callback by which the method answers."""
        self.link.send(kind, number, REQUEST_HEADER.pack(len(caller), remaining_ms, RECEIVED_NS, 0) + caller + message)
        name, data, context, answer = await self.requests.get()
        assert (METHODS[kind], message) == (name, data)
        return context, answer


@pytest.fixture
async def caller() -> AsyncIterator[Caller]:
    """A caller that is connected."""
    front = Caller()
    await front.connect()
    yield front
    front.link.close()


async def test_answers_have_the_number_of_their_call(caller: Caller) -> None:
    """Calls reach the method of their kind; each answer has its call's number, in any order."""
    first = await caller.calls(SUBMIT, 7, b"first")
    second = await caller.calls(PREFLIGHT, 2**32 - 1, b"second")
    third = await caller.calls(SUBMIT, 0, b"")
    third(b"")
    second(b"two")
    first(b"one")
    assert [(RESPONSE, 0, b""), (RESPONSE, 2**32 - 1, b"two"), (RESPONSE, 7, b"one")] == [await caller.frames.get() for _ in range(3)]


async def test_a_call_has_its_context(caller: Caller) -> None:
    """A method gets the call's name, the caller's address, metadata sorted by key, the time that remains and that of receipt."""
    encoded = b"\x0b10.0.0.1:80" + b"\x05\x00\x02\x00x-bin\x00\xff" + b"\x01\x00\x01\x00bx" + b"\x01\x00\x01\x00ay" + b"\x01\x00\x01\x00az"
    context, _ = await caller.calls_as(SUBMIT, 1, b"request", encoded, 60_000)
    assert ("gavel.v1.ArbitrationService/SubmitProposal", "native", "10.0.0.1:80") == (context.method, context.transport, context.peer)
    assert (("a", "y"), ("a", "z"), ("b", "x"), ("x-bin", b"\x00\xff")) == context.metadata
    remaining_ms = context.remaining_ms()
    assert remaining_ms is not None
    assert 50_000 < remaining_ms <= 60_000
    assert RECEIVED_NS == context.received_ns
    context, _ = await caller.calls_as(SUBMIT, 2, b"", UNIX_CALLER)
    assert ("unix:", (), None) == (context.peer, context.metadata, context.remaining_ms())


async def test_error_is_sent_as_a_status(caller: Caller) -> None:
    """A method's error is sent as a google.rpc.Status with its details."""
    error = ServiceError(error_pb2.ERROR_REASON_QUEUE_FULL, "wait", retry_after_ms=1500)
    (await caller.calls(SUBMIT, 3, b"x"))(error)
    kind, number, content = await caller.frames.get()
    assert (STATUS, 3, error.status()) == (kind, number, Status.FromString(content))


async def test_answers_without_a_front_are_dropped(caller: Caller) -> None:
    """An answer after the front has gone is dropped: the decision is in the log, and the caller repeats the call."""
    answer = await caller.calls(SUBMIT, 1, b"x")
    caller.link.close()
    await caller.hung_up.wait()
    with pytest.raises(OSError, match="ended"):
        await caller.backend.address()
    answer(b"too late")
    caller.backend.stop()


async def test_calls_whose_caller_has_gone(caller: Caller) -> None:
    """A cancelled call's context says so and its answer is dropped; other calls and answered ones are not affected."""
    (gone, late), (staying, answer) = [await caller.calls_as(SUBMIT, number, b"x", UNIX_CALLER) for number in (1, 2)]
    answered, first = await caller.calls_as(SUBMIT, 3, b"x", UNIX_CALLER)
    first(b"first")
    for number in (3, 1, 4711):
        caller.link.send(CANCEL, number, b"")
    await caller.calls(SUBMIT, 4, b"y")  # all frames before it have been read
    assert (True, False, False) == (gone.cancellation.is_cancelled, staying.cancellation.is_cancelled, answered.cancellation.is_cancelled)
    late(b"too late")
    answer(b"second")
    assert [(RESPONSE, 3, b"first"), (RESPONSE, 2, b"second")] == [await caller.frames.get() for _ in range(2)]


async def test_calls_of_a_front_that_has_gone(caller: Caller) -> None:
    """When the front ends, the calls under way are cancelled, as if their callers had gone."""
    context, _ = await caller.calls_as(SUBMIT, 1, b"x", UNIX_CALLER)
    assert not context.cancellation.is_cancelled
    caller.link.close()
    with pytest.raises(OSError, match="ended"):
        await caller.backend.address()
    assert context.cancellation.is_cancelled


@pytest.mark.parametrize(("kind", "content"), [(BOUND, "127.0.0.1:4711"), (UNBOUND, "cannot listen on 127.0.0.1:1")])
async def test_reported_address(caller: Caller, kind: int, content: str) -> None:
    """The front reports the address that it has bound, or why it cannot."""
    caller.link.send(kind, 0, content.encode())
    result: Any
    try:
        result = await caller.backend.address()
    except OSError as error:
        result = error
    assert (kind == BOUND, content) == (isinstance(result, str), str(result))


@pytest.mark.parametrize("sign", ["pong", "call"])
async def test_liveness(caller: Caller, sign: str) -> None:
    """A front that has sent a frame since the last ping is alive."""
    assert caller.backend.ping()  # the first ping is always answered
    assert (PING, 0, b"") == await caller.frames.get()
    assert not caller.backend.ping()
    if sign == "pong":
        caller.link.send(PONG, 0, b"")
    # The call comes last: all frames before it have been read.
    await caller.calls(SUBMIT, 1, b"x")
    assert caller.backend.ping()
    assert not caller.backend.ping()


async def test_serving_front_is_stopped_over_the_link(caller: Caller) -> None:
    """A front that serves is told to stop over the link, which stays open for the answers under way."""
    caller.backend.serve()
    caller.backend.stop()
    assert [SERVE, STOP] == [(await caller.frames.get())[0] for _ in range(2)]
    (await caller.calls(SUBMIT, 5, b"late"))(b"answer")
    assert (RESPONSE, 5, b"answer") == await caller.frames.get()


async def test_starting_front_is_disconnected(caller: Caller) -> None:
    """A front that does not serve yet has nothing to finish: the link is closed, and it ends."""
    caller.backend.stop()
    await caller.hung_up.wait()
    assert caller.frames.empty()
