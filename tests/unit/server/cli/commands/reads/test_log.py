"""`gavel log tail --follow` over restarts of the server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import grpc
import pytest
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.event_service_pb2 import Checkpoint, SubscribeEventsResponse
from gavel_client import GavelError, SyncGavelClient
from gavel_server.cli.commands.reads.log import follow_events

from tests.unit.client.fake_server import FakeServer, refusal


def subscribe_with(client: SyncGavelClient) -> Callable[[int, Checkpoint | None], Iterator[SubscribeEventsResponse]]:
    """Return what `follow_events` subscribes with."""
    return lambda first, last_read: client.subscribe_events(from_sequence_number=first, last_read=last_read)


async def test_follow_events(capsys: pytest.CaptureFixture[str]) -> None:
    """No event is lost or repeated when a stream breaks off while the server is away; a refusal ends it."""
    streamed = [SubscribeEventsResponse(envelope=Envelope(sequence_number=number, chain_hash=bytes([number]))) for number in (3, 4, 8)]
    checkpoint = SubscribeEventsResponse(checkpoint=Checkpoint(sequence_number=7, chain_hash=b"\7"))
    responses: list[SubscribeEventsResponse] = []

    def follow() -> None:
        with SyncGavelClient(server.target) as client:
            for response in follow_events(3, subscribe_with(client)):
                responses.append(response)  # noqa: PERF402  # what came before the error counts

    async with FakeServer() as server:
        away, restarting = refusal(grpc.StatusCode.UNAVAILABLE), refusal(grpc.StatusCode.UNAVAILABLE, "SHUTTING_DOWN", retry_after_ms=1)
        invalid = refusal(grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST")
        server.script("SubscribeEvents", [*streamed[:2], restarting], [away], [checkpoint, away], [streamed[2], invalid])
        with pytest.raises(GavelError) as error_info:
            await asyncio.to_thread(follow)
    assert "INVALID_REQUEST" == error_info.value.reason
    assert [*streamed[:2], checkpoint, streamed[2]] == responses
    assert [3, 5, 5, 8] == [request.from_sequence_number for request in server.requests["SubscribeEvents"]]
    four = Checkpoint(sequence_number=4, chain_hash=b"\4")
    assert [Checkpoint(), four, four, checkpoint.checkpoint] == [request.last_read for request in server.requests["SubscribeEvents"]]
    notes = [
        "gavel: the server is away (UNAVAILABLE SHUTTING_DOWN); continuing from event 5 when it is back",
        "gavel: the server is away (UNAVAILABLE); continuing from event 8 when it is back",
    ]
    assert notes == capsys.readouterr().err.splitlines()


async def test_credentials_that_expire(capsys: pytest.CaptureFixture[str]) -> None:
    """When the credentials expire, the stream continues with those that the provider has then; refused ones end it."""
    streamed = [SubscribeEventsResponse(envelope=Envelope(sequence_number=number)) for number in (3, 4)]
    tokens = iter(["old", "new", "refused"])
    responses: list[SubscribeEventsResponse] = []

    def follow() -> None:
        with SyncGavelClient(server.target, credentials=lambda: next(tokens)) as client:
            for response in follow_events(3, subscribe_with(client)):
                responses.append(response)  # noqa: PERF402  # what came before the error counts

    async with FakeServer() as server:
        expired = refusal(grpc.StatusCode.UNAUTHENTICATED, "UNAUTHENTICATED", "the credentials have expired")
        server.script("SubscribeEvents", [streamed[0], expired], [streamed[1], expired], [expired])
        with pytest.raises(GavelError) as error_info:
            await asyncio.to_thread(follow)
    assert "UNAUTHENTICATED" == error_info.value.reason
    assert (streamed, []) == (responses, [*tokens])
    notes = [f"gavel: the credentials have expired; continuing from event {number} with the present ones" for number in (4, 5)]
    assert notes == capsys.readouterr().err.splitlines()
