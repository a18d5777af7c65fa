"""`gavel export` that is interrupted, and that goes on."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import grpc
import pytest
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.event_service_pb2 import SubscribeEventsRequest, SubscribeEventsResponse
from gavel_client import GavelClient, GavelError
from gavel_server.cli.commands.operations import export
from gavel_server.cli.commands.operations.export import _Export
from gavel_server.cli.errors import EXIT_FAILURE, EXIT_INTERRUPTED, CommandError
from gavel_server.cli.main import run
from gavel_server.export.targets import Cursor, LineFile, lock_cursor, read_cursor

from tests.unit.client.fake_server import FakeServer, refusal

NEW = Cursor("default", "jsonl", "0-0")


class InterruptedFile(LineFile):
    """A file of lines during whose third event a signal comes."""

    def __init__(self, path: Path, stop: asyncio.Event) -> None:
        super().__init__("jsonl", path)
        self._stop = stop

    def add(self, envelope: Envelope) -> None:
        """See Target."""
        super().add(envelope)
        if envelope.sequence_number == 3:
            self._stop.set()


@pytest.mark.parametrize("last", [5, None])
async def test_interrupted(tmp_path: Path, last: int | None) -> None:
    """What was exported counts, but an export to the head that is interrupted fails; one that follows only ends so."""
    stop = asyncio.Event()
    target = InterruptedFile(tmp_path / "log", stop)
    target.resume(NEW, is_new=True)
    events = [SubscribeEventsResponse(envelope=Envelope(sequence_number=number, chain_hash=bytes([number]))) for number in (1, 2, 3, 4, 5)]
    async with FakeServer() as server, GavelClient(server.target) as client:
        server.script("SubscribeEvents", [*events])
        running = _Export(client, target, NEW, tmp_path / "cursor", stop).run(last, 10.0)
        if last is None:
            await running
        else:
            with pytest.raises(CommandError, match="interrupted after event 3 of 5") as interrupted:
                await running
            assert EXIT_INTERRUPTED == interrupted.value.exit_status
    cursor = read_cursor(tmp_path / "cursor", NEW._replace(target=target.name))
    assert cursor is not None
    assert (3, "03") == (cursor.sequence_number, cursor.chain_hash)


@pytest.mark.parametrize(("last", "first", "numbers"), [(4, 3, [3, 4]), (2, 2, []), (None, 3, [3, 4])])
async def test_resumed(tmp_path: Path, last: int | None, first: int, numbers: list[int]) -> None:
    """A resumed export asks for new events only, since its last one may be trimmed; without new ones, it reads the last one again."""
    stop = asyncio.Event()
    target = LineFile("jsonl", tmp_path / "log")
    cursor = NEW._replace(target=target.name, sequence_number=2, chain_hash="02", size_bytes=3)
    (tmp_path / "log").write_text("{}\n", encoding="utf-8")
    target.resume(cursor, is_new=False)
    requests: list[SubscribeEventsRequest] = []

    def answer(request: SubscribeEventsRequest) -> list[SubscribeEventsResponse]:
        requests.append(request)
        if len(requests) == 2:
            stop.set()
        sent = range(request.from_sequence_number, 5) if len(requests) == 1 else ()
        return [SubscribeEventsResponse(envelope=Envelope(sequence_number=number, chain_hash=bytes([number]))) for number in sent]

    async with FakeServer() as server, GavelClient(server.target) as client:
        server.answers["SubscribeEvents"] = answer
        await _Export(client, target, cursor, None, stop).run(last, 10.0)
    last_read = requests[0].last_read
    assert (first, 2, b"\x02") == (requests[0].from_sequence_number, last_read.sequence_number, last_read.chain_hash)
    lines = (tmp_path / "log").read_text(encoding="utf-8").splitlines()[1:]
    assert numbers == [int(json.loads(line)["sequence_number"]) for line in lines]


async def test_credentials_that_expire(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An export that follows goes on when its credentials have expired, with those that the provider has then; refused ones end it."""
    monkeypatch.setattr(export, "RETRY_SECONDS", 0.0)
    target = LineFile("jsonl", tmp_path / "log")
    target.resume(NEW, is_new=True)
    first, second = (SubscribeEventsResponse(envelope=Envelope(sequence_number=number, chain_hash=bytes([number]))) for number in (1, 2))
    expired = refusal(grpc.StatusCode.UNAUTHENTICATED, "UNAUTHENTICATED", "the credentials have expired")
    tokens = iter(["old", "new", "refused"])
    async with FakeServer() as server, GavelClient(server.target, credentials=lambda: next(tokens)) as client:
        server.script("SubscribeEvents", [first, expired], [second, expired], [expired])
        with pytest.raises(GavelError, match="the credentials have expired"):
            await _Export(client, target, NEW, None, asyncio.Event()).run(None, 10.0)
        assert [1, 2, 3] == [request.from_sequence_number for request in server.requests["SubscribeEvents"]]
    assert [] == [*tokens]


def test_two_exports_with_one_cursor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An export ends before it reads or writes anything while another one uses its cursor."""
    with lock_cursor(tmp_path / "cursor"):
        assert EXIT_FAILURE == run(["export", "--to", str(tmp_path / "log"), "--cursor", str(tmp_path / "cursor")])
    assert "gavel: another export uses this cursor" in capsys.readouterr().err
    assert [tmp_path / "cursor.lock"] == [*tmp_path.iterdir()]
