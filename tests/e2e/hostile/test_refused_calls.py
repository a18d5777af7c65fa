"""Refused calls leave nothing behind: not the requests, not the frames that refused them."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import grpc
import pytest
from gavel.v1.arbitration_service_pb2 import BatchSubmitProposalsRequest, SubmitProposalRequest
from gavel.v1.event_service_pb2 import PublishEventRequest
from gavel_client import fact_envelope
from gavel_server.log.redis.embedded import EmbeddedRedis

from tests.e2e.world import DEPOT, Server, open_bus, proposal, publish_status, run_servers, wait_until_writable
from tests.support.fronts import TRANSPORTS

CALLS = 8_000
AT_ONCE = 200
TEXT = "x" * 4_000
GROWTH_KIB_MAX = 20 * 1024


def _resident_kib(server: Server) -> int:
    status = Path(f"/proc/{server.running.pid}/status").read_text()
    (line,) = [line for line in status.splitlines() if line.startswith("VmRSS")]
    return int(line.split()[1])


async def _refused(channel: grpc.aio.Channel, calls: int, requests: dict[str, bytes]) -> None:
    """Make calls, a few hundred at once, all of which must be refused; a batch is answered with errors."""
    methods: list[tuple[Any, bytes]] = [(channel.unary_unary(f"/gavel.v1.{method}"), data) for method, data in requests.items()]
    codes: Counter[str] = Counter()

    async def call(index: int) -> None:
        rpc, data = methods[index % len(methods)]
        codes[(await rpc(data, timeout=60).code()).name] += 1

    for start in range(0, calls, AT_ONCE):
        await asyncio.gather(*(call(start + offset) for offset in range(AT_ONCE)))
    assert {"OK", "UNAVAILABLE"} == {*codes}
    assert codes["UNAVAILABLE"] > codes["OK"], codes  # two methods of three are not batches


@pytest.mark.long
@pytest.mark.parametrize("front", TRANSPORTS)
async def test_memory_after_an_outage(tmp_path: Path, front: str) -> None:
    """Thousands of calls that are refused while Redis is away cost no memory, neither during the outage nor after it."""
    redis_directory = tmp_path / "redis"
    async with EmbeddedRedis(redis_directory) as redis:
        server = Server(tmp_path / "data", redis_url=redis.url, options=["--front", front])
        with run_servers(server):
            async with server.client() as client, grpc.aio.insecure_channel(server.address) as channel:
                await open_bus(client)
                fact = (await publish_status(client, ["parcel/1"]))["parcel/1"]
                ask = proposal(fact)
                ask.proposal.expected_outcome = TEXT
                requests: dict[str, Any] = {
                    "ArbitrationService/SubmitProposal": SubmitProposalRequest(envelope=ask),
                    "ArbitrationService/BatchSubmitProposals": BatchSubmitProposalsRequest(envelopes=[ask]),
                    "EventService/PublishEvent": PublishEventRequest(
                        envelope=fact_envelope("parcel/2", DEPOT, key="parcel.status", value=TEXT)
                    ),
                }
                data = {method: request.SerializeToString() for method, request in requests.items()}
                os.kill(server.redis_process_id(), signal.SIGKILL)
                await _refused(channel, CALLS // 4, data)  # buffers of the transport and caches reach their size
                before_kib = _resident_kib(server)
                await _refused(channel, CALLS, data)
                assert _resident_kib(server) - before_kib < GROWTH_KIB_MAX

                assert await redis.ensure_running()
                await wait_until_writable(client)
                assert (await client.submit_proposal(proposal(fact))).decision
                assert _resident_kib(server) - before_kib < GROWTH_KIB_MAX
