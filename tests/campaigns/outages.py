"""Outages of Redis under load: `python -m tests.campaigns.outages --outages 200`, or `make outages`.

Agents propose, a courier carries out approvals, and Redis is killed, stopped, slow, refusing or full, one after the other. The
campaign fails if the server crashes, if an answer is missing from the log or changes when the request is repeated, if the server accepts
writes later than `RECOVERY_SECONDS_MAX` after Redis is back, or if the executor or the fact derivation reactor no longer works at the end.

`make outages` runs the compiled build with Python's checking allocator, so that a write outside of an object ends the server.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from gavel.v1.envelope_pb2 import Envelope
from gavel_client import GavelClient, GavelError, fact_envelope
from gavel_server.process.build import build
from rich.console import Console
from rich.progress import Progress

from tests.campaigns.redis_process import RedisProcess
from tests.e2e.couriers import run_executor, wait_until_idle
from tests.e2e.ledger import Ledger
from tests.e2e.load import Load
from tests.e2e.world import DEPOT, Server, open_bus, publish_status, replay, run_servers, wait_until_writable

BUS: Final = "default"
PARCELS: Final = 200
AGENTS: Final = 4
RECOVERY_SECONDS_MAX: Final = 5.0
# A canary without an answer for this long gets none.
GIVE_UP_SECONDS: Final = 60.0
# What the server's log has if it crashed or met a bug.
BUGS: Final = ("Fatal Python error", "Segmentation fault", "sequencer.failed", "call.failed", "command.failed", "callback.failed")
# The size of a call that is refused while Redis is away.
NOTE_BYTES: Final = 4096


class OutageError(Exception):
    """The campaign found a fault of the server."""


@dataclass
class Findings:
    """The observations of a campaign."""

    outages: Counter[str] = field(default_factory=Counter)
    recoveries_seconds: list[tuple[float, str]] = field(default_factory=list)
    answers: int = 0
    refusals: int = 0

    def slow(self) -> list[str]:
        """Return a line for each recovery that took too long."""
        return [f"{kind}: {seconds:.1f} s" for seconds, kind in self.recoveries_seconds if seconds > RECOVERY_SECONDS_MAX]


async def kill_redis(process: RedisProcess, seconds: float) -> None:
    """Kill Redis, and start it again on its files."""
    process.kill()
    await asyncio.sleep(seconds)
    await process.start()


async def stop_redis(process: RedisProcess, seconds: float) -> None:
    """Stop the process of Redis: connections stay open and nothing answers."""
    process.send_signal(signal.SIGSTOP)
    await asyncio.sleep(seconds)
    process.send_signal(signal.SIGCONT)


async def slow_redis(process: RedisProcess, seconds: float) -> None:
    """Let Redis hold back every command for a while."""
    async with process.connection() as connection:
        await connection.execute_command("CLIENT", "PAUSE", int(seconds * 1000), "ALL")
    await asyncio.sleep(seconds)


async def refuse_writes(process: RedisProcess, seconds: float) -> None:
    """Let Redis refuse writes because it lacks replicas."""
    async with process.connection() as connection:
        await connection.config_set("min-replicas-to-write", 1)
        await asyncio.sleep(seconds)
        await connection.config_set("min-replicas-to-write", 0)


async def refuse_password(process: RedisProcess, seconds: float) -> None:
    """Let Redis ask for a password that the server does not have, on new connections too."""
    async with process.connection() as connection:
        await connection.config_set("requirepass", "unknown")
        await connection.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        await asyncio.sleep(seconds)
        await connection.config_set("requirepass", "")


async def fill_redis(process: RedisProcess, seconds: float) -> None:
    """Leave Redis no memory for writes."""
    async with process.connection() as connection:
        await connection.config_set("maxmemory", "1mb")
        await asyncio.sleep(seconds)
        await connection.config_set("maxmemory", 0)


async def cut_connections(process: RedisProcess, seconds: float) -> None:
    """End every connection, several times."""
    async with process.connection() as connection:
        for _ in range(5):
            await connection.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            await asyncio.sleep(seconds / 5)


OUTAGES: Final = (kill_redis, stop_redis, slow_redis, refuse_writes, refuse_password, fill_redis, cut_connections)


class Campaign:
    """One server on a Redis of its own, callers, and outages."""

    def __init__(self, directory: Path, seed: int) -> None:
        self._randomness = random.Random(seed)
        self._redis = RedisProcess(directory / "redis")
        self._directory = directory
        self.server = Server(directory / "server", redis_url=self._redis.url, installed=True)
        self.findings = Findings()

    async def run(self, outages: int, progress: Progress) -> None:
        """Run the outages and check the log afterwards. Raises OutageError or AssertionError."""
        task = progress.add_task("outages", total=outages)
        await self._redis.start()
        try:
            with run_servers(self.server):
                async with self.server.client() as client:
                    await open_bus(client)
                    facts = await publish_status(client, [f"parcel/{number}" for number in range(PARCELS)])
                with run_executor("succeeds", self.server, self._redis.url, BUS, "courier-1", self._directory / "courier.log") as courier:
                    load = Load(self._randomness, facts)
                    for number in range(outages):
                        await self._outage(OUTAGES[number % len(OUTAGES)], load)
                        if courier.poll() is not None:
                            raise OutageError(f"the executor ended:\n{(self._directory / 'courier.log').read_text()[-2000:]}")
                        progress.advance(task)
                    await self._check(load)
                if self.server.terminate() != 0:
                    raise OutageError(f"the server did not drain and exit with status 0:\n{self.server.log()[-2000:]}")
        finally:
            self._redis.kill()

    async def _outage(self, outage: Any, load: Load) -> None:
        """Let Redis fail under load and come back; measure how long the server then takes to record an event."""
        clients = [self.server.client() for _ in range(AGENTS)]
        try:
            load.start(clients)
            await asyncio.sleep(self._randomness.uniform(0.05, 0.3))
            refused = [asyncio.create_task(self._until_refused(client)) for client in clients]
            await outage(self._redis, self._randomness.uniform(0.1, 2.0))
            back = time.monotonic()
            await self._record_canary()
            self.findings.recoveries_seconds.append((time.monotonic() - back, outage.__name__))
            self.findings.outages[outage.__name__] += 1
            await load.stop()
            self.findings.refusals += sum(await asyncio.gather(*refused)) + len(load.failures)
            load.failures.clear()
        finally:
            for client in clients:
                await client.close()

    async def _until_refused(self, client: GavelClient) -> int:
        """Publish facts, each with one try, until the campaign stops asking; return how many were refused."""
        refusals = 0
        end = time.monotonic() + 1.0
        while time.monotonic() < end:
            try:
                await client.publish_event(_note(), timeout_ms=500)
            except GavelError:
                refusals += 1
            await asyncio.sleep(0)
        return refusals

    async def _record_canary(self) -> None:
        """Return once the server records an event. Raises OutageError if it has ended, or does not within GIVE_UP_SECONDS."""
        end = time.monotonic() + GIVE_UP_SECONDS
        async with self.server.client() as client:
            while True:
                try:
                    await client.publish_event(_note(), timeout_ms=1000)
                except GavelError as error:
                    if self.server.running.poll() is not None:
                        raise OutageError(f"the server ended with {self.server.running.poll()}:\n{self.server.log()[-4000:]}") from None
                    if time.monotonic() > end:
                        raise OutageError(f"no write is taken {GIVE_UP_SECONDS:.0f} s after Redis is back: {error}") from None
                    await asyncio.sleep(0.02)
                else:
                    return

    async def _check(self, load: Load) -> None:
        """Check that each answer is in the log and is repeated, that all work was done, and that the log replays."""
        async with self.server.client() as client:
            await wait_until_writable(client)
            await load.repeat(client, 100)
            await wait_until_idle(client)
        load.check(await Ledger.read(self._redis.url, BUS))
        self.findings.answers = len(load.answers)
        result = replay(self._redis.url, BUS)
        if result.returncode != 0:
            raise OutageError(f"gavel replay exits with {result.returncode}: {result.stdout}{result.stderr}")
        lines = [line for line in self.server.log().splitlines() if any(bug in line for bug in BUGS)]
        if lines:
            raise OutageError("the server's log has bugs:\n" + "\n".join(lines[:20]))


def _note() -> Envelope:
    return fact_envelope("parcel/note", DEPOT, key="parcel.note", value="n" * NOTE_BYTES)


async def run_campaign(directory: Path, outages: int, seed: int) -> Findings:
    """Run a campaign in a directory of its own and return what it saw. Raises OutageError or AssertionError if it found a fault."""
    campaign = Campaign(directory, seed)
    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as progress:
        await campaign.run(outages, progress)
    return campaign.findings


def main() -> int:
    """Run the campaign, print what it saw, and return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--outages", type=int, default=200, help="how many (default 200)")
    parser.add_argument("--seed", type=int, default=1, help="of every choice (default 1)")
    parser.add_argument("--no-timings", action="store_true", help="do not judge how soon service is back")
    options = parser.parse_args()
    print(f"the {build()} build, PYTHONMALLOC={os.environ.get('PYTHONMALLOC', 'default')}", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="gavel-outages-") as directory:
        try:
            findings = asyncio.run(run_campaign(Path(directory), options.outages, options.seed))
        except (OutageError, AssertionError) as error:
            print(f"FAILED: {error}")
            return 1
    recoveries = sorted(seconds for seconds, _ in findings.recoveries_seconds)
    print(f"{sum(findings.outages.values())} outages: {dict(findings.outages)}")
    print(f"{findings.answers} proposals answered and kept; {findings.refusals} calls refused meanwhile")
    print(f"service back after {recoveries[len(recoveries) // 2]:.2f} s (median), {recoveries[-1]:.2f} s (slowest)")
    for line in findings.slow():
        print(f"too slow: {line}")
    return 1 if findings.slow() and not options.no_timings else 0


if __name__ == "__main__":
    sys.exit(main())
