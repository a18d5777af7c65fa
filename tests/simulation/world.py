"""A simulated world on one bus, driven by a seed: several servers on one log, and their callers.

Core, sequencers, admission and the log in memory are the real ones. Around them everything fails: links are slow, go down and are
cut, outcomes of appends are unknown, a rival moves the head, clocks jump and disagree, servers are killed and restarted. A caller
sends the same command again until it gets an answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import uuid
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from gavel.v1 import error_pb2, fact_pb2
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.fact_pb2 import CrossCheck
from gavel_rules.commands import Command, OpenBus, PublishEvent, ReportExecution, ResolveReview, SubmitProposal
from gavel_rules.identity.principal import ANONYMOUS, Principal
from gavel_rules.state.state import State
from gavel_server.bus.batch.decision import decide_batch
from gavel_server.bus.recent_events import RecentEvents
from gavel_server.bus.request import CommittedAnswer, Request
from gavel_server.bus.sequencer import Sequencer
from gavel_server.errors import ServiceError
from gavel_server.intake.admission import admit
from gavel_server.log import EventLog, LogError, Record, empty_head
from gavel_server.log.memory import MemoryLog
from gavel_server.process.clock import GuardedClock

from tests.simulation.link import Link
from tests.support.driver import ALL_PAYLOADS, START_MS, copy_command, fact_envelope
from tests.support.simulation.faults import FaultRates, FaultyLog

BUS = "simulated"
WINDOW_MS = 7 * 24 * 60 * 60 * 1000
CROSS_CHECK = CrossCheck(mode=fact_pb2.CROSS_CHECK_MODE_SAMPLE, sample_every=4)
# A live server must answer within this time.
ANSWER_SECONDS_MAX = 120.0

# Errors after which a caller sends the same command again.
RETRIABLE = frozenset(
    {
        error_pb2.ERROR_REASON_LOG_UNAVAILABLE,
        error_pb2.ERROR_REASON_CLOCK_SKEW,
        error_pb2.ERROR_REASON_SHUTTING_DOWN,
        error_pb2.ERROR_REASON_QUEUE_FULL,
    }
)


class ServerKilledError(Exception):
    """The server died before it answered."""


@dataclass(frozen=True)
class Weather:
    """The faults of one run."""

    rates: FaultRates
    servers: int
    kills: bool
    outages: bool
    clock_jumps: bool
    repeats: bool  # callers repeat requests whose first try is on its way into the log
    forgetting: bool  # servers forget event_ids, which then only the log's index knows


class Server:
    """A server process: its link to the log, its clock and its sequencer."""

    def __init__(self, world: World, name: str) -> None:
        self.name = name
        self.skew_ms = 0
        self.killed = False
        self._waiting: list[asyncio.Future[CommittedAnswer | ServiceError]] = []
        randomness = world.randomness(f"link of {name}")
        faulty = FaultyLog(world.log, randomness, world.weather.rates, world.rival if world.weather.rates.head_moved else None)
        world.faulty.append(faulty)
        self.link = Link(faulty, randomness)
        self.sequencer = Sequencer(
            self.link,
            GuardedClock(lambda: world.now_ms() + self.skew_ms, world.now_ms),
            cross_check=CROSS_CHECK,
            idempotency_window_ms=WINDOW_MS,
            monotonic=lambda: world.now_ms() / 1000,
        )

    async def ask(self, command: Command, idempotency_key: str = "", principal: Principal = ANONYMOUS) -> CommittedAnswer | ServiceError:
        """Execute a command and return the answer. Raises ServerKilledError, or TimeoutError if there is no answer."""
        future: asyncio.Future[CommittedAnswer | ServiceError] = asyncio.get_running_loop().create_future()

        def done(result: CommittedAnswer | ServiceError) -> None:
            assert self.killed or not future.done(), "a command was answered twice"
            if not future.done():
                future.set_result(result)

        if self.killed:
            raise ServerKilledError
        self._waiting.append(future)
        try:
            self.sequencer.submit(command, done, idempotency_key, 100, principal=principal)
            return await asyncio.wait_for(future, ANSWER_SECONDS_MAX)
        except ServiceError as error:
            return error
        finally:
            self._waiting.remove(future)

    def kill(self) -> None:
        """Stop at once, as with kill -9: no caller gets an answer."""
        self.killed = True
        self.link.cut()
        for future in self._waiting:
            if not future.done():
                future.set_exception(ServerKilledError())


@dataclass
class World:
    """The state of one run."""

    seed: int
    weather: Weather
    offset_ms: int = 0  # the sum of the clock jumps
    calm: bool = False  # near the end: no more faults
    servers: list[Server] = field(default_factory=list)
    faulty: list[FaultyLog] = field(default_factory=list)
    acknowledged: dict[str, Record] = field(default_factory=dict)  # the record of the answer, by idempotency key
    failures: list[str] = field(default_factory=list)
    repeats: int = 0
    _removed: list[Server] = field(default_factory=list)
    _events: list[Envelope] = field(default_factory=list)
    _started: int = 0

    def __post_init__(self) -> None:
        self.log = MemoryLog(BUS, self.now_ms, WINDOW_MS)
        self._ids = self.randomness("ids")
        self._rival: Sequencer | None = None

    def randomness(self, name: str) -> random.Random:
        """Return a random generator for one actor, independent of what the others draw."""
        return random.Random(f"{self.seed}/{name}")

    def now_ms(self) -> int:
        """Return the true time, which is also the log store's."""
        return START_MS + self.offset_ms + int(asyncio.get_running_loop().time() * 1000)

    # Servers

    async def open(self) -> None:
        """Open the bus, and start the servers and the rival that moves the head."""
        open_bus = OpenBus(self.new_id(), CROSS_CHECK, WINDOW_MS)
        decision = decide_batch(
            State(BUS), RecentEvents(self.log), empty_head(BUS), [Request(open_bus, lambda _: None, "", 0)], self.now_ms()
        )
        await self.log.append(decision.expected_head, decision.entries, decision.recorded_at_ms, [])
        self._rival = Sequencer(
            self.log,
            GuardedClock(self.now_ms, self.now_ms),
            cross_check=CROSS_CHECK,
            idempotency_window_ms=WINDOW_MS,
            monotonic=lambda: self.now_ms() / 1000,
        )
        await self._rival.start()
        for _ in range(self.weather.servers):
            await self.start_server()

    async def start_server(self) -> Server:
        """Start another server. If it cannot read the log, it is started again, as by a supervisor."""
        self._started += 1
        server = Server(self, f"server {self._started}")
        while True:
            try:
                await server.sequencer.start()
            except LogError:
                await asyncio.sleep(0.1)
            else:
                break
        self.servers.append(server)
        return server

    def remove_server(self, server: Server) -> None:
        """Remove a server, so that no caller chooses it. Its pending calls hang until the run ends."""
        self.servers.remove(server)
        self._removed.append(server)

    async def rival(self, log: EventLog) -> None:
        """Let the rival append an event, which moves the head."""
        assert self._rival is not None
        if not self.calm:
            with contextlib.suppress(ServiceError):  # its clock may lag behind an event of a server whose clock is fast
                await self._rival.execute(PublishEvent(self.admitted(fact_envelope("rival.note", len(self._events)))))

    async def stop(self) -> None:
        """Stop every server in order."""
        for server in self.servers:
            await server.sequencer.stop()
        assert self._rival is not None
        await self._rival.stop()

    # Sending

    def new_id(self) -> str:
        """Return a new event_id."""
        return str(uuid.UUID(int=self._ids.getrandbits(128), version=4))

    def admitted(self, envelope: Envelope) -> Envelope:
        """Admit an envelope. If it has no event_id, it gets one from the seed."""
        if not envelope.event_id:
            envelope.event_id = self.new_id()
        admit(envelope, BUS, ALL_PAYLOADS)
        return envelope

    async def ask(
        self, server: Server, command: Command, *, reused: bool = False, principal: Principal = ANONYMOUS
    ) -> CommittedAnswer | ServiceError | None:
        """Send a copy of a command of `principal` to one server, once. Return None if the server was killed before it answered.

        All acknowledgements of an event_id must be equal. With `reused`, its event_id belongs to another event.
        """
        idempotency_key = (
            command.envelope.event_id if isinstance(command, SubmitProposal | PublishEvent | ReportExecution | ResolveReview) else ""
        )
        try:
            result = await server.ask(copy_command(command), idempotency_key, principal)
        except ServerKilledError:
            return None
        except TimeoutError:
            self.failures.append(f"{server.name} never answered {type(command).__name__} {idempotency_key}")
            return None
        mistakes = (error_pb2.ERROR_REASON_INTERNAL, *(() if reused else (error_pb2.ERROR_REASON_EVENT_ID_REUSED,)))
        if isinstance(result, ServiceError) and result.reason in mistakes:
            self.failures.append(f"{server.name} answered {type(command).__name__} {idempotency_key} with {result.message}")
        if isinstance(result, CommittedAnswer) and result.record is not None:
            self._acknowledge(idempotency_key or result.record.chain_hash.hex(), result.record)
        return result

    async def send(
        self,
        command: Command,
        randomness: random.Random,
        patience: int = 200,
        *,
        reused: bool = False,
        principal: Principal = ANONYMOUS,
    ) -> CommittedAnswer | ServiceError | None:
        """Send a command to random servers until an answer is final; return None if there is none after `patience` attempts."""
        for _ in range(patience):
            result = await self.ask(randomness.choice(self.servers), command, reused=reused, principal=principal)
            if result is not None and not (isinstance(result, ServiceError) and result.reason in RETRIABLE):
                return result
            await asyncio.sleep(randomness.uniform(0.01, 0.5))
        return None

    def _acknowledge(self, key: str, record: Record) -> None:
        known = self.acknowledged.setdefault(key, record)
        if known != record:
            self.failures.append(f"{key} was acknowledged as event {known.sequence_number} and as event {record.sequence_number}")

    # Reading

    async def events(self) -> list[Envelope]:
        """Return all committed events."""
        head = await self.log.head()
        while len(self._events) < head.sequence_number:
            for record in await self.log.read(len(self._events) + 1, head.sequence_number):
                if record.sequence_number == len(self._events) + 1:
                    self._events.append(Envelope.FromString(record.envelope))
        return self._events

    async def records(self) -> list[Record]:
        """Return all committed records."""
        head = await self.log.head()
        records: list[Record] = []
        while len(records) < head.sequence_number:
            records.extend(await self.log.read(len(records) + 1, head.sequence_number))
        return records


Actor = Callable[[World, random.Random], Coroutine[Any, Any, None]]
