"""A budget under fire: `python -m tests.campaigns.budget`, or `make budget`.

Clients propose at the same time on two servers of one log, executors carry out or give up what is approved, a person revokes some of it,
and the servers are killed one after the other. All proposals share one budget. The campaign fails if after any event of the log more of
the budget is in use than there is (`tests/support/conservation.py`), if less than `USED_SHARE_MIN` of it can be used, if an answer is
missing from the log, or if the log does not replay.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Final

from gavel.v1 import decision_pb2, execution_pb2
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.execution_pb2 import Execution
from gavel_client import GavelClient, GavelError, execution_envelope, new_event_id
from gavel_client.rpc.backoff import Backoff
from gavel_server.process.build import build

from tests.campaigns.redis_process import RedisProcess
from tests.e2e.couriers import wait_until_idle
from tests.e2e.ledger import Ledger
from tests.e2e.world import ACTION, COURIER, Server, open_bus, poll, proposal, publish_status, replay, rule_set, run_servers
from tests.support.conservation import BudgetAudit, BudgetError
from tests.support.ports import free_port

BUS: Final = "default"
USED_SHARE_MIN: Final = Fraction(99, 100)
# Weights of parcels. Many are less than a hundredth of the budget, so that most of it can be used.
WEIGHTS: Final = (0.1, 0.25, 1.0, 2.5, 7.3)
# The share of what the proposals ask for that the budget covers.
BUDGET_SHARE: Final = 0.4
CLIENTS_PER_EXECUTOR: Final = 2
DECISION_TTL_MS: Final = 20_000
# Enough tries for a server that is killed and starts again, also on a machine where that takes minutes.
PATIENT: Final = Backoff(initial_ms=20, maximum_ms=500)
TRIES_MAX: Final = 2_000
CALL_MS: Final = 600_000


def budgeted_rule_set(limit: float) -> str:
    """Return the tests' rule set with a limit on the weight of all approvals of a day."""
    return (
        rule_set(decision_ttl_ms=DECISION_TTL_MS)
        .replace("gavel: v1", "gavel: v2")
        .replace(
            "rules:\n",
            f"counters:\n  sent: {{of: approvals, action: {ACTION}, sum: params.weight, window_ms: 86400000, keep: reserved}}\nrules:\n"
            f"  - {{id: budget, action: {ACTION}, priority: 900, when: 'history.sent() + params.weight > {limit}', effect: reject,"
            " reason_code: DAILY_WEIGHT}\n",
            1,
        )
    )


@dataclass(frozen=True)
class Findings:
    """The observations of a campaign."""

    audit: BudgetAudit
    kills: int


