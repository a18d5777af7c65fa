"""Buses by name: opened once, at first use, and not while the server stops. In virtual time."""

from __future__ import annotations

import asyncio

import pytest
from gavel_server.bus.sequencer import Sequencer
from gavel_server.buses import Buses
from gavel_server.errors import ServiceError
from gavel_server.log import LogUnavailableError

from tests.unit.core.servers import Servers, reason, scene


@scene
async def test_a_bus_is_opened_once(servers: Servers) -> None:
    """However many ask for it at the same time; a try that failed is no obstacle to the next."""
    tries = 0

    async def opened(name: str) -> Sequencer:
        nonlocal tries
        tries += 1
        await asyncio.sleep(1)
        if tries == 1:
            raise LogUnavailableError("connection refused")
        return (await servers.start())[0]

    buses = Buses(opened)
    failed = await asyncio.gather(*(buses.get("") for _ in range(5)), return_exceptions=True)
    assert ["LOG_UNAVAILABLE"] * 5 == [reason(result) for result in failed if isinstance(result, ServiceError)]
    found = await asyncio.gather(*(buses.get("") for _ in range(5)))
    assert (2, buses.all()) == (tries, [*set(found)])
    assert buses.opened("default") is await buses.get("default")


@scene
async def test_a_bus_is_opened_although_who_asked_for_it_gave_up(servers: Servers) -> None:
    """A log that takes longer to be read than callers wait is read once: for whoever asks later."""
    tries = 0

    async def opened(name: str) -> Sequencer:
        nonlocal tries
        tries += 1
        await asyncio.sleep(30)
        return (await servers.start())[0]

    buses = Buses(opened)
    for _ in range(2):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(buses.get("default"), 10)
    assert [await asyncio.wait_for(buses.get("default"), 15)] == buses.all()
    assert 1 == tries


@scene
async def test_a_server_opens_so_many_buses_and_no_more(servers: Servers) -> None:
    """Those that are being opened count as well."""

    async def opened(name: str) -> Sequencer:
        await asyncio.sleep(1)
        return (await servers.start())[0]

    buses = Buses(opened)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gavel_server.buses.BUSES_MAX", 2)
        results = await asyncio.gather(*(buses.get(name) for name in ("one", "two", "three")), return_exceptions=True)
    assert ["QUEUE_FULL"] == [reason(result) for result in results if isinstance(result, ServiceError)]
    assert 2 == len(buses.all())


@scene
async def test_no_bus_is_opened_while_the_server_stops(servers: Servers) -> None:
    """Who waits for one that is just being opened hears why, and none is opened afterwards."""

    async def opened(name: str) -> Sequencer:
        await asyncio.sleep(60)
        raise AssertionError("a server that stops does not wait for a log to be read")

    buses = Buses(opened)
    opening = asyncio.create_task(buses.get("default"))
    await asyncio.sleep(0.5)
    await buses.stop()
    for waiting in (opening, buses.get("another")):
        with pytest.raises(ServiceError) as caught:
            await waiting
        assert "SHUTTING_DOWN" == reason(caught.value)
    assert [] == buses.all()
