"""Compensations on real servers, Redis and processes, whichever of them dies (constitution §7.1)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import redis.asyncio
from gavel.v1 import decision_pb2, execution_pb2
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.execution_pb2 import Execution
from gavel.v1.projection_service_pb2 import PENDING_PHASE_APPROVED, PENDING_PHASE_AWAITING_FACTS, PENDING_PHASE_UNDER_REVIEW
from gavel_client import GavelClient, execution_envelope, new_event_id
from gavel_client.consumers.fact_derivation import FactDerivationReactor
from gavel_client.values import from_struct

from tests.e2e.cli.programs import gavel
from tests.e2e.couriers import run_executor, wait_until_idle
from tests.e2e.ledger import Ledger
from tests.e2e.world import (
    COURIER,
    Server,
    approve,
    open_bus,
    proposal,
    prove,
    publish_status,
    replay,
    rule_set,
    run_servers,
    wait_for_events,
    wait_for_same_head,
)

Clients = tuple[GavelClient, GavelClient]

# A lease longer than any freeze of a process.
LONG_MS = 3_600_000
SUBJECT = "parcel/1"
RECALL = "parcel.recall"
SAGA = (
    rule_set()
    .replace(
        "    decision_ttl_ms",
        "    compensation: {action: parcel.recall, params: {from: execution.result.stranded, steps: execution.completed_steps}}\n"
        "    decision_ttl_ms",
    )
    .replace(
        "rules:\n",
        """\
  parcel.recall:
    params:
      type: object
      required: [from]
      additionalProperties: false
      properties: {from: {type: string}, steps: {type: array, items: {type: string}}}
    retry: {max_attempts: 20, backoff_initial_ms: 10, backoff_max_ms: 10}
rules:
  - {id: nobody, action: parcel.recall, priority: 1, when: 'true', effect: reject, reason_code: ONLY_AS_COMPENSATION}
""",
    )
    + """
derivations:
  - {id: recalled, version: 3, on: {action: parcel.recall, status: SUCCESS}, key: parcel.back_from, value: execution.result.brought_from}
"""
)


def partial_report(decision: Envelope, execution_id: str, event_id: str = "") -> Envelope:
    """Return the PARTIAL report of an attempt."""
    execution = Execution(
        decision_id=decision.event_id,
        execution_id=execution_id,
        status=execution_pb2.EXECUTION_STATUS_PARTIAL,
        completed_steps=["fetched"],
    )
    execution.result.update({"stranded": "crossroads"})
    return execution_envelope("", COURIER, execution, event_id=event_id or new_event_id())


async def start(client: GavelClient, decision: Envelope) -> str:
    """Begin a decision and return the attempt's execution_id."""
    return (await client.begin_execution(decision.event_id, producer=COURIER)).started.execution_id


async def test_executor_carries_out_a_compensation(
    pair: tuple[Server, Server], new_bus_clients: Clients, redis_url: str, bus: str, tmp_path: Path, queue_url: str
) -> None:
    """A PARTIAL report is compensated in the same commit; an executor carries that out; with the facts of both the key is free."""
    first, second = new_bus_clients
    await open_bus(first, SAGA)
    with run_executor("compensates", pair[1], queue_url, bus, "courier", tmp_path / "courier.log"):
        approval = await approve(first, SUBJECT)
        await wait_for_events(second, lambda event: event.fact.key == "parcel.back_from")
        await wait_until_idle(second)
    ledger = await Ledger.read(redis_url, bus)
    (partial,) = [event for event in ledger.of("execution") if event.execution.status == execution_pb2.EXECUTION_STATUS_PARTIAL]
    (compensation,) = [event for event in ledger.of("decision") if event.decision.compensates_decision_id]
    assert (partial.sequence_number + 1, partial.recorded_at) == (compensation.sequence_number, compensation.recorded_at)
    assert (approval.event_id, RECALL, {"from": "crossroads", "steps": ["fetched"]}) == (
        compensation.decision.compensates_decision_id,
        compensation.decision.action_type,
        from_struct(compensation.decision.params),
    )
    facts = {event.fact.key: event.fact.value.string_value for event in ledger.of("fact") if event.fact.decision_id}
    assert {"execution.parcel.send.status": "PARTIAL", f"execution.{RECALL}.status": "SUCCESS", "parcel.back_from": "crossroads"} == facts
    output = await asyncio.to_thread(gavel, "trace", approval.trace_id, "--bus", bus, server=pair[0])
    assert (0, True) == (output.returncode, f"compensates {approval.event_id}" in " ".join(output.stdout.split())), output
    assert decision_pb2.OUTCOME_APPROVED == (await approve(second, SUBJECT)).decision.outcome
    verdict = await asyncio.to_thread(replay, redis_url, bus)
    assert (0, "") == (verdict.returncode, verdict.stderr)


