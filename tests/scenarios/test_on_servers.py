"""Every scenario on a server, asked with bare requests and through both clients: the same log comes about as on the core.

One server on one Redis serves them all, each scenario on a bus of its own, whose clock the scenario sets.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

import grpc
import pytest
import pytest_asyncio
from gavel.v1 import fact_pb2
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.fact_pb2 import CrossCheck
from gavel_client.client import GavelClient
from gavel_client.sync import SyncGavelClient
from gavel_rules.language.network import Network
from gavel_server.bus.sequencer import Sequencer
from gavel_server.buses import Buses
from gavel_server.clock import GuardedClock
from gavel_server.embedded import EmbeddedRedis
from gavel_server.log.redis import RedisLog

from tests.integration.services.world import Clock, register
from tests.scenarios.comparing import normal_form, readable
from tests.scenarios.layers import CoreLayer, Layer
from tests.scenarios.playing import play, played
from tests.scenarios.reading import Scenario, all_scenarios
from tests.scenarios.servers import ClientLayer, ServerLayer, StreamLayer
from tests.unit.core.driver import WEEK_MS

KINDS: Final = ("requests", "client", "stream", "blocking-client")
pytestmark = pytest.mark.asyncio(loop_scope="module")


class TimedLog(RedisLog):
    """A log whose store has the time that a test gives: servers compare their clock with it."""

    clock: Callable[[], int]

    async def time_ms(self) -> int:
        """See EventLog."""
        return self.clock()


class Server(NamedTuple):
    """The server of all scenarios, and what asks it. `clocks` by bus."""

    buses: Buses
    clocks: dict[str, Clock]
    channel: grpc.aio.Channel
    client: GavelClient
    blocking: SyncGavelClient

    @asynccontextmanager
    async def layer(self, kind: str, bus: str) -> AsyncIterator[Layer]:
        """Open a bus, to be asked in that way; with the block its server leaves it."""
        sequencer = await self.buses.get(bus)

        def set_time(now_ms: int) -> None:
            self.clocks[bus].now_ms = now_ms

        try:
            match kind:
                case "requests":
                    yield ServerLayer(self.channel, sequencer, set_time)
                case "client":
                    yield ClientLayer(self.channel, sequencer, set_time, self.client)
                case "blocking-client":
                    yield ClientLayer(self.channel, sequencer, set_time, self.blocking)
                case "stream":
                    streaming = StreamLayer(self.channel, sequencer, set_time, self.client)
                    yield streaming
                    await streaming.close()
        finally:
            await sequencer.stop()
            await sequencer.log.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Server]:
    """A server with a Redis of its own."""
    clocks: dict[str, Clock] = {}
    async with EmbeddedRedis(tmp_path_factory.mktemp("redis")) as redis:

        async def open_bus(name: str) -> Sequencer:
            clock = clocks[name] = Clock()
            log = await TimedLog.connect(redis.url, name)
            assert isinstance(log, TimedLog)
            log.clock = clock
            sequencer = Sequencer(
                log,
                GuardedClock(clock),
                # As the core's driver opens a bus.
                cross_check=CrossCheck(mode=fact_pb2.CROSS_CHECK_MODE_ALWAYS, sample_every=3),
                idempotency_window_ms=WEEK_MS,
            )
            await sequencer.start()
            return sequencer

        buses = Buses(open_bus)
        serving = grpc.aio.server()
        register(serving, buses)
        target = f"127.0.0.1:{serving.add_insecure_port('127.0.0.1:0')}"
        await serving.start()
        async with grpc.aio.insecure_channel(target) as channel, GavelClient(target) as client:
            with SyncGavelClient(target) as blocking:
                yield Server(buses, clocks, channel, client, blocking)
        await serving.stop(None)


@pytest.mark.parametrize("scenario", [pytest.param(scenario, id=scenario.id) for scenario in all_scenarios()])
async def test_scenario(server: Server, scenario: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks, what the file says comes about, the server proves it, and its log is the core's."""
    if scenario.engines_disagree:
        monkeypatch.setattr(Network, "match", lambda network, text: [])
    on_core = (await played(scenario, CoreLayer(scenario.id), len(scenario.steps))).known.events
    # At once, each on a bus of its own: they wait for the disk together.
    logs = await asyncio.gather(*(_log_of(server, scenario, kind) for kind in KINDS))
    for kind, log in zip(KINDS, logs, strict=True):
        if normal_form(on_core) != normal_form(log):
            assert readable(on_core) == readable(log), kind
            pytest.fail(f"{kind}: the logs differ, in nothing that can be read")


async def _log_of(server: Server, scenario: Scenario, kind: str) -> list[Envelope]:
    async with server.layer(kind, f"{scenario.id}-{kind}") as layer:
        return (await play(scenario, layer)).events
