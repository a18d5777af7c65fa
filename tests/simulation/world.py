"""A small world on one bus, run by a seed: several servers on one log, and everybody who talks to them.

The core, the sequencers, admission and the log in memory are the real ones. Around them everything goes wrong that may:
links are slow, go down and are cut, appends have no known outcome, a rival moves the head, clocks jump and disagree, servers
are killed and started again. Whoever sends a command keeps sending the same one until he hears an answer.
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
from gavel_rules.projection import State
from gavel_server.admission import admit
from gavel_server.bus.lookup import Lookup
from gavel_server.bus.planning import Completed, Pending, plan
from gavel_server.bus.sequencer import Sequencer
from gavel_server.clock import GuardedClock
from gavel_server.errors import ServiceError
from gavel_server.log import EventLog, LogError, Record, empty_head
from gavel_server.log.memory import MemoryLog

from tests.faults import FaultRates, FaultyLog
from tests.simulation.link import Link
from tests.unit.core.driver import ALL_PAYLOADS, START_MS, copied, fact_envelope

BUS = "simulated"
WINDOW_MS = 7 * 24 * 60 * 60 * 1000
CROSS_CHECK = CrossCheck(mode=fact_pb2.CROSS_CHECK_MODE_SAMPLE, sample_every=4)
# A server that is alive answers within this much of its own time, whatever happens.
ANSWER_SECONDS_MAX = 120.0

# What a caller may send again, the same as before.
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
    """How much goes wrong in one run."""

    rates: FaultRates
    servers: int
    kills: bool
    outages: bool
    clock_jumps: bool


class Server:
    """One server process: its link to the log, its clock, its sequencer."""

    def __init__(self, world: World, name: str) -> None:
        self.name = name
        self.skew_ms = 0
        self.killed = False
        self._waiting: list[asyncio.Future[Completed | ServiceError]] = []
        randomness = world.randomness(f"link of {name}")
        faulty = FaultyLog(world.log, randomness, world.weather.rates, world.rival if world.weather.rates.head_moved else None)
        world.faulty.append(faulty)
        self.link = Link(faulty, randomness)
        self.sequencer = Sequencer(
            self.link, GuardedClock(lambda: world.now_ms() + self.skew_ms), cross_check=CROSS_CHECK, idempotency_window_ms=WINDOW_MS
        )

    async def ask(self, command: Command, check_id: str = "") -> Completed | ServiceError:
        """Have a command carried out. Raises ServerKilledError; an answer that does not come at all is a failure."""
        future: asyncio.Future[Completed | ServiceError] = asyncio.get_running_loop().create_future()

        def done(result: Completed | ServiceError) -> None:
            assert self.killed or not future.done(), "a command was answered twice"
            if not future.done():
                future.set_result(result)

        if self.killed:
            raise ServerKilledError
        self._waiting.append(future)
        try:
            self.sequencer.submit(command, done, check_id, 100)
            return await asyncio.wait_for(future, ANSWER_SECONDS_MAX)
        except ServiceError as error:
            return error
        finally:
            self._waiting.remove(future)

    def kill(self) -> None:
        """Stop at once, as by kill -9. Nobody hears anything any more."""
        self.killed = True
        self.link.cut()
        for future in self._waiting:
            if not future.done():
                future.set_exception(ServerKilledError())


@dataclass
class World:
    """Everything there is in one run."""

    seed: int
    weather: Weather
    offset_ms: int = 0  # how far the world's clocks have jumped
    calm: bool = False  # near the end: nothing goes wrong any more
    servers: list[Server] = field(default_factory=list)
    faulty: list[FaultyLog] = field(default_factory=list)
    acknowledged: dict[str, Record] = field(default_factory=dict)  # by event_id of what was sent: the answer's record
    failures: list[str] = field(default_factory=list)
    _buried: list[Server] = field(default_factory=list)
    _events: list[Envelope] = field(default_factory=list)
    _started: int = 0

    def __post_init__(self) -> None:
        self.log = MemoryLog(BUS, self.now_ms, WINDOW_MS)
        self._ids = self.randomness("ids")
        self._rival: Sequencer | None = None

    def randomness(self, name: str) -> random.Random:
        """Randomness of somebody's own, the same for the same seed, whatever others draw."""
        return random.Random(f"{self.seed}/{name}")

    def now_ms(self) -> int:
        """The true time, which is also the log store's."""
        return START_MS + self.offset_ms + int(asyncio.get_running_loop().time() * 1000)

    # Servers

    async def open(self) -> None:
        """Begin the bus and start the servers, and a rival that writes on behalf of the faulty logs."""
        opening = OpenBus(self.new_id(), CROSS_CHECK, WINDOW_MS)
        decided = plan(State(BUS), Lookup(self.log), empty_head(BUS), [Pending(opening, lambda _: None, "", 0)], self.now_ms())
        await self.log.append(decided.expected, decided.entries, decided.recorded_at_ms, [])
        self._rival = Sequencer(self.log, GuardedClock(self.now_ms), cross_check=CROSS_CHECK, idempotency_window_ms=WINDOW_MS)
        await self._rival.start()
        for _ in range(self.weather.servers):
            await self.start_server()

    async def start_server(self) -> Server:
        """Start another server. It reads the log first; where it cannot, it is started again, as a supervisor would."""
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

    def bury(self, server: Server) -> None:
        """Nobody turns to this server any more. What hangs in it hangs until the run ends."""
        self.servers.remove(server)
        self._buried.append(server)

    async def rival(self, log: EventLog) -> None:
        """Let another server write something, so that the head is not where it was."""
        assert self._rival is not None
        if not self.calm:
            with contextlib.suppress(ServiceError):  # its clock may lag behind what a server with a fast one has written
                await self._rival.execute(PublishEvent(self.admitted(fact_envelope("rival.note", len(self._events)))))

    async def stop(self) -> None:
        """Stop every server properly."""
        for server in self.servers:
            await server.sequencer.stop()
        assert self._rival is not None
        await self._rival.stop()

    # Sending

    def new_id(self) -> str:
        """An event_id that nobody has chosen yet."""
        return str(uuid.UUID(int=self._ids.getrandbits(128), version=4))

    def admitted(self, envelope: Envelope) -> Envelope:
        """The envelope as admission hands it on. Its event_id comes from the seed, where it has none."""
        if not envelope.event_id:
            envelope.event_id = self.new_id()
        admit(envelope, BUS, ALL_PAYLOADS)
        return envelope

    async def ask(self, server: Server, command: Command, *, reused: bool = False) -> Completed | ServiceError | None:
        """Send a copy of a command to one server, once. None: the server was killed before it answered.

        What is acknowledged under an event_id must be acknowledged alike ever after. `reused`: the id stands for other content.
        """
        check_id = command.envelope.event_id if isinstance(command, SubmitProposal | PublishEvent | ReportExecution | ResolveReview) else ""
        try:
            result = await server.ask(copied(command), check_id)
        except ServerKilledError:
            return None
        except TimeoutError:
            self.failures.append(f"{server.name} never answered {type(command).__name__} {check_id}")
            return None
        mistakes = (error_pb2.ERROR_REASON_INTERNAL, *(() if reused else (error_pb2.ERROR_REASON_EVENT_ID_REUSED,)))
        if isinstance(result, ServiceError) and result.reason in mistakes:
            self.failures.append(f"{server.name} answered {type(command).__name__} {check_id} with {result.message}")
        if isinstance(result, Completed) and result.record is not None:
            self._acknowledge(check_id or result.record.chain_hash.hex(), result.record)
        return result

    async def send(
        self, command: Command, randomness: random.Random, patience: int = 200, *, reused: bool = False
    ) -> Completed | ServiceError | None:
        """Send a command to one server after the other until an answer is final; None: nobody could be reached in time."""
        for _ in range(patience):
            result = await self.ask(randomness.choice(self.servers), command, reused=reused)
            if result is not None and not (isinstance(result, ServiceError) and result.reason in RETRIABLE):
                return result
            await asyncio.sleep(randomness.uniform(0.01, 0.5))
        return None

    def _acknowledge(self, key: str, record: Record) -> None:
        known = self.acknowledged.setdefault(key, record)
        if known != record:
            self.failures.append(f"{key} was acknowledged as event {known.sequence_number} and as event {record.sequence_number}")

    # Reading, as everybody may

    async def events(self) -> list[Envelope]:
        """All committed events."""
        head = await self.log.head()
        while len(self._events) < head.sequence_number:
            for record in await self.log.read(len(self._events) + 1, head.sequence_number):
                if record.sequence_number == len(self._events) + 1:
                    self._events.append(Envelope.FromString(record.envelope))
        return self._events

    async def records(self) -> list[Record]:
        """All committed records."""
        head = await self.log.head()
        found: list[Record] = []
        while len(found) < head.sequence_number:
            found.extend(await self.log.read(len(found) + 1, head.sequence_number))
        return found


Actor = Callable[[World, random.Random], Coroutine[Any, Any, None]]