async def test_a_compensation_whose_entry_is_lost(
    pair: tuple[Server, Server], new_bus_clients: Clients, redis_url: str, bus: str, tmp_path: Path, queue_url: str
) -> None:
    """If the work queue is deleted while a compensation waits in it, the executors still carry it out, once."""
    first, second = new_bus_clients
    await open_bus(first, SAGA)
    approval = await approve(first, SUBJECT)
    await first.report_execution(partial_report(approval, await start(first, approval)))
    queue = f"gavel:{{{bus}}}:work:decisions"
    async with redis.asyncio.Redis.from_url(redis_url) as store:
        assert 2 == await store.xlen(queue)
        assert 1 == await store.delete(queue)
    with (
        run_executor("compensates", pair[0], queue_url, bus, "courier", tmp_path / "courier.log", lease_ms=LONG_MS),
        run_executor("compensates", pair[1], queue_url, bus, "other-courier", tmp_path / "other.log", lease_ms=LONG_MS),
    ):
        await wait_for_events(second, lambda event: event.fact.key == "parcel.back_from")
        await wait_until_idle(second)
        # A new approval has an entry again; it is executed once, whether found in the queue or by the scan.
        assert decision_pb2.OUTCOME_APPROVED == (await approve(second, SUBJECT)).decision.outcome
        await wait_until_idle(second)
    ledger = await Ledger.read(redis_url, bus)
    starts = [event for event in ledger.of("execution") if event.execution.status == execution_pb2.EXECUTION_STATUS_STARTED]
    attempts = {(event.execution.decision_id, event.execution.attempt) for event in starts}
    assert 4 == len({decision_id for decision_id, _ in attempts}) == len(attempts)
    await prove(first)


@pytest.mark.parametrize("over_grpc", [True, False], ids=["grpc", "redis"])
async def test_a_report_whose_entry_is_lost(tmp_path: Path, over_grpc: bool) -> None:
    """If both work queues are deleted unread, the report's facts are derived from the log, and the key is free again."""
    server = Server(tmp_path / "gavel", options=["--no-fdr"])
    with run_servers(server):
        async with server.client() as client:
            await open_bus(client, SAGA)
            approval = await approve(client, SUBJECT)
            await client.report_execution(partial_report(approval, await start(client, approval)))
            async with redis.asyncio.Redis.from_url(server.redis_url) as store:
                assert 2 == await store.delete("gavel:{default}:work:decisions", "gavel:{default}:work:executions")
            queue_url = "" if over_grpc else server.redis_url
            reactor = FactDerivationReactor(client, redis_url=queue_url, scan_interval_ms=100)
            running = asyncio.create_task(reactor.run())
            try:
                log = tmp_path / "courier.log"
                with run_executor("compensates", server, queue_url, "default", "courier", log, lease_ms=LONG_MS):
                    await wait_for_events(client, lambda event: event.fact.key == "parcel.back_from")
                    await wait_until_idle(client)
            finally:
                reactor.stop()
                await running
            facts = [event.fact.key for event in await events_of(client) if event.fact.decision_id]
            statuses = ["execution.parcel.send.status", f"execution.{RECALL}.status"]
            assert sorted(["parcel.back_from", *statuses]) == sorted(facts)
            await approve(client, SUBJECT)
            await prove(client)


