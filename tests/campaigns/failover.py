"""Masters of a Redis Cluster die under load on many buses: `python -m tests.campaigns.failover`, or `make failover`.

Two servers with `--ack aof:1` serve the buses, and a caller on each proposes without a pause. One master after the other is killed, its
replica takes over, and the dead one comes back as a replica, which `aof:1` needs. The campaign ends with 1 if a call fails on a bus of
another master, if a bus does not come back, if an answered decision is missing from its log, changed or twice, or if a log does not
replay. LOG_REGRESSED is a failure too: `aof:1` promises more.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Final

from gavel.v1.envelope_pb2 import Envelope
from gavel_client import GavelError, fact_envelope
from gavel_server.process.build import build

from tests.campaigns.faults.worlds import ClusterWorld, cluster_world
from tests.e2e.ledger import Ledger
from tests.e2e.world import DEPOT, PATIENT_MS, POLICY, Server, proposal, prove, rule_set

BATCH: Final = 5
# A part of the error of an event that the replica's disk did not confirm in time, which a busy machine causes.
SLOW_DISK: Final = "replicas wrote them to their disks"
RETRY_SECONDS: Final = 0.02
# Only a bus that does not come back takes longer.
BACK_SECONDS_MAX: Final = 120.0


class FailoverError(AssertionError):
    """The campaign found a fault of the product."""


class Caller:
    """Proposes on one bus, batch after batch. A batch that is not answered is sent again, with the same ids, until it is."""

    def __init__(self, server: Server, bus: str) -> None:
        self.bus = bus
        self.answers: dict[str, Envelope] = {}
        """The decision that answered a proposal, by the proposal's event_id."""
        self.answered_at: list[float] = []
        self.sent_at = 0.0
        """When the last answered batch was sent for the first time."""
        self.failures: list[tuple[float, GavelError]] = []
        self._client = server.client(bus, tries_max=1)
        self._patient = server.client(bus, tries_max=None)

    async def run(self, stop: asyncio.Event) -> None:
        """Open the bus and propose until `stop`. Raises FailoverError if the bus has lost events."""
        await self._patient.deploy_rule_set(rule_set(), timeout_ms=PATIENT_MS)
        await self._patient.activate_rule_set(POLICY, 1, timeout_ms=PATIENT_MS)
        facts = []
        for number in range(BATCH):
            fact = fact_envelope(f"parcel/{number}", DEPOT, key="parcel.status", value="ready")
            facts.append((await self._patient.publish_event(fact, timeout_ms=PATIENT_MS)).envelope)
        while not stop.is_set():
            envelopes = [proposal(fact) for fact in facts]
            sent_at = time.monotonic()
            while not await self._submit(envelopes):  # noqa: ASYNC110 - the server sets no event
                await asyncio.sleep(RETRY_SECONDS)
            self.sent_at = sent_at
            self.answered_at.append(time.monotonic())

    async def _submit(self, envelopes: Sequence[Envelope]) -> bool:
        """Submit a batch; return whether all of it is answered."""
        try:
            response = await self._client.batch_submit_proposals(envelopes)
            for result in response.results:
                if result.HasField("error"):
                    raise GavelError.from_status(result.error)
        except GavelError as error:
            if error.reason == "LOG_REGRESSED":
                raise FailoverError(f"{self.bus}: {error}") from error
            self.failures.append((time.monotonic(), error))
            return False
        self.answers.update({result.decision.decision.proposal_id: result.decision for result in response.results})
        return True

    def longest_gap(self, since: float, until: float) -> float:
        """Return the longest time without an answer, in seconds, of which a part is in the given period."""
        times = [at for at in self.answered_at if at > since - BACK_SECONDS_MAX]
        return max((later - earlier for earlier, later in pairwise(times) if later > since and earlier < until), default=0.0)

    async def check(self, url: str) -> int:
        """Assert that every answer is in the log, once and bit for bit, and that the log replays; return the number of its events."""
        ledger = await Ledger.read(url, self.bus)
        missing = [event_id for event_id, decision in self.answers.items() if ledger.first_decisions.get(event_id) != decision]
        if missing:
            raise FailoverError(f"{self.bus}: {len(missing)} answered decisions are missing or changed, e.g. that on proposal {missing[0]}")
        await prove(self._patient)
        return len(ledger.events)

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()
        await self._patient.close()


