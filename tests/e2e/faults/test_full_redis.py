"""A server whose embedded Redis has used up its memory."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest
from gavel_client import GavelClient, GavelError, fact_envelope
from gavel_rules.values import value_to_python

from tests.e2e.world import DEPOT, Server, run_servers
from tests.support.fronts import ANY_FRONT

# Half a megabyte, of texts that are as long as texts may be.
NOTE = ["x" * 64 * 1024] * 8
# The client repeats a refused write until then, so the last refusal must arrive before.
TIMEOUT_MS = 5_000


async def fill(client: GavelClient) -> None:
    """Publish facts until one is refused."""
    while True:
        await client.publish_event(fact_envelope("parcel/1", DEPOT, key="parcel.note", value=NOTE), timeout_ms=TIMEOUT_MS)


@pytest.mark.long
async def test_a_full_redis_serves_reads(tmp_path: Path) -> None:
    """A server whose Redis is full refuses writes with the reason and the remedy, serves every read, and starts again with its log."""
    server = Server(tmp_path / "gavel", options=["--front", ANY_FRONT, "--redis-memory-mib", "16"])
    with run_servers(server):
        async with server.client() as client:
            with pytest.raises(GavelError) as failure:
                await fill(client)
            head = (await client.get_status()).head_sequence_number
        assert grpc.StatusCode.UNAVAILABLE == failure.value.code
        assert "is full, so nothing is written: give it more memory" in failure.value.message
        assert 0 == server.terminate()
        server.start()
        async with server.client() as client:
            assert head == (await client.get_status()).head_sequence_number
            assert head == (await client.get_event(sequence_number=head)).envelope.sequence_number
            assert [1] == [event.sequence_number for event in (await client.list_events(page_size=1)).envelopes]
            note = (await client.get_projection("parcel/1")).projection.facts[0]
            assert (head, NOTE) == (note.source_event.sequence_number, value_to_python(note.value))
            assert (await client.get_trace(trace_id=(await client.get_event(sequence_number=2)).envelope.trace_id)).envelopes
            with pytest.raises(GavelError, match="is full"):
                await client.publish_event(
                    fact_envelope("parcel/1", DEPOT, key="parcel.note", value=[*NOTE, *NOTE[1:]]), timeout_ms=TIMEOUT_MS
                )