async def test_both_servers_show_the_compensation(new_bus_clients: Clients) -> None:
    """Both servers answer a repeated report alike, show the compensation, and reject proposals for its key."""
    first, second = new_bus_clients
    await open_bus(first, SAGA)
    approval = await approve(first, SUBJECT)
    report = partial_report(approval, await start(first, approval))
    answers = await asyncio.gather(first.report_execution(report), second.report_execution(report))
    assert answers[0] == answers[1]
    (compensation,) = await wait_for_events(second, lambda event: bool(event.decision.compensates_decision_id))
    await wait_for_same_head((first, second))
    for client in (first, second):
        pending = {one.decision_id: one for one in (await client.list_pending_decisions()).decisions}
        assert (approval.event_id, PENDING_PHASE_APPROVED) == (
            pending[compensation.event_id].compensates_decision_id,
            pending[compensation.event_id].phase,
        )
        fact = (await publish_status(client, [SUBJECT]))[SUBJECT]
        rival = (await client.submit_proposal(proposal(fact))).decision.decision
        assert ("CONFLICTING_DECISION", [approval.decision.proposal_id]) == (rival.reason_code, [*rival.conflict_with_proposal_ids])
    assert 1 == len([event for event in await events_of(first) if event.decision.compensates_decision_id])
    assert "started" == (await second.begin_execution(compensation.event_id, producer=COURIER)).WhichOneof("result")
    assert "ALREADY_RUNNING" == (await first.begin_execution(compensation.event_id, producer=COURIER)).refusal.reason_code
    await prove(second)


async def events_of(client: GavelClient) -> list[Envelope]:
    """Return all events of a short log."""
    return [*(await client.list_events(page_size=1000)).envelopes]


async def test_compensation_survives_a_crash(tmp_path: Path) -> None:
    """A server and its Redis, killed right after the report, show the same state after a restart, and an executor carries it out."""
    server = Server(tmp_path / "gavel", options=["--no-fdr"])
    with run_servers(server):
        async with server.client() as client:
            await open_bus(client, SAGA)
            approval = await approve(client, SUBJECT)
            await client.report_execution(partial_report(approval, await start(client, approval)))
            before = (await client.list_pending_decisions()).decisions
        assert [PENDING_PHASE_AWAITING_FACTS, PENDING_PHASE_APPROVED] == [one.phase for one in before]
        await asyncio.to_thread(server.kill)
        successor = Server(tmp_path / "gavel")
        with run_servers(successor):
            async with successor.client() as client:
                # If the reactor has already derived the report's fact, only the compensation is pending.
                assert before[1] in (await client.list_pending_decisions()).decisions
                with run_executor("compensates", successor, "", "default", "courier", tmp_path / "courier.log"):
                    await wait_for_events(client, lambda event: event.fact.key == "parcel.back_from")
                    await wait_until_idle(client)
                await approve(client, SUBJECT)
                await prove(client)


async def test_a_compensation_that_fails_goes_to_a_person(pair: tuple[Server, Server], new_bus_clients: Clients, bus: str) -> None:
    """A PARTIAL report of a compensation requests a human review; `gavel reviews` lists it, and its rejection frees the key."""
    first, second = new_bus_clients
    await open_bus(first, SAGA)
    approval = await approve(first, SUBJECT)
    await first.report_execution(partial_report(approval, await start(first, approval)))
    (compensation,) = await wait_for_events(second, lambda event: bool(event.decision.compensates_decision_id))
    await second.report_execution(partial_report(compensation, await start(second, compensation)))
    (review,) = (await second.list_pending_reviews()).reviews
    assert ("COMPENSATION_FAILED", RECALL, compensation.event_id, approval.event_id) == (
        review.reason_code,
        review.action_type,
        review.approved_decision_id,
        review.compensates_decision_id,
    )
    (pending,) = [one for one in (await second.list_pending_decisions()).decisions if one.compensates_decision_id]
    assert PENDING_PHASE_UNDER_REVIEW == pending.phase
    await wait_for_same_head((first, second))
    listing = await asyncio.to_thread(gavel, "reviews", "--bus", bus, server=pair[0], COLUMNS="400")
    assert ("COMPENSATION_FAILED" in listing.stdout, review.decision_id in listing.stdout) == (True, True), listing
    refusal = await asyncio.to_thread(gavel, "revoke", compensation.event_id, "--reason", "no", "--bus", bus, server=pair[0])
    assert (True, True) == (refusal.returncode != 0, f"reject review {review.decision_id}" in " ".join(refusal.stderr.split())), refusal
    rejected = await asyncio.to_thread(
        gavel, "review", "reject", review.decision_id, "--reason", "lost", "--by", "ada", "--bus", bus, server=pair[1]
    )
    assert 0 == rejected.returncode, rejected
    await approve(first, SUBJECT)
    await prove(second)
