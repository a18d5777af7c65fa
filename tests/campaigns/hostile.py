"""Hostile and greedy callers beside a well-behaved one: `python -m tests.campaigns.hostile --minutes 10`, or `make hostile`.

A server with an embedded Redis is attacked (`attacks`) while a canary calls it (`canary`). The campaign fails if a call of the canary
fails or its p99 exceeds 100 ms, if server and front together use more than 600 MB, if memory does not return to within 50 MB of what it
was, if the log lacks an accepted event, if a stranger opened a bus, if the log does not replay, or if the server writes more than a tenth
of the bytes that the attackers send into its own log.

All run on one machine. The attackers get the processor time that the others leave, and the canary calls from an address of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import redis.asyncio
from gavel.v1.envelope_pb2 import Envelope
from gavel_client import GavelClient
from gavel_rules.limits import BATCH_ITEMS_MAX
from gavel_rules.redis_keys import log_key
from gavel_server.bus.recent_events import CITABLE_MAX
from gavel_server.bus.trace_owners import TRACES_MAX
from gavel_server.process.build import build
from rich.console import Console

from tests.campaigns.attacks import ATTACKS
from tests.campaigns.target import costly_rule_set
from tests.e2e.world import Server, fronts_of, open_bus, proposal, publish_status, replay, run_servers

BUS: Final = "default"
MB: Final = 1_000_000
PAGE_BYTES: Final = 4096
# Of the log, read at once.
ROWS: Final = 100
P99_MS_MAX: Final = 100.0
MEMORY_BYTES_MAX: Final = 600 * MB
GROWTH_BYTES_MAX: Final = 50 * MB
# Of the server's own log, in bytes that the attackers send.
LOG_SHARE_MAX: Final = 0.1
ATTACKERS: Final = 2
# How long memory may take to return.
CALM_SECONDS: Final = 60.0


class Memory(NamedTuple):
    """Resident memory in bytes."""

    server: int
    front: int

    @property
    def total(self) -> int:
        """Of both."""
        return self.server + self.front

    def __str__(self) -> str:
        return f"{self.total / MB:.0f} MB ({self.server / MB:.0f} server, {self.front / MB:.0f} front)"


NO_MEMORY: Final = Memory(0, 0)


@dataclass
class Report:
    """The observations of a campaign."""

    canary: dict[str, Any] = field(default_factory=dict)
    attacks: dict[str, int] = field(default_factory=dict)
    memory_before: Memory = NO_MEMORY
    memory_peak: Memory = NO_MEMORY
    memory_after: Memory = NO_MEMORY
    unheard: int = 0
    events: int = 0
    server_log_bytes: int = 0
    sent_bytes: int = 0  # by the attackers, at least
    failures: list[str] = field(default_factory=list)

    def judge(self, *, timings: bool) -> None:
        """Add a line to `failures` for each goal that was missed."""
        self.expect(not self.canary["errors"], f"{len(self.canary['errors'])} calls of the canary failed: {self.canary['errors'][:3]}")
        if timings:
            slow = {name: value for name, value in self.canary["p99_ms"].items() if value > P99_MS_MAX}
            self.expect(not slow, f"the canary's p99 exceeds {P99_MS_MAX:.0f} ms: {slow}")
        self.expect(self.memory_peak.total <= MEMORY_BYTES_MAX, f"server and front used {self.memory_peak}")
        growth = self.memory_after.total - self.memory_before.total
        self.expect(growth <= GROWTH_BYTES_MAX, f"memory is {growth / MB:.0f} MB above what it was")
        log_bytes_max = LOG_SHARE_MAX * self.sent_bytes
        self.expect(self.server_log_bytes <= log_bytes_max, f"the server wrote {self.server_log_bytes} bytes into its log")

    def expect(self, holds: bool, problem: str) -> None:
        """Note a problem, unless the condition holds."""
        if not holds:
            self.failures.append(problem)


class Campaign:
    """One server, its attackers and the canary."""

    def __init__(self, directory: Path, front: str, attacks: Sequence[str] = ()) -> None:
        self.attacks = attacks  # by name; none: all
        self.server = Server(directory, options=["--front", front], installed=True)
        self.report = Report()
        self.accepted: set[str] = set()

    async def run(self, seconds: float, seed: int, *, timings: bool) -> Report:
        """Attack for `seconds`; return the report."""
        with run_servers(self.server):
            async with self.server.client() as client:
                await open_bus(client, costly_rule_set())
                await publish_status(client, ["parcel/1"])
                await self._fill_tables(client)
            await self._canary(5)
            self.report.memory_before = self.memory()
            log_bytes = len(self.server.log())
            watching = asyncio.create_task(self._watch())
            attackers = [
                self._program("attacks", self.server.address, seconds, seed + number, *self.attacks) for number in range(ATTACKERS)
            ]
            self.report.canary, *attacked = await asyncio.gather(self._canary(seconds), *attackers)
            watching.cancel()
            self.report.server_log_bytes = len(self.server.log()) - log_bytes
            self.report.sent_bytes = sum(result["sent_bytes"] for result in attacked)
            await self._wait_for_calm()
            for result in attacked:
                for name, count in result["runs"].items():
                    self.report.attacks[name] = self.report.attacks.get(name, 0) + count
            self.accepted.update(event_id for result in (*attacked, self.report.canary) for event_id in result["accepted"])
            await self._check_log(self.accepted)
            self.report.judge(timings=timings)
        return self.report

    def memory(self) -> Memory:
        """Return the resident memory of server and front."""
        server = self.server.running.pid
        return Memory(_resident_bytes(server), sum(map(_resident_bytes, fronts_of(server))))

    async def _fill_tables(self, client: GavelClient) -> None:
        """Publish and propose until the tables of recent events and traces are full, as they are in any server in use."""
        subjects = [f"parcel/{number}" for number in range(BATCH_ITEMS_MAX)]
        for _ in range(CITABLE_MAX // BATCH_ITEMS_MAX + 1):
            facts = await publish_status(client, subjects)
            self.accepted.update(fact.event_id for fact in facts.values())
        for _ in range(TRACES_MAX // BATCH_ITEMS_MAX + 1):
            envelopes = [proposal(facts[subjects[0]]) for _ in range(BATCH_ITEMS_MAX)]  # each in a trace of its own; one is approved
            await client.batch_submit_proposals(envelopes)
            self.accepted.update(envelope.event_id for envelope in envelopes)

    async def _canary(self, seconds: float) -> dict[str, Any]:
        return await self._program("canary", self.server.address, seconds)

    async def _program(self, name: str, *arguments: object) -> dict[str, Any]:
        """Run a program of this campaign and return what it prints. Raises AssertionError if it fails."""
        command = [sys.executable, "-m", f"tests.campaigns.{name}", *map(str, arguments)]
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, limit=64 * 1024 * 1024)
        output, _ = await process.communicate()
        assert process.returncode == 0, f"{name} exits with {process.returncode}"
        result: dict[str, Any] = json.loads(output)
        return result

    async def _watch(self) -> None:
        while True:
            assert self.server.running.poll() is None, f"the server ended: {self.server.log()[-2000:]}"
            self.report.memory_peak = max(self.report.memory_peak, self.memory(), key=lambda memory: memory.total)
            await asyncio.sleep(0.2)

    async def _wait_for_calm(self) -> None:
        """Wait until memory is back, or for CALM_SECONDS."""
        end = time.monotonic() + CALM_SECONDS
        while True:
            self.report.memory_after = self.memory()
            if self.report.memory_after.total - self.report.memory_before.total <= GROWTH_BYTES_MAX or time.monotonic() > end:
                return
            await asyncio.sleep(1)

    async def _check_log(self, accepted: set[str]) -> None:
        """Check that the log holds the accepted events and little else, that it replays, and that no bus was opened."""
        async with redis.asyncio.Redis.from_url(self.server.redis_url, protocol=2) as connection:
            recorded = await self._recorded(connection)
            self.report.unheard = len(recorded - accepted)
            self.report.expect(accepted <= recorded, f"{len(accepted - recorded)} accepted events are not in the log")
            heads = [key async for key in connection.scan_iter("gavel:*:head")]
        self.report.expect(heads == [f"gavel:{{{BUS}}}:head".encode()], f"strangers opened buses: {heads}")
        result = replay(self.server.redis_url, BUS)
        self.report.expect(result.returncode == 0, f"gavel replay exits with {result.returncode}: {result.stdout}{result.stderr}")

    async def _recorded(self, connection: Any) -> set[str]:
        """Return the event_ids of the proposals and facts in the log, and count its events. It may have a million."""
        recorded: set[str] = set()
        while rows := await connection.xrange(log_key(BUS), min=f"{self.report.events + 1}-0", count=ROWS):
            self.report.events += len(rows)
            for envelope in (Envelope.FromString(fields[b"e"]) for _, fields in rows):
                if envelope.WhichOneof("payload") in ("proposal", "fact") and envelope.trace_id != "system":
                    recorded.add(envelope.event_id)
        return recorded


def _resident_bytes(process_id: int) -> int:
    return int(Path(f"/proc/{process_id}/statm").read_text().split()[1]) * PAGE_BYTES


def main() -> int:
    """Run the campaign, print what it saw, and return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=10.0, help="how long (default 10)")
    parser.add_argument("--seed", type=int, default=1, help="of every choice (default 1)")
    parser.add_argument("--front", choices=("native", "none"), default="native", help="what speaks gRPC (default native)")
    parser.add_argument("--no-timings", action="store_true", help="do not judge the canary's p99")
    parser.add_argument("--attacks", nargs="*", default=(), choices=[attack.__name__ for attack in ATTACKS], help="which (default all)")
    options = parser.parse_args()
    print(f"the {build()} build, front {options.front}", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="gavel-hostile-") as directory:
        campaign = Campaign(Path(directory), options.front, options.attacks)
        report = asyncio.run(campaign.run(options.minutes * 60, options.seed, timings=not options.no_timings))
    console = Console(highlight=False)
    console.print(f"attacks: {report.attacks}")
    console.print(f"canary: {report.canary['calls']} calls, {len(report.canary['errors'])} errors, p99 in ms: {report.canary['p99_ms']}")
    console.print(f"memory: {report.memory_before} before, {report.memory_peak} at most, {report.memory_after} afterwards")
    console.print(
        f"log: {report.events} events, {report.unheard} without a caller that heard of them; server log {report.server_log_bytes} bytes, "
        f"attackers sent {report.sent_bytes} bytes or more"
    )
    for failure in report.failures:
        console.print(f"FAILED: {failure}")
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main())
