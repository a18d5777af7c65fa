"""Places: how many pieces of work run at once, and whose turn is next."""

from __future__ import annotations

import asyncio

import pytest
from gavel.v1 import error_pb2
from gavel_server.errors import ServiceError
from gavel_server.fairness.places import Places

GREEDY, OTHER = "10.0.0.1:1", "10.0.0.2:1"


class Documents:
    """Compilations that end when they are told to."""

    def __init__(self, places_max: int = 1, waiting_max: int = 2) -> None:
        self.begun: list[str] = []
        self.end = asyncio.Event()
        self._places = Places("documents wait to be compiled", places_max, waiting_max=waiting_max, retry_after_ms=5)

    def compile(self, caller: str, name: str = "") -> asyncio.Task[str]:
        """Compile a document for a caller."""
        return asyncio.create_task(self._places.run(caller, self._work(name)))

    async def _work(self, name: str) -> str:
        self.begun.append(name)
        await self.end.wait()
        if name == "broken":
            raise ValueError(name)
        return name


async def turns(count: int = 5) -> None:
    """Let the other tasks have their turns."""
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_caller_that_goes_leaves_its_place_occupied() -> None:
    """Work of a caller that has gone counts until it ends, so that calls that are cancelled again and again do not add up."""
    documents = Documents()
    for number in range(5):
        call = documents.compile(GREEDY, f"gone {number}")
        await turns()
        call.cancel()
        await turns()
    waiting = documents.compile(OTHER, "waits")
    await turns()
    assert ["gone 0"] == documents.begun
    documents.end.set()
    assert "waits" == await waiting
    assert ["gone 0", "waits"] == documents.begun


async def test_the_room_is_shared() -> None:
    """When no place to wait is left, a caller hears so at once; another caller displaces its newest document, and has its turn."""
    documents = Documents()
    greedy = [documents.compile(GREEDY, str(number)) for number in range(4)]
    await turns()
    other = documents.compile(OTHER, "other")
    await turns()
    assert [False, False, True, True] == [call.done() for call in greedy]
    for call in greedy[2:]:
        with pytest.raises(ServiceError, match=r"2 documents wait to be compiled.*the caller has used its share") as refused:
            await call
        assert (error_pb2.ERROR_REASON_QUEUE_FULL, 5) == (refused.value.reason, refused.value.retry_after_ms)
    documents.end.set()
    assert ["0", "1", "other"] == [await call for call in (*greedy[:2], other)]


async def test_a_caller_that_goes_as_another_takes_its_place() -> None:
    """A caller that has been cancelled in this very turn can be displaced, and does not fail the caller that comes."""
    documents = Documents()
    running, *waiting = [documents.compile(GREEDY, str(number)) for number in range(3)]
    await turns()
    other = documents.compile(OTHER, "other")  # comes before the cancelled ones hear of it
    for call in waiting:
        call.cancel()
    await turns()
    documents.end.set()
    assert ("0", "other") == (await running, await other)
    assert [True, True] == [call.cancelled() for call in waiting]


async def test_failures_free_their_place() -> None:
    """Work that fails raises to its caller, and the next one has the place."""
    documents = Documents()
    broken, next_one = documents.compile(GREEDY, "broken"), documents.compile(GREEDY, "next")
    documents.end.set()
    with pytest.raises(ValueError, match="broken"):
        await broken
    assert "next" == await next_one
