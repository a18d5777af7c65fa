"""Runs faults one after the other under load, and checks after some of them that clients saw one log without failures.

A bus serves for some cycles. Then its clients stop; its log is read, replayed and compared with the history of its clients, and the next
bus begins. So histories stay short enough for the checker.
"""

from __future__ import annotations

import asyncio
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from gavel_client import GavelError

from tests.campaigns.faults.callers import RULES, SUBJECTS, WEIGHT_MAX, Board, Caller, follow
from tests.campaigns.faults.history import History, now
from tests.campaigns.faults.kinds import Fault, faults_of
from tests.campaigns.faults.worlds import World
from tests.e2e.ledger import Ledger
from tests.e2e.world import Server, open_bus, publish_status, replay, wait_for_same_head

CALLERS_PER_BUS: Final = 3
FAULT_SECONDS: Final = (0.3, 2.5)
LOAD_SECONDS: Final = (0.2, 0.8)
# Only a server that does not recover takes longer.
RECOVERY_SECONDS_MAX: Final = 240.0
# Texts in a server's log that show a bug.
BUGS: Final = ("Fatal Python error", "Segmentation fault", "sequencer.failed", "call.failed", "command.failed", "callback.failed")
# The last line of a traceback, which names the error.
_TRACEBACK: Final = re.compile(r"^Traceback .*\n(?:[ ].*\n)+(\S.*)$", re.MULTILINE)
# Errors that only say that memory was short.
_OUT_OF_MEMORY: Final = ("MemoryError", "RuntimeError: can't start new thread")


class CampaignError(AssertionError):
    """The campaign found a fault of the product."""


@dataclass
class Report:
    """The counts of a campaign."""

    cycles: Counter[str] = field(default_factory=Counter)
    recoveries_seconds: list[tuple[float, str]] = field(default_factory=list)
    losses: Counter[str] = field(default_factory=Counter)
    buses: int = 0
    events: int = 0
    operations: int = 0
    unanswered: int = 0
    calls: Counter[str] = field(default_factory=Counter)


class Campaign:
    """A world, and the faults that it suffers."""

    def __init__(self, world: World, directory: Path, checker: Path, faults: Sequence[Fault], seed: int) -> None:
        self._world = world
        self._directory = directory
        self._checker = checker
        self._faults = faults_of(world, faults)
        self._seed = seed
        self._randomness = random.Random(seed)
        self.report = Report()

    async def run(self, cycles: int, cycles_per_bus: int) -> None:
        """Run the cycles. Raises CampaignError, HistoryError or AssertionError at the first fault of the product."""
        remaining = [self._faults[number % len(self._faults)] for number in range(cycles)]
        self._randomness.shuffle(remaining)
        while remaining:
            await self._serve(f"faults-{self.report.buses}", remaining[:cycles_per_bus])
            remaining = remaining[cycles_per_bus:]

    async def _serve(self, name: str, faults: Sequence[Fault]) -> None:
        """Let new buses serve through some faults, and check them."""
        history = History(self._directory / f"{name}.jsonl")
        boards = [await self._open(bus) for bus in self._world.buses(name)]
        stopping = asyncio.Event()
        number = 0
        tasks = []
        for board in boards:
            for _ in range(CALLERS_PER_BUS):
                caller = Caller(number, board, self._world.servers, history, f"{self._seed}/{name}")
                tasks.append(asyncio.create_task(caller.run(stopping)))
                number += 1
            tasks.append(asyncio.create_task(follow(number, board, self._world.servers, history, stopping)))
            number += 1
        try:
            for fault in faults:
                await asyncio.sleep(self._randomness.uniform(*LOAD_SECONDS))
                print(f"{sum(self.report.cycles.values())} {fault.__name__}", file=sys.stderr, flush=True)
                await fault(self._world, self._randomness, self._randomness.uniform(*FAULT_SECONDS))
                self.report.cycles[fault.__name__] += 1
                await self._recover(fault.__name__, boards)
                failed = [task for task in tasks if task.done()]
                if failed:
                    await asyncio.gather(*failed)
        finally:
            stopping.set()
            done, late = await asyncio.wait(tasks, timeout=10)
            for task in late:
                task.cancel()
        for task in done:
            task.result()  # a client that failed after the last fault is a finding too
        await self._check(history, boards)

    async def _open(self, bus: str) -> Board:
        async with self._world.servers[0].client(bus) as client:
            await open_bus(client, RULES)
            facts = await publish_status(client, SUBJECTS)
            return Board(bus, facts, last=(await client.get_status()).head_sequence_number)

    async def _recover(self, fault: str, boards: Sequence[Board]) -> None:
        """Return once all servers take writes on all buses. Raises CampaignError if one does not in time."""
        begin = time.monotonic()
        for server in self._world.servers:
            for board in boards:
                await self._until_writable(fault, server, board.bus, begin + RECOVERY_SECONDS_MAX)
        self.report.recoveries_seconds.append((time.monotonic() - begin, fault))

    async def _until_writable(self, fault: str, server: Server, bus: str, deadline: float) -> None:
        async with server.client(bus, tries_max=1) as client:
            while True:
                if server.running.poll() is not None:
                    raise CampaignError(f"after {fault}: {server.data} ended with {server.running.poll()}:\n{server.log()[-4000:]}")
                try:
                    status = await client.get_status(timeout_ms=2_000)
                    if status.writable:
                        return
                    problem = status.unwritable_reason
                except GavelError as error:
                    problem = str(error)
                if time.monotonic() > deadline:
                    raise CampaignError(f"after {fault}: {server.data} takes no write after {RECOVERY_SECONDS_MAX:.0f} s: {problem}")
                await asyncio.sleep(0.05)

    async def _check(self, history: History, boards: Sequence[Board]) -> None:
        """Check the clients' history against the log, the log against its replay, and the servers against each other."""
        for number, board in enumerate(boards):
            clients = [server.client(board.bus) for server in self._world.servers]
            try:
                statuses = await wait_for_same_head(clients)
            finally:
                for client in clients:
                    await client.close()
            if len({status.projection_digest for status in statuses}) != 1:
                raise CampaignError(f"{board.bus}: the servers have one head and different states")
            url = await self._world.url_of(board.bus)
            called = now()
            ledger = await Ledger.read(url, board.bus)
            history.add_read(-1 - number, board.bus, called, 0, ledger.events, complete=True)
            result = await asyncio.to_thread(replay, url, board.bus)
            if result.returncode != 0:
                raise CampaignError(f"gavel replay of {board.bus} exits with {result.returncode}: {result.stdout}{result.stderr}")
            if board.findings:
                raise CampaignError(f"{board.bus}: " + "\n".join(board.findings[:20]))
            self.report.events += len(ledger.events)
            self.report.calls += board.calls
        await asyncio.to_thread(history.check, self._checker, WEIGHT_MAX)
        history.close()
        history.path.unlink()  # a history that is refused stays
        self._check_logs()
        self.report.buses += len(boards)
        self.report.operations += history.operations
        self.report.unanswered += history.unanswered
        checked = f"{sum(self.report.cycles.values())} faults, {self.report.events} events, {self.report.operations} operations"
        print(f"checked so far: {checked}", file=sys.stderr, flush=True)

    def _check_logs(self) -> None:
        for server in self._world.servers:
            log = server.log()
            lines = [line for line in log.splitlines() if any(bug in line for bug in BUGS)]
            lines += [error for error in _TRACEBACK.findall(log) if not error.startswith(_OUT_OF_MEMORY)]
            if lines:
                raise CampaignError(f"the log of {server.data} has bugs:\n" + "\n".join(lines[:20]))
