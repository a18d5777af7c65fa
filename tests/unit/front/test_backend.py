"""The server's end of the link: every call is answered under its own number, whenever its method comes to an answer."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from gavel.v1 import error_pb2
from gavel_server.errors import ServiceError
from gavel_server.front.backend import Backend
from gavel_server.front.link import BOUND, METHODS, PING, PONG, RESPONSE, SERVE, STATUS, STOP, UNBOUND, Link
from gavel_server.services.arbitration import Answer
from google.rpc.status_pb2 import Status

Frame = tuple[int, int, bytes]
SUBMIT, PREFLIGHT = METHODS.index("SubmitProposal"), METHODS.index("Preflight")


class Caller:
    """The front's end of a link, and a backend whose methods answer when the test says so."""

    def __init__(self) -> None:
        self.asked: asyncio.Queue[tuple[str, bytes, Answer]] = asyncio.Queue()
        self.methods: dict[str, Callable[[bytes, Answer], None]] = {name: self._asked_of(name) for name in METHODS}
        self.backend = Backend(self.methods)
        self.frames: asyncio.Queue[Frame] = asyncio.Queue()
        self.hung_up = asyncio.Event()
        self.link = Link(lambda *frame: self.frames.put_nowait(frame), self.hung_up.set)

    async def connect(self) -> None:
        """Connect the two."""
        ours, theirs = socket.socketpair()
        await self.backend.connect(ours)
        await asyncio.get_running_loop().create_unix_connection(lambda: self.link, sock=theirs)

    def _asked_of(self, name: str) -> Callable[[bytes, Answer], None]:
        def method(data: bytes, answer: Answer) -> None:
            self.asked.put_nowait((name, data, answer))

        return method

    async def asks(self, kind: int, number: int, content: bytes) -> Answer:
        """Make a call; return the callback by which the method answers."""
        self.link.send(kind, number, content)
        name, data, answer = await self.asked.get()
        assert (METHODS[kind], content) == (name, data)
        return answer


@pytest.fixture
async def caller() -> AsyncIterator[Caller]:
    """A caller that is connected."""
    made = Caller()
    await made.connect()
    yield made
    made.link.close()


async def test_answers_bear_the_number_of_their_call(caller: Caller) -> None:
    """Calls reach the method of their kind, and answers overtake each other, each under its call's number."""
    first = await caller.asks(SUBMIT, 7, b"first")
    second = await caller.asks(PREFLIGHT, 2**32 - 1, b"second")
    third = await caller.asks(SUBMIT, 0, b"")
    third(b"")
    second(b"two")
    first(b"one")
    assert [(RESPONSE, 0, b""), (RESPONSE, 2**32 - 1, b"two"), (RESPONSE, 7, b"one")] == [await caller.frames.get() for _ in range(3)]


async def test_an_error_is_answered_as_a_status(caller: Caller) -> None:
    """A method's error goes over as the whole google.rpc.Status, details and all."""
    error = ServiceError(error_pb2.ERROR_REASON_QUEUE_FULL, "wait", retry_after_ms=1500)
    (await caller.asks(SUBMIT, 3, b"x"))(error)
    kind, number, content = await caller.frames.get()
    assert (STATUS, 3, error.status()) == (kind, number, Status.FromString(content))


async def test_answers_to_a_front_that_has_gone(caller: Caller) -> None:
    """A method that answers when the front is gone is no error: the decision stands in the log, and the caller asks again."""
    answer = await caller.asks(SUBMIT, 1, b"x")
    caller.link.close()
    await caller.hung_up.wait()
    with pytest.raises(OSError, match="ended"):
        await caller.backend.address()
    answer(b"nobody hears it")
    caller.backend.stop()


@pytest.mark.parametrize(("kind", "content"), [(BOUND, "127.0.0.1:4711"), (UNBOUND, "cannot listen on 127.0.0.1:1")])
async def test_the_address(caller: Caller, kind: int, content: str) -> None:
    """The front says which address it has bound, or why it cannot."""
    caller.link.send(kind, 0, content.encode())
    result: Any
    try:
        result = await caller.backend.address()
    except OSError as error:
        result = error
    assert (kind == BOUND, content) == (isinstance(result, str), str(result))


@pytest.mark.parametrize("sign", ["pong", "call"])
async def test_signs_of_life(caller: Caller, sign: str) -> None:
    """A front that has sent anything since the last ping is alive; one that has not is silent."""
    assert caller.backend.ping()  # it has only just begun
    assert (PING, 0, b"") == await caller.frames.get()
    assert not caller.backend.ping()
    if sign == "pong":
        caller.link.send(PONG, 0, b"")
    # Also: what came before the call has been read.
    await caller.asks(SUBMIT, 1, b"x")
    assert caller.backend.ping()
    assert not caller.backend.ping()


async def test_a_front_that_serves_is_asked_to_stop(caller: Caller) -> None:
    """A front that answers calls is told to end, so that it can hand out what it has; the link stays up for that."""
    caller.backend.serve()
    caller.backend.stop()
    assert [SERVE, STOP] == [(await caller.frames.get())[0] for _ in range(2)]
    (await caller.asks(SUBMIT, 5, b"late"))(b"answer")
    assert (RESPONSE, 5, b"answer") == await caller.frames.get()


async def test_a_front_that_does_not_serve_is_hung_up_on(caller: Caller) -> None:
    """A front that was never let to answer has nothing to finish: it hears the link end, and ends."""
    caller.backend.stop()
    await caller.hung_up.wait()
    assert caller.frames.empty()
