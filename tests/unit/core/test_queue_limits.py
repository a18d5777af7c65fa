"""What may wait on a bus is limited in bytes as well as in number. In virtual time."""

from __future__ import annotations

import asyncio

import pytest
from gavel_server.bus.planning import Completed
from gavel_server.bus.sequencer import QUEUE_BYTES_MAX
from gavel_server.errors import ServiceError
from gavel_server.log import LogUnavailableError

from tests.unit.core.servers import Servers, reason, scene

MEBIBYTE = 1024 * 1024


@scene
async def test_large_commands_fill_the_queue_sooner(servers: Servers) -> None:
    """Once so many bytes wait, a command is refused with QUEUE_FULL; when they are worked off there is room again."""
    sequencer, log = await servers.start()
    log.pause_seconds = 0.01
    heard: list[Completed | ServiceError] = []
    for _ in range(2):
        room = QUEUE_BYTES_MAX // MEBIBYTE + 1
        for _ in range(room):
            sequencer.submit(servers.fact(), heard.append, size_bytes=MEBIBYTE)
        with pytest.raises(ServiceError) as caught:
            sequencer.submit(servers.fact(), heard.append, size_bytes=MEBIBYTE)
        assert "QUEUE_FULL" == reason(caught.value)
        await asyncio.sleep(10)
        assert [Completed] * room == [type(result) for result in heard]
        heard.clear()


@scene
async def test_refused_commands_take_no_room(servers: Servers) -> None:
    """Commands that are decided again, or refused because the log is away, are not counted twice, nor after they are gone."""
    sequencer, log = await servers.start()
    other, _ = await servers.start()
    heard: list[Completed | ServiceError] = []
    for number in range(20):
        sequencer.submit(servers.fact(), heard.append, size_bytes=MEBIBYTE)
        if number % 5 == 0:
            log.before = [LogUnavailableError("connection refused")]
        else:
            other.submit(servers.fact(), lambda _: None)
        await asyncio.sleep(1)
    assert 20 == len(heard)
    assert 0 == sequencer._queue.size_bytes
