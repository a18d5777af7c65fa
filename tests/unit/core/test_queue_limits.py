"""What may wait on a bus is limited in bytes as well as in number. In virtual time."""

from __future__ import annotations

import asyncio

import pytest
from gavel.v1.arbitration_service_pb2 import BatchSubmitProposalsResponse
from gavel_server.bus.planning import Completed
from gavel_server.bus.sequencer import QUEUE_BYTES_MAX
from gavel_server.errors import ServiceError
from gavel_server.log import LogUnavailableError
from gavel_server.services.answering import BatchAnswers
from google.rpc import code_pb2

from tests.unit.core.driver import proposal_envelope
from tests.unit.core.servers import Servers, reason, recorded, scene

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


@scene
async def test_proposals_that_come_together_are_refused_one_by_one(servers: Servers) -> None:
    """Those for which there is no room hear so, in their places; the others are decided. Where nothing is taken in, all hear why."""
    sequencer, log = await servers.governed()
    fact = await recorded(sequencer, servers.fact())
    sequencer._queue.commands_max = 2
    heard: list[bytes] = []

    def send() -> None:
        answers = BatchAnswers("Propose", 3, heard.append)
        sequencer.propose_all(answers.waiting([proposal_envelope([fact], trace_id=f"t{number}") for number in range(3)], None))

    send()
    await asyncio.sleep(1)
    log.before = [LogUnavailableError("connection refused")]
    send()
    await asyncio.sleep(0.01)
    send()
    refused = [[result.error.code for result in BatchSubmitProposalsResponse.FromString(answer).results] for answer in heard]
    exhausted, unavailable = code_pb2.RESOURCE_EXHAUSTED, code_pb2.UNAVAILABLE
    assert [[code_pb2.OK, code_pb2.OK, exhausted], [unavailable, unavailable, exhausted], [unavailable] * 3] == refused