class Campaign:
    """One campaign: a Redis, two servers, and everybody who uses them."""

    def __init__(self, directory: Path, proposals: int, clients: int, seed: int) -> None:
        self._redis = RedisProcess(directory / "redis")
        self._servers = [
            Server(directory / name, redis_url=self._redis.url, listen=f"127.0.0.1:{free_port()}", options=["--no-front"])
            for name in ("first", "second")
        ]
        self._clients = clients
        self._randomness = random.Random(seed)
        self._weights = [self._randomness.choice(WEIGHTS) for _ in range(proposals)]
        self._limit = round(sum(self._weights) * BUDGET_SHARE, 1)
        self._answers: dict[str, Envelope] = {}
        self._approved: asyncio.Queue[str | None] = asyncio.Queue()
        self._kills = 0

    async def run(self, kills: int) -> Findings:
        """Run the campaign and return what it saw. Raises AssertionError if it found a fault."""
        await self._redis.start()
        try:
            with run_servers(*self._servers):
                async with self._servers[0].client(BUS) as client:
                    await open_bus(client, budgeted_rule_set(self._limit))
                    facts = await publish_status(client, [f"parcel/{number}" for number in range(len(self._weights))])
                await self._fire(list(facts.values()), kills)
                async with self._servers[0].client(BUS) as client:
                    await wait_until_idle(client)  # what was given up counts until the facts of its report are recorded
                await asyncio.gather(*(self._fill(number) for number in range(self._clients)))
                await self._check()
                audit = BudgetAudit(Fraction(str(self._limit)), ACTION, "weight").read((await Ledger.read(self._redis.url, BUS)).events)
                result = replay(self._redis.url, BUS)
                assert result.returncode == 0, f"gavel replay exits with {result.returncode}: {result.stdout}{result.stderr}"
        finally:
            self._redis.kill()
        assert audit.used_max >= USED_SHARE_MIN * audit.limit, f"only {float(audit.used_max)} of {self._limit} could be used"
        return Findings(audit, self._kills)

    async def _fire(self, facts: Sequence[Envelope], kills: int) -> None:
        """Let all clients propose, and kill servers until every proposal is answered or there were enough kills."""
        work = iter(zip(facts, self._weights, strict=True))
        async with asyncio.TaskGroup() as group:
            executors = [group.create_task(self._execute(number)) for number in range(max(self._clients // CLIENTS_PER_EXECUTOR, 1))]
            proposing = [group.create_task(self._propose(number, work)) for number in range(self._clients)]
            killing = group.create_task(self._kill(kills, proposing))
            await asyncio.gather(*proposing, killing)
            for _ in executors:
                self._approved.put_nowait(None)

    async def _propose(self, number: int, work: Iterator[tuple[Envelope, float]]) -> None:
        """Propose until the work, which all clients share, is done."""
        async with self._client(number) as client:
            for fact, weight in work:
                envelope = proposal(fact, weight)
                decision = (await client.submit_proposal(envelope, timeout_ms=CALL_MS)).decision
                self._answers[envelope.event_id] = decision
                if decision.decision.outcome == decision_pb2.OUTCOME_APPROVED:
                    self._approved.put_nowait(decision.event_id)

    async def _fill(self, number: int) -> None:
        """Propose ever lighter parcels until none fits into the budget: shows how much of it can be used, however much was given back."""
        async with self._client(number) as client:
            for weight in sorted(WEIGHTS, reverse=True):
                fits = True
                while fits:
                    (fact,) = (await publish_status(client, [f"parcel/fill-{new_event_id()}"])).values()
                    decision = (await client.submit_proposal(proposal(fact, weight), timeout_ms=CALL_MS)).decision
                    fits = decision.decision.outcome == decision_pb2.OUTCOME_APPROVED

    async def _execute(self, number: int) -> None:
        """Carry out approvals, give them up, revoke them, or leave them until they expire."""
        async with self._client(number) as client:
            while (decision_id := await self._approved.get()) is not None:
                match self._randomness.choices(("success", "aborted", "revoked", "expired"), (70, 10, 5, 15))[0]:
                    case "success":
                        await _carry_out(client, decision_id, execution_pb2.EXECUTION_STATUS_SUCCESS)
                    case "aborted":
                        await _carry_out(client, decision_id, execution_pb2.EXECUTION_STATUS_ABORTED)
                    case "revoked":
                        await _revoke(client, decision_id)

    async def _kill(self, kills: int, proposing: Sequence[asyncio.Task[None]]) -> None:
        """Kill the servers in turn, each time after some further answers, and start them again."""
        share = len(self._weights) // (kills + 1)
        for number in range(kills):
            wanted = share * (number + 1)
            await _poll_answers(self._answers, wanted, proposing)
            server = self._servers[number % 2]
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start)
            self._kills += 1

    async def _check(self) -> None:
        """Assert that each answer is in the log, bit for bit."""
        ledger = await Ledger.read(self._redis.url, BUS)
        assert len(self._answers) == len(self._weights)
        assert self._answers == {event_id: ledger.first_decisions.get(event_id) for event_id in self._answers}

    def _client(self, number: int) -> GavelClient:
        return GavelClient(self._servers[number % 2].address, bus=BUS, backoff=PATIENT, tries_max=TRIES_MAX)


async def _poll_answers(answers: dict[str, Envelope], wanted: int, proposing: Sequence[asyncio.Task[None]]) -> None:
    """Return once there are so many answers, or once nobody proposes any more."""

    async def enough() -> bool | None:
        return len(answers) >= wanted or all(task.done() for task in proposing) or None

    await poll(enough, lambda: f"{len(answers)} answers, {wanted} wanted")


async def _carry_out(client: GavelClient, decision_id: str, status: execution_pb2.ExecutionStatus.ValueType) -> None:
    start = await client.begin_execution(decision_id, producer=COURIER, timeout_ms=CALL_MS)
    if start.WhichOneof("result") == "started":  # otherwise it has expired
        execution = Execution(decision_id=decision_id, execution_id=start.started.execution_id, status=status)
        await client.report_execution(execution_envelope("", COURIER, execution), timeout_ms=CALL_MS)


async def _revoke(client: GavelClient, decision_id: str) -> None:
    try:
        await client.revoke_decision(decision_id, revoked_by="alice", reason="not needed", timeout_ms=CALL_MS)
    except GavelError as error:
        if error.reason != "WRONG_STATE":  # it has expired
            raise


async def run_campaign(directory: Path, *, proposals: int, clients: int, kills: int, seed: int) -> Findings:
    """Run a campaign in a directory of its own and return what it saw. Raises AssertionError if it found a fault."""
    return await Campaign(directory, proposals, clients, seed).run(kills)


def main() -> int:
    """Run the campaign, print what it saw, and return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--proposals", type=int, default=10_000, help="how many (default 10,000)")
    parser.add_argument("--clients", type=int, default=64, help="how many propose at the same time (default 64)")
    parser.add_argument("--kills", type=int, default=10, help="how often a server is killed (default 10)")
    parser.add_argument("--seed", type=int, default=1, help="of every choice (default 1)")
    options = parser.parse_args()
    print(f"the {build()} build", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="gavel-budget-") as directory:
        try:
            findings = asyncio.run(
                run_campaign(Path(directory), proposals=options.proposals, clients=options.clients, kills=options.kills, seed=options.seed)
            )
        except (BudgetError, AssertionError) as error:
            print(f"FAILED: {error}")
            return 1
    audit = findings.audit
    print(f"{options.proposals} proposals by {options.clients} clients, {findings.kills} kills of two servers")
    print(f"{audit.approvals} approvals, {audit.refusals} refusals, {audit.settled} settled, {audit.releases} released")
    print(f"at most {float(audit.used_max):.2f} of {float(audit.limit):.2f} in use ({float(audit.used_max / audit.limit):.3%}), never more")
    return 0


if __name__ == "__main__":
    sys.exit(main())
