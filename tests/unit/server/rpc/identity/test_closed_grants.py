"""The grants of a closed bus: read from the log store once for each version."""

from __future__ import annotations

import pytest
from gavel.v1.envelope_pb2 import Envelope
from gavel_rules.identity.grants import compile_grants
from gavel_server.log import LogUnavailableError
from gavel_server.rpc.identity.closed_grants import BUSES_MAX, REREAD_SECONDS, ClosedGrants

DOCUMENT = "gavel: v1\nname: main\nversion: {}\ngrants:\n  - {{to: [ada], may: [read]}}\n"


class Store:
    """A log store: the number of the event with a bus's grants, and the events that were read."""

    def __init__(self) -> None:
        self.numbers: dict[str, int | None] = {}
        self.events: dict[int, Envelope] = {}
        self.reads: list[tuple[str, int]] = []
        self.seconds = 0.0
        self.grants = ClosedGrants(self._number, self._read, lambda: self.seconds)

    async def _number(self, bus: str) -> int | None:
        return self.numbers.get(bus)

    async def _read(self, bus: str, number: int) -> bytes | None:
        self.reads.append((bus, number))
        event = self.events.get(number)
        return None if event is None else event.SerializeToString()

    def deploy(self, bus: str, number: int, version: int = 0) -> None:
        """Record grants whose version is, unless it is given, their event's number."""
        event = self.events[number] = Envelope(sequence_number=number)
        event.fact.grants_deployed.canonical_json = compile_grants(DOCUMENT.format(version or number)).canonical_json
        self.numbers[bus] = number

    async def version(self, bus: str) -> int | None:
        """Return the version of a bus's grants, 0 without grants, None if they are unknown."""
        known = await self.grants.of(bus)
        if known is None:
            return None
        return 0 if known.grants is None else known.grants.version


async def test_grants_of_a_bus() -> None:
    """A bus has the grants of the event that the store names, none, or unknown ones."""
    store = Store()
    store.deploy("granted", 3)
    store.numbers |= {"bare": 0, "lost": 4}
    assert [3, 0, None, None] == [await store.version(bus) for bus in ("granted", "bare", "lost", "other")]


async def test_each_version_is_read_once() -> None:
    """Grants are read again only when others are in force."""
    store = Store()
    store.deploy("one", 3)
    assert [3, 3] == [await store.version("one") for _ in range(2)]
    store.deploy("one", 8)
    assert [8, 8] == [await store.version("one") for _ in range(2)]
    assert [("one", 3), ("one", 8)] == store.reads


async def test_grants_of_a_bus_that_was_replaced() -> None:
    """A bus that was created anew has its own grants after REREAD_SECONDS, though their number is that of the earlier ones."""
    store = Store()
    store.deploy("one", 2)
    assert 2 == await store.version("one")
    store.deploy("one", 2, version=7)
    store.seconds += REREAD_SECONDS
    assert [7, 7] == [await store.version("one") for _ in range(2)]
    assert [("one", 2)] * 2 == store.reads


async def test_an_event_without_grants() -> None:
    """An event that holds no grants makes them unknown."""
    store = Store()
    store.events[3] = Envelope(sequence_number=3)
    store.numbers["one"] = 3
    assert await store.version("one") is None


async def test_memory_is_bounded() -> None:
    """Of more than BUSES_MAX buses, the grants of those that were not asked for longest are read again."""
    store = Store()
    for number in range(BUSES_MAX + 1):
        store.deploy(f"bus-{number}", number + 1)
        await store.version(f"bus-{number}")
        await store.version("bus-0")
    store.reads.clear()
    assert [1, 2] == [await store.version(bus) for bus in ("bus-0", "bus-1")]
    assert [("bus-1", 2)] == store.reads


async def test_a_failing_store() -> None:
    """An error of the store is not taken for a bus without grants."""

    async def fail(_: str) -> int | None:
        raise LogUnavailableError("cannot reach Redis")

    with pytest.raises(LogUnavailableError):
        await ClosedGrants(fail, Store()._read).of("one")
