"""The front's calls under way: each hears its own answer, callers that leave leave nothing behind, and there is a limit."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import pytest
from gavel.v1 import error_pb2
from gavel_server.errors import ServiceError
from gavel_server.front import calls as calls_module
from gavel_server.front.calls import Calls
from gavel_server.front.link import RESPONSE, STATUS, Link
from google.rpc import code_pb2
from google.rpc.error_details_pb2 import ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status

LIMIT_BYTES = 1000
# More than any socket holds by itself.
LARGE_BYTES = 8 * 1024 * 1024


class Server:
    """A front's calls, and the server's end of the link that they go over. It reads when the test says so."""

    def __init__(self) -> None:
        self._link = Link(self._answered, lambda: None)
        self.calls = Calls(self._link)
        self.requests: asyncio.Queue[tuple[int, int, bytes]] = asyncio.Queue()
        self.link = Link(lambda *frame: self.requests.put_nowait(frame), lambda: None)
        self._ours, self._theirs = socket.socketpair()

    async def connect_front(self) -> None:
        """Connect the front's end."""
        await asyncio.get_running_loop().create_unix_connection(lambda: self._link, sock=self._theirs)

    async def read(self) -> None:
        """Read from now on."""
        await asyncio.get_running_loop().create_unix_connection(lambda: self.link, sock=self._ours)

    def _answered(self, kind: int, number: int, content: bytes) -> None:
        self.calls.answered(kind, number, content)

    def close(self) -> None:
        """Hang up at both ends."""
        self._link.close()
        self.link.close()
        self._ours.close()


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    """A server whose front is connected."""
    made = Server()
    await made.connect_front()
    yield made
    made.close()


async def started(call: Coroutine[Any, Any, bytes | Status]) -> asyncio.Task[bytes | Status]:
    """Start a call and return once it waits."""
    task = asyncio.create_task(call)
    await asyncio.sleep(0)
    return task


async def test_answers_find_their_calls(server: Server) -> None:
    """Answers that come in another order are heard by the calls whose numbers they bear, statuses as statuses."""
    await server.read()
    waiting = [await started(server.calls.make(kind, bytes([kind]))) for kind in range(4)]
    requests = [await server.requests.get() for _ in waiting]
    assert [(kind, bytes([kind])) for kind in range(4)] == [(kind, content) for kind, _, content in requests]
    problem = ServiceError(error_pb2.ERROR_REASON_WRONG_STATE, "no").status()
    for kind, number, _ in reversed(requests):
        content = problem.SerializeToString() if kind == 2 else f"answer {kind}".encode()
        server.link.send(STATUS if kind == 2 else RESPONSE, number, content)
    assert [b"answer 0", b"answer 1", problem, b"answer 3"] == [await task for task in waiting]


async def test_a_caller_who_has_gone(server: Server) -> None:
    """The answer to a caller who has gone, and one to a call that never was, are dropped; others hear theirs."""
    await server.read()
    gone = await started(server.calls.make(0, b"gone"))
    stays = await started(server.calls.make(0, b"stays"))
    numbers = {content: number for _, number, content in [await server.requests.get() for _ in range(2)]}
    gone.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gone
    server.link.send(RESPONSE, numbers[b"gone"], b"nobody hears it")
    server.link.send(STATUS, 4711, b"\xff is no status")
    server.link.send(RESPONSE, numbers[b"stays"], b"heard")
    server.link.send(RESPONSE, numbers[b"stays"], b"twice")
    assert b"heard" == await stays


def check_full(answer: bytes | Status) -> None:
    """Assert that a call was refused for lack of room, and told when to come back."""
    assert isinstance(answer, Status)
    info, retry = ErrorInfo(), RetryInfo()
    assert answer.details[0].Unpack(info)
    assert answer.details[-1].Unpack(retry)
    assert (code_pb2.RESOURCE_EXHAUSTED, "QUEUE_FULL") == (answer.code, info.reason)
    assert retry.retry_delay.ToMilliseconds() > 0


async def test_the_limit_of_what_is_under_way(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests up to the limit wait; one more byte is refused at once with a delay; what is answered or given up makes room."""
    monkeypatch.setattr(calls_module, "UNDER_WAY_BYTES_MAX", LIMIT_BYTES)
    await server.read()
    first = await started(server.calls.make(0, bytes(LIMIT_BYTES - 100)))
    second = await started(server.calls.make(0, bytes(100)))
    check_full(await server.calls.make(0, b"x"))
    second.cancel()
    await asyncio.wait([second])
    third = await started(server.calls.make(0, bytes(100)))
    check_full(await server.calls.make(0, b"x"))
    for _ in range(3):
        _, number, _ = await server.requests.get()
        server.link.send(RESPONSE, number, b"done")
    assert [b"done"] * 2 == [await first, await third]
    fourth = await started(server.calls.make(0, bytes(LIMIT_BYTES)))
    _, number, _ = await server.requests.get()
    server.link.send(RESPONSE, number, b"done")
    assert b"done" == await fourth


async def test_callers_who_gave_up_do_not_make_room_that_is_not_there(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the server reads nothing, requests whose callers have gone still count: they are still in memory."""
    monkeypatch.setattr(calls_module, "UNDER_WAY_BYTES_MAX", LARGE_BYTES)
    given_up = await started(server.calls.make(0, bytes(LARGE_BYTES)))
    await asyncio.sleep(0)
    given_up.cancel()
    await asyncio.wait([given_up])
    check_full(await server.calls.make(0, bytes(LARGE_BYTES)))
    await server.read()
    kind, _, content = await server.requests.get()
    assert (0, LARGE_BYTES) == (kind, len(content))
    again = await started(server.calls.make(0, b"x"))
    _, number, _ = await server.requests.get()
    server.link.send(RESPONSE, number, b"done")
    assert b"done" == await again


def test_the_front_knows_no_rules() -> None:
    """The front's process loads neither the core nor the engines: it starts at once, and there is nothing for it to decide with."""
    program = "import sys, gavel_server.front.process; print(*sorted(name.partition('.')[0] for name in sys.modules))"
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=dict(os.environ)).stdout
    assert {"gavel_rules", "cel_expr_python", "durable_rules_engine", "redis", "pydantic"}.isdisjoint(said.split())
