"""`gavel trace` of a trace that is longer than an answer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.event_service_pb2 import GetTraceResponse
from gavel_server.cli.main import run


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_truncated_trace(options: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A truncated trace names the command that prints its rest."""
    response = GetTraceResponse(envelopes=[Envelope(event_id=str(number), sequence_number=number) for number in (3, 8)], truncated=True)

    @contextmanager
    def connect(server: str, bus: str) -> Iterator[SimpleNamespace]:
        yield SimpleNamespace(get_trace=lambda trace_id: response)

    monkeypatch.setattr("gavel_server.cli.commands.reads.trace.connect", connect)
    assert 0 == run(["trace", "t-1", *options])
    expected = "gavel: the trace is longer; print the rest with gavel log list --trace t-1 --from 9 --limit 10000\n"
    assert expected == capsys.readouterr().err
