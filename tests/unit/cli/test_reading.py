"""How `gavel log tail --follow` lives through restarts of the server."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.event_service_pb2 import Checkpoint, SubscribeEventsResponse
from gavel_client import GavelError, SyncGavelClient
from gavel_server.cli.reading import following

from tests.unit.client.fake_server import FakeServer, refused


async def test_following_goes_on_where_it_was(capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever breaks a stream off while its server is away, no event is lost or printed twice; a refusal ends it."""
    sent = [SubscribeEventsResponse(envelope=Envelope(sequence_number=number)) for number in (3, 4, 8)]
    checkpoint = SubscribeEventsResponse(checkpoint=Checkpoint(sequence_number=7))
    heard: list[SubscribeEventsResponse] = []

    def follow() -> None:
        with SyncGavelClient(server.target) as client:
            for response in following(client, 3):
                heard.append(response)  # noqa: PERF402  # what came before the error counts

    async with FakeServer() as server:
        away, restarting = refused(grpc.StatusCode.UNAVAILABLE), refused(grpc.StatusCode.UNAVAILABLE, "SHUTTING_DOWN", retry_after_ms=1)
        refusal = refused(grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST")
        server.script("SubscribeEvents", [*sent[:2], restarting], [away], [checkpoint, away], [sent[2], refusal])
        with pytest.raises(GavelError) as raised:
            await asyncio.to_thread(follow)
    assert "INVALID_REQUEST" == raised.value.reason
    assert [*sent[:2], checkpoint, sent[2]] == heard
    assert [3, 5, 5, 8] == [request.from_sequence_number for request in server.requests["SubscribeEvents"]]
    notes = [
        "gavel: the server is away (UNAVAILABLE SHUTTING_DOWN); going on from event 5 when it is back",
        "gavel: the server is away (UNAVAILABLE); going on from event 8 when it is back",
    ]
    assert notes == capsys.readouterr().err.splitlines()
