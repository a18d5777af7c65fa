"""Runs of a proposal loop that are repeated: after an interruption, in another process, and while another process makes the same run."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from gavel.v1.arbitration_service_pb2 import DECISION_PHASE_CLOSED, DECISION_PHASE_DECIDED, DECISION_PHASE_EXECUTED
from gavel.v1.decision_pb2 import OUTCOME_APPROVED
from gavel.v1.envelope_pb2 import Envelope
from gavel_client import (
    FactNeed,
    FactProviders,
    GavelClient,
    LoopResult,
    ProposalLoop,
    SyncGavelClient,
    fact_envelope,
    proposal_envelope,
)

from tests.e2e.agents import run_process
from tests.e2e.couriers import run_executor, wait_until_idle
from tests.e2e.ledger import Ledger
from tests.e2e.runs import forker
from tests.e2e.world import (
    ACTION,
    AGENT,
    DAY_MS,
    DEPOT,
    PATIENT_MS,
    STOP_SECONDS_MAX,
    Server,
    approve,
    open_bus,
    prove,
    run_servers,
    wait_for_events,
)
from tests.support.fronts import ANY_FRONT
from tests.support.paths import ROOT
from tests.support.ports import free_port

Clients = tuple[GavelClient, GavelClient]


def draft(subject: str = "parcel/1") -> Envelope:
    """Return a first proposal to send a parcel, which cites nothing."""
    return proposal_envelope(subject, AGENT, action_type=ACTION, params={"weight": 1.0}, max_fact_age_ms=DAY_MS)


async def play(client: GavelClient, proposal: Envelope) -> LoopResult:
    """Run a proposal; the depot publishes the status whenever it is asked."""
    providers = FactProviders()

    @providers.facts("parcel.status", source=DEPOT.id)
    async def status(need: FactNeed) -> list[Envelope]:
        fact = fact_envelope(need.subject, DEPOT, key="parcel.status", value="ready", trace_id=need.trace_id)
        return [(await client.publish_event(fact)).envelope]

    return await ProposalLoop(client, providers).run(proposal)


@contextmanager
def run_loop(
    server: Server, bus: str, run_key: str, barrier: Path, *, processes: int = 1, weight: float = 1.0
) -> Iterator[subprocess.Popen[str]]:
    """Run the loop in a process of its own (see `run_process`)."""
    barrier.mkdir(exist_ok=True)
    arguments = [server.address, bus, run_key, "parcel/1", weight, barrier, processes]
    command = [*forker().command(run_process.__name__), *map(str, arguments)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def answer_of(process: subprocess.Popen[str]) -> Any:
    """Return what a process of `run_loop` printed."""
    output, errors = process.communicate(timeout=STOP_SECONDS_MAX)
    assert 0 == process.returncode, errors
    return json.loads(output)


async def count(redis_url: str, bus: str) -> dict[str, int]:
    """Return the numbers of proposals, approvals and attempts in the log."""
    ledger = await Ledger.read(redis_url, bus)
    executions = [event.execution for event in ledger.of("execution")]
    return {
        "proposals": len(ledger.of("proposal")),
        "approvals": sum(event.decision.outcome == OUTCOME_APPROVED for event in ledger.of("decision")),
        "attempts": len({execution.execution_id for execution in executions}),
    }


async def test_same_envelope_after_its_work_has_finished(
    pair: tuple[Server, Server], clients: Clients, redis_url: str, bus: str, tmp_path: Path
) -> None:
    """An envelope that is run again after its work has finished gets the same approval, and nothing is executed again."""
    first, second = clients
    proposal = draft()
    with run_executor("succeeds", pair[0], "", bus, "courier", tmp_path / "courier.log"):
        before = await play(first, proposal)
        assert before.decision is not None
        approval = before.decision.event_id
        await wait_for_events(first, lambda event: event.fact.decision_id == approval)
        await wait_until_idle(first)
        after = await play(second, proposal)
        await wait_until_idle(first)
    assert before.decision == after.decision
    assert [one.proposal.event_id for one in before.rounds] == [one.proposal.event_id for one in after.rounds]
    assert {"proposals": 2, "approvals": 1, "attempts": 1} == await count(redis_url, bus)


@pytest.mark.long
async def test_run_key_in_new_processes_across_a_restart(tmp_path: Path) -> None:
    """A run is killed; another process with its run_key finishes it, and a third one, after the work and a restart, hears the same."""
    server, bus = Server(tmp_path / "data"), "default"
    with run_servers(server):
        async with server.client() as client:
            await open_bus(client)
        with run_loop(server, bus, "task-7", tmp_path / "killed", processes=0) as killed:
            killed.communicate(timeout=STOP_SECONDS_MAX)
            assert -signal.SIGKILL == killed.returncode
        with run_loop(server, bus, "task-7", tmp_path / "second") as process:
            second = answer_of(process)
        assert ("APPROVED", 1) == (second["reason"], second["calls"])
        with run_executor("succeeds", server, "", bus, "courier", tmp_path / "courier.log"):
            async with server.client() as client:
                await wait_for_events(client, lambda event: bool(event.fact.derivation_rule_id))
                await wait_until_idle(client)
        server.kill()
        server.start()
        with run_loop(server, bus, "task-7", tmp_path / "third") as process:
            third = answer_of(process)
        assert {**second, "calls": 0} == third
        assert {"proposals": 2, "approvals": 1, "attempts": 1} == await count(server.redis_url, bus)
        with run_loop(server, bus, "task-7", tmp_path / "other", weight=2.0) as process:
            _, errors = process.communicate(timeout=STOP_SECONDS_MAX)
        assert "RunKeyError: run_key 'task-7' names an earlier run with another params" in errors
        async with server.client() as client:
            await prove(client)


async def test_two_processes_with_one_run_key(
    pair: tuple[Server, Server], clients: Clients, redis_url: str, bus: str, tmp_path: Path
) -> None:
    """Two processes that make the same run at the same time, on two servers, get one approval, and its work is done once."""
    first, _ = clients
    with run_executor("succeeds", pair[0], "", bus, "courier", tmp_path / "courier.log"):
        barrier = tmp_path / "barrier"
        with (
            run_loop(pair[0], bus, "task-7", barrier, processes=2) as one,
            run_loop(pair[1], bus, "task-7", barrier, processes=2) as other,
        ):
            answers = answer_of(one), answer_of(other)
        await wait_for_events(first, lambda event: bool(event.fact.derivation_rule_id))
        await wait_until_idle(first)
    assert answers[0] == answers[1]
    assert ("APPROVED", 1) == (answers[0]["reason"], answers[0]["calls"])
    counts = await count(redis_url, bus)
    # The fact of one process may supersede that of the other, which costs both the same further round.
    assert len(answers[0]["decisions"]) == counts["proposals"]
    assert (1, 1) == (counts["approvals"], counts["attempts"])


async def test_wait_decision_across_a_restart(tmp_path: Path) -> None:
    """A client of the native front that waits for the end of a decision gets it, although the server is killed and restarted meanwhile."""
    server = Server(tmp_path / "data", listen=f"127.0.0.1:{free_port()}", options=["--front", ANY_FRONT])
    with run_servers(server):
        async with GavelClient(server.address) as client:
            await open_bus(client)
            decision = await approve(client, "parcel/1")
            waiting = asyncio.create_task(client.wait_decision(decision.event_id, phase=DECISION_PHASE_CLOSED, timeout_ms=PATIENT_MS))
            at_once = await client.wait_decision(decision.event_id, phase=DECISION_PHASE_EXECUTED, timeout_ms=0)
            assert (DECISION_PHASE_DECIDED, decision) == (at_once.phase, at_once.decision)
            server.kill()
            server.start()
            with run_executor("succeeds", server, "", "default", "courier", tmp_path / "courier.log"):
                closed = await waiting
        assert (DECISION_PHASE_CLOSED, decision, "ExecutionSucceeded") == (closed.phase, closed.decision, closed.execution.event_name)
        with SyncGavelClient(server.address) as blocking:
            assert closed == blocking.wait_decision(decision.decision.proposal_id, phase=DECISION_PHASE_CLOSED)