async def run_campaign(directory: Path, buses: int, kills: int, seconds: float) -> int:
    """Kill masters under load, print what the callers saw, and return how many decisions were answered. Raises AssertionError."""
    async with cluster_world(directory) as world:
        try:
            await asyncio.gather(*(asyncio.to_thread(server.start) for server in world.servers))
            callers = [Caller(world.servers[number % len(world.servers)], f"bus-{number}") for number in range(buses)]
            stop = asyncio.Event()
            tasks = [asyncio.create_task(caller.run(stop)) for caller in callers]
            await wait_for_answers(callers, tasks, time.monotonic())
            for number in range(kills):
                await kill_master(world, callers, tasks, number + 1, seconds)
            stop.set()
            await asyncio.gather(*tasks)
            events = sum([await caller.check(await world.url_of(caller.bus)) for caller in callers])
            answers = sum(len(caller.answers) for caller in callers)
            print(f"{answers} answered decisions, all of them in the logs of {buses} buses, once; {events} events, replayed", flush=True)
            for caller in callers:
                await caller.close()
            return answers
        finally:
            for server in world.servers:
                server.kill()


async def kill_master(
    world: ClusterWorld, callers: Sequence[Caller], tasks: Sequence[asyncio.Task[None]], number: int, seconds: float
) -> None:
    """Kill the next master, wait until its buses are back and it follows its replica, and print what callers saw."""
    began = time.monotonic()
    await asyncio.sleep(seconds)
    killed = time.monotonic()
    await world.kill_log()
    own = [caller for caller in callers if world.shard_of(caller.bus) == world.shard]
    others = [caller for caller in callers if caller not in own]
    await world.restore_log()  # until a write has a second copy again, no bus of this shard is answered
    await wait_for_answers(own, tasks, killed)
    back = time.monotonic()
    await asyncio.sleep(seconds)
    failures = [
        f"{caller.bus}: {error}"
        for caller in others
        for failed, error in caller.failures
        if failed > killed and SLOW_DISK not in str(error)
    ]
    gaps = [caller.longest_gap(killed, back) for caller in own]
    before, during = (max(caller.longest_gap(*period) for caller in others) for period in ((began, killed), (killed, back)))
    print(
        f"kill {number}: its {len(own)} buses are back after {median(gaps):.1f} s (median), at most {max(gaps):.1f} s; {len(others)} other "
        f"buses: {len(failures)} failed calls, at most {during:.2f} s between two answers ({before:.2f} s before the kill)",
        flush=True,
    )
    if failures:
        raise FailoverError(f"calls on buses of other masters failed: {failures[:5]}")


async def wait_for_answers(callers: Sequence[Caller], tasks: Sequence[asyncio.Task[None]], since: float) -> None:
    """Return once each caller has an answer to a batch that it has sent since a moment. Raises FailoverError."""
    deadline = time.monotonic() + BACK_SECONDS_MAX
    while waiting := [caller for caller in callers if caller.sent_at <= since]:
        failed = [task for task in tasks if task.done()]
        await asyncio.gather(*failed)  # raises what ended a caller
        if time.monotonic() > deadline:
            problems = [f"{caller.bus}: {caller.failures[-1][1] if caller.failures else 'no answer'}" for caller in waiting]
            raise FailoverError(f"{len(waiting)} buses do not answer after {BACK_SECONDS_MAX:.0f} s: {problems[:5]}")
        await asyncio.sleep(0.05)


def main() -> int:
    """Run the campaign and return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--buses", type=int, default=50, help="buses (default 50)")
    parser.add_argument("--kills", type=int, default=6, help="masters to kill, one after the other (default 6)")
    parser.add_argument("--seconds", type=float, default=5.0, help="load before and after each kill (default 5)")
    options = parser.parse_args()
    print(f"the {build()} build", file=sys.stderr)
    directory = Path(tempfile.mkdtemp(prefix="gavel-failover-"))
    try:
        asyncio.run(run_campaign(directory, options.buses, options.kills, options.seconds))
    except AssertionError as error:
        print(f"FAILED: {error}\nits files: {directory}", flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
