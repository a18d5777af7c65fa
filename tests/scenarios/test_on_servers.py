"""Every scenario on a server, through plain requests and both clients: the log is the same as on the core.

One server on one Redis serves all scenarios, each on a bus of its own with its own clock. `make test` plays a scenario through plain
requests and one of the clients, by turns; `make test-long` plays it through the other clients.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

import grpc
import pytest
import pytest_asyncio
from gavel.v1 import fact_pb2
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.fact_pb2 import CrossCheck
from gavel_client.rpc.client import GavelClient
from gavel_client.rpc.sync import SyncGavelClient
from gavel_rules.language.engines.rete import Network
from gavel_server.bus.registry import BusRegistry
from gavel_server.bus.sequencer import Sequencer
from gavel_server.log import Entry, Head
from gavel_server.log.redis.log import RedisLog
from gavel_server.log.redis.logs import RedisLogs
from gavel_server.process.clock import GuardedClock
from gavel_server.rpc.interceptor import Interceptor
from gavel_server.services.registration import register_services

from tests.integration.services.world import Clock
from tests.scenarios.comparison import normalize, normalize_as_text
from tests.scenarios.layers import ANSWER_MS_MAX, CoreLayer, Layer
from tests.scenarios.player import play, play_steps
from tests.scenarios.reader import Scenario, load_scenarios
from tests.scenarios.server_layers import ClientLayer, ServerLayer, StreamLayer
from tests.support.driver import WEEK_MS
from tests.support.redis.in_memory import redis_in_memory

CLIENTS: Final = ("client", "stream", "blocking-client")
pytestmark = pytest.mark.asyncio(loop_scope="module")


class TimedLog(RedisLog):
    """A log with the store's time set by a test, because servers compare their clock with it."""

    clock: Callable[[], int]

    async def time_ms(self) -> int:
        """See EventLog."""
        return self.clock()

    async def append(
        self, expected: Head, entries: Sequence[Entry], recorded_at_ms: int, idempotency_keys: Sequence[str], date_ms: int | None = None
    ) -> None:
        """See EventLog. The clock of Redis is not compared."""
        await super().append(expected, entries, recorded_at_ms, idempotency_keys)


class Server(NamedTuple):
    """The server of all scenarios and its clients. `clocks` are by bus."""

    buses: BusRegistry
    clocks: dict[str, Clock]
    channel: grpc.aio.Channel
    client: GavelClient
    blocking: SyncGavelClient

    @asynccontextmanager
    async def layer(self, kind: str, bus: str) -> AsyncIterator[Layer]:
        """Open a bus and return its layer of this kind; the bus is closed with the block."""
        sequencer = await self.buses.open(bus)

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
async def server() -> AsyncIterator[Server]:
    """A server with a Redis of its own."""
    clocks: dict[str, Clock] = {}
    async with redis_in_memory() as redis:

        async def open_bus(name: str) -> Sequencer:
            clock = clocks[name] = Clock()
            log = await TimedLog.connect(redis.url, name, timeout_ms=ANSWER_MS_MAX)
            assert isinstance(log, TimedLog)
            log.clock = clock
            sequencer = Sequencer(
                log,
                GuardedClock(clock, clock),
                # As the core's driver opens a bus.
                cross_check=CrossCheck(mode=fact_pb2.CROSS_CHECK_MODE_ALWAYS, sample_every=3),
                idempotency_window_ms=WEEK_MS,
            )
            await sequencer.start()
            return sequencer

        logs = RedisLogs(redis.url)
        buses = BusRegistry(open_bus, logs.exists)
        serving = grpc.aio.server()
        register_services(serving, Interceptor(), buses)
        target = f"127.0.0.1:{serving.add_insecure_port('127.0.0.1:0')}"
        await serving.start()
        async with grpc.aio.insecure_channel(target) as channel, GavelClient(target) as client:
            with SyncGavelClient(target) as blocking:
                yield Server(buses, clocks, channel, client, blocking)
        await serving.stop(None)
        await logs.close()


def each_scenario() -> Iterator[object]:
    """Yield every scenario with plain requests and one of the clients, by turns."""
    for number, scenario in enumerate(load_scenarios()):
        yield pytest.param(scenario, ("requests", CLIENTS[number % len(CLIENTS)]), id=scenario.id)


def each_scenario_of_other_clients() -> Iterator[object]:
    """Yield every scenario with the clients that `each_scenario` leaves out."""
    for number, scenario in enumerate(load_scenarios()):
        others = tuple(kind for place, kind in enumerate(CLIENTS) if place != number % len(CLIENTS))
        yield pytest.param(scenario, others, id=f"{scenario.id}-other-clients", marks=pytest.mark.long)


@pytest.mark.parametrize(("scenario", "kinds"), [*each_scenario(), *each_scenario_of_other_clients()])
async def test_scenario(server: Server, scenario: Scenario, kinds: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """On every layer the scenario comes out as its file says, the log replays, and it is the core's."""
    if scenario.engines_disagree:
        monkeypatch.setattr(Network, "match", lambda network, text: [])
    on_core = (await play_steps(scenario, CoreLayer(scenario.id), len(scenario.steps))).log.events
    # Concurrently, each on a bus of its own, because they often wait for Redis.
    logs = await asyncio.gather(*(_log_of(server, scenario, kind) for kind in kinds))
    for kind, log in zip(kinds, logs, strict=True):
        if normalize(on_core) != normalize(log):
            assert normalize_as_text(on_core) == normalize_as_text(log), kind
            pytest.fail(f"{kind}: the logs differ, in nothing that can be read")


async def _log_of(server: Server, scenario: Scenario, kind: str) -> list[Envelope]:
    async with server.layer(kind, f"{scenario.id}-{kind}") as layer:
        return (await play(scenario, layer)).events
