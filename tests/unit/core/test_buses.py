"""Buses by name: opened once, at first use, and not while the server stops. In virtual time."""

from __future__ import annotations

import asyncio

import pytest
from gavel_server.bus.sequencer import Sequencer
from gavel_server.buses import Buses
from gavel_server.errors import ServiceError
from gavel_server.log import LogUnavailableError

from tests.unit.core.servers import Servers, reason, scene, tell


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
    results = await asyncio.gather(*(buses.get("") for _ in range(5)), return_exceptions=True)
    assert ["LOG_UNAVAILABLE"] == [reason(result) for result in results if isinstance(result, ServiceError)]
    assert (2, 1) == (tries, len(buses.all()))
    assert buses.opened("default") is await buses.get("default")


@scene
async def test_no_bus_is_opened_while_the_server_stops(servers: Servers) -> None:
    """One that is just being opened stops with the others, and none is opened afterwards."""

    async def opened(name: str) -> Sequencer:
        await asyncio.sleep(1)
        return (await servers.start())[0]

    buses = Buses(opened)
    opening = asyncio.create_task(buses.get("default"))
    await asyncio.sleep(0.5)
    await buses.stop()
    sequencer = await opening
    assert "SHUTTING_DOWN" == reason(await tell(sequencer, servers.fact()))
    with pytest.raises(ServiceError) as caught:
        await buses.get("another")
    assert "SHUTTING_DOWN" == reason(caught.value)
