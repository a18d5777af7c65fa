"""Callers whose reads are legal and large, beside others that write."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio
from gavel_client import GavelClient, GavelError, fact_envelope

from tests.e2e.world import DEPOT, PATIENT_MS, Server, run_servers
from tests.support.fronts import TRANSPORTS

MIB = 1024 * 1024
# About 900 KB.
NOTES = ["x" * 60_000] * 15
EVENTS = 100
READERS = 32


async def read_traces(server: Server, bus: str) -> int:
    """Read the trace of the large events three times, on a connection of its own; return how often it was refused."""
    refused = 0
    async with server.client(bus) as client:
        for _ in range(3):
            try:
                trace = await client.get_trace(trace_id="large", timeout_ms=PATIENT_MS)
                assert (3, True) == (len(trace.envelopes), trace.truncated)
            except GavelError as error:
                assert "QUEUE_FULL" == error.reason  # noqa: PT017  # any other error is not caught
                refused += 1
    return refused


async def write_until(client: GavelClient, reading: asyncio.Future[Any]) -> int:
    """Publish one fact after another while the readers read; return how many."""
    written = 0
    while not reading.done():
        await client.publish_event(fact_envelope("parcel/1", DEPOT, key="parcel.status", value="ready"))
        written += 1
    return written


@pytest.mark.long
@pytest.mark.parametrize("front", TRANSPORTS)
async def test_reads_of_large_events_beside_writes(tmp_path: Path, front: str) -> None:
    """32 callers read a trace of large events again and again: all writes on another bus are taken, and Redis needs little memory."""
    server = Server(tmp_path / "gavel", options=["--front", front])
    with run_servers(server):
        async with server.client("large") as large, server.client() as writer, redis.asyncio.Redis.from_url(server.redis_url) as store:
            for number in range(EVENTS):
                envelope = fact_envelope(f"parcel/{number}", DEPOT, key="parcel.notes", value=NOTES)
                envelope.trace_id = "large"
                await large.publish_event(envelope)
            before: Any = await store.info("memory")
            reading = asyncio.gather(*(read_traces(server, "large") for _ in range(READERS)))
            assert await write_until(writer, reading) > 0
            await reading
            after: Any = await store.info("memory")
            assert after["used_memory_peak"] - before["used_memory"] < 64 * MIB
