"""Fixtures of the adapters' tests: a bus whose rules approve light parcels, ask a person about heavy ones and refuse the heaviest."""

from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator, Iterator

import grpc
import pytest
from gavel_client import GavelClient, SyncGavelClient

from tests.e2e.adapters.crewai.process import CrewProcess
from tests.e2e.languages.toolchains import build_temporal_server
from tests.e2e.world import ACTION, DAY_MS, DEPOT, POLICY, START_SECONDS_MAX, Server, open_bus, publish_status
from tests.support.ports import free_port

RULES = f"""
gavel: v1
rule_set: {POLICY}
version: 1
actions:
  {ACTION}:
    params:
      type: object
      required: [weight]
      additionalProperties: false
      properties: {{weight: {{type: number, exclusiveMinimum: 0}}}}
    facts:
      status: {{key: parcel.status, type: string, min_trust: 1, max_age_ms: {DAY_MS}, sources: [{DEPOT.id}]}}
    decision_ttl_ms: 600000
    # An attempt that failed may be made again, so that only its report can prevent a second effect.
    retry: {{max_attempts: 3, backoff_initial_ms: 10, backoff_max_ms: 10}}
rules:
  - {{id: heaviest, action: {ACTION}, priority: 30, when: params.weight > 100, effect: reject, reason_code: TOO_HEAVY}}
  - {{id: heavy, action: {ACTION}, priority: 20, when: params.weight > 30, effect: review, reason_code: HEAVY}}
  - {{id: ready, action: {ACTION}, priority: 10, when: facts.status == "ready", effect: approve}}
"""


@pytest.fixture
async def client(pair: tuple[Server, Server], bus: str) -> AsyncIterator[GavelClient]:
    """A client of a server, on a bus with the rules and two parcels that are ready."""
    async with pair[0].client(bus) as opened:
        await open_bus(opened, RULES)
        await publish_status(opened, ["parcel/1", "parcel/2"])
        yield opened


@pytest.fixture
def sync_client(pair: tuple[Server, Server], bus: str) -> Iterator[SyncGavelClient]:
    """A synchronous client of the same bus."""
    with SyncGavelClient(pair[0].address, bus=bus) as opened:
        yield opened


@pytest.fixture(scope="session")
def temporal_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of Temporal's test server."""
    port = free_port()
    log = tmp_path_factory.mktemp("temporal") / "server.log"
    with log.open("wb") as output, subprocess.Popen([*build_temporal_server(), str(port)], stdout=output, stderr=output) as process:
        try:
            with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
                grpc.channel_ready_future(channel).result(timeout=START_SECONDS_MAX)
            yield f"127.0.0.1:{port}"
        finally:
            process.kill()


@pytest.fixture(scope="session")
def crew_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CrewProcess]:
    """A process that runs crews."""
    process = CrewProcess(tmp_path_factory.mktemp("crewai"))
    yield process
    process.close()
