"""Sagas on real servers, Redis and processes: what is half done is made good, whoever dies in between (seeds 002 §7.1)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import redis.asyncio
from gavel.v1 import decision_pb2, execution_pb2
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.execution_pb2 import Execution
from gavel.v1.projection_service_pb2 import PENDING_PHASE_APPROVED, PENDING_PHASE_AWAITING_FACTS, PENDING_PHASE_UNDER_REVIEW
from gavel_client import GavelClient, execution_envelope, new_event_id
from gavel_client.fdr import FactDerivationReactor
from gavel_client.values import from_struct

from tests.e2e.cli.programs import gavel
from tests.e2e.couriers import executor, nothing_is_left
from tests.e2e.ledger import Ledger
from tests.e2e.world import COURIER, Server, approve, caught_up, open_bus, proposal, prove, publish_status, replay, rule_set, seen, serving

Clients = tuple[GavelClient, GavelClient]

# A lease that no freeze of a process outlasts.
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


def half_done(decision: Envelope, execution_id: str, event_id: str = "") -> Envelope:
    """Return the report that a parcel was sent half way."""
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


async def test_an_executor_process_makes_good_what_it_left_half_done(
    pair: tuple[Server, Server], unopened: Clients, redis_url: str, bus: str, tmp_path: Path
) -> None:
    """PARTIAL, its compensation in the same commit, carried out by the same kind of process, the facts of both, and the key is free."""
    first, second = unopened
    await open_bus(first, SAGA)
    with executor("recalls", pair[1], redis_url, bus, "courier", tmp_path / "courier.log"):
        approval = await approve(first, SUBJECT)
        await seen(second, lambda event: event.fact.key == "parcel.back_from")
        await nothing_is_left(second)
    ledger = await Ledger.read(redis_url, bus)
    (partial,) = [event for event in ledger.of("execution") if event.execution.status == execution_pb2.EXECUTION_STATUS_PARTIAL]
    (compensation,) = [event for event in ledger.of("decision") if event.decision.compensates_decision_id]
    assert (partial.sequence_number + 1, partial.recorded_at) == (compensation.sequence_number, compensation.recorded_at)
    assert (approval.event_id, RECALL, {"from": "crossroads", "steps": ["fetched"]}) == (
        compensation.decision.compensates_decision_id,
        compensation.decision.action_type,
        from_struct(compensation.decision.params),
    )
    derived = {event.fact.key: event.fact.value.string_value for event in ledger.of("fact") if event.fact.decision_id}
    assert {"execution.parcel.send.status": "PARTIAL", f"execution.{RECALL}.status": "SUCCESS", "parcel.back_from": "crossroads"} == derived
    shown = await asyncio.to_thread(gavel, "trace", approval.trace_id, "--bus", bus, server=pair[0])
    assert (0, True) == (shown.returncode, f"compensates {approval.event_id}" in " ".join(shown.stdout.split())), shown
    assert decision_pb2.OUTCOME_APPROVED == (await approve(second, SUBJECT)).decision.outcome
    proved = await asyncio.to_thread(replay, redis_url, bus)
    assert (0, "") == (proved.returncode, proved.stderr)


async def test_a_compensation_whose_entry_is_lost(
    pair: tuple[Server, Server], unopened: Clients, redis_url: str, bus: str, tmp_path: Path
) -> None:
    """The work queue is deleted while a compensation waits in it: executors carry it out all the same, once, however many look."""
    first, second = unopened
    await open_bus(first, SAGA)
    approval = await approve(first, SUBJECT)
    await first.report_execution(half_done(approval, await start(first, approval)))
    queue = f"gavel:{{{bus}}}:work:decisions"
    async with redis.asyncio.Redis.from_url(redis_url) as store:
        assert 2 == await store.xlen(queue)
        assert 1 == await store.delete(queue)
    with (
        executor("recalls", pair[0], redis_url, bus, "courier", tmp_path / "courier.log", lease_ms=LONG_MS),
        executor("recalls", pair[1], redis_url, bus, "other-courier", tmp_path / "other.log", lease_ms=LONG_MS),
    ):
        await seen(second, lambda event: event.fact.key == "parcel.back_from")
        await nothing_is_left(second)
        # What is approved now has an entry again, and is taken from there or from the list, but once.
        assert decision_pb2.OUTCOME_APPROVED == (await approve(second, SUBJECT)).decision.outcome
        await nothing_is_left(second)
    ledger = await Ledger.read(redis_url, bus)
    started = [event for event in ledger.of("execution") if event.execution.status == execution_pb2.EXECUTION_STATUS_STARTED]
    attempts = {(event.execution.decision_id, event.execution.attempt) for event in started}
    assert 4 == len({decision_id for decision_id, _ in attempts}) == len(attempts)
    await prove(first)


async def test_a_report_whose_entry_is_lost(tmp_path: Path) -> None:
    """Both work queues are deleted before anybody has read them: the report's facts are derived from the log, and the key comes free."""
    server = Server(tmp_path / "gavel", options=["--no-fdr"])
    with serving(server):
        async with server.client() as client:
            await open_bus(client, SAGA)
            approval = await approve(client, SUBJECT)
            await client.report_execution(half_done(approval, await start(client, approval)))
            async with redis.asyncio.Redis.from_url(server.redis_url) as store:
                assert 2 == await store.delete("gavel:{default}:work:decisions", "gavel:{default}:work:executions")
            reactor = FactDerivationReactor(client, server.redis_url, look_interval_ms=100)
            running = asyncio.create_task(reactor.run())
            try:
                with executor("recalls", server, server.redis_url, "default", "courier", tmp_path / "courier.log", lease_ms=LONG_MS):
                    await seen(client, lambda event: event.fact.key == "parcel.back_from")
                    await nothing_is_left(client)
            finally:
                reactor.stop()
                await running
            derived = [event.fact.key for event in await events_of(client) if event.fact.decision_id]
            statuses = ["execution.parcel.send.status", f"execution.{RECALL}.status"]
            assert sorted(["parcel.back_from", *statuses]) == sorted(derived)
            await approve(client, SUBJECT)
            await prove(client)


async def test_two_servers_know_of_it(unopened: Clients) -> None:
    """A report taken by one server is answered alike by the other, and both show the chain and refuse whoever wants the key."""
    first, second = unopened
    await open_bus(first, SAGA)
    approval = await approve(first, SUBJECT)
    report = half_done(approval, await start(first, approval))
    answers = await asyncio.gather(first.report_execution(report), second.report_execution(report))
    assert answers[0] == answers[1]
    (compensation,) = await seen(second, lambda event: bool(event.decision.compensates_decision_id))
    await caught_up((first, second))
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


async def test_everybody_dies_before_it_is_carried_out(tmp_path: Path) -> None:
    """Server and Redis are killed right behind the report; started again they show the same, and a process carries it out."""
    server = Server(tmp_path / "gavel", options=["--no-fdr"])
    with serving(server):
        async with server.client() as client:
            await open_bus(client, SAGA)
            approval = await approve(client, SUBJECT)
            await client.report_execution(half_done(approval, await start(client, approval)))
            before = (await client.list_pending_decisions()).decisions
        assert [PENDING_PHASE_AWAITING_FACTS, PENDING_PHASE_APPROVED] == [one.phase for one in before]
        await asyncio.to_thread(server.kill)
        restarted = Server(tmp_path / "gavel")
        with serving(restarted):
            async with restarted.client() as client:
                # The reactor may have derived the report's fact by now: then only the compensation is left.
                assert before[1] in (await client.list_pending_decisions()).decisions
                with executor("recalls", restarted, restarted.redis_url, "default", "courier", tmp_path / "courier.log"):
                    await seen(client, lambda event: event.fact.key == "parcel.back_from")
                    await nothing_is_left(client)
                await approve(client, SUBJECT)
                await prove(client)


async def test_a_compensation_that_fails_goes_to_a_person(pair: tuple[Server, Server], unopened: Clients, bus: str) -> None:
    """Its own PARTIAL calls a person; `gavel reviews` shows it, and once rejected the key is free."""
    first, second = unopened
    await open_bus(first, SAGA)
    approval = await approve(first, SUBJECT)
    await first.report_execution(half_done(approval, await start(first, approval)))
    (compensation,) = await seen(second, lambda event: bool(event.decision.compensates_decision_id))
    await second.report_execution(half_done(compensation, await start(second, compensation)))
    (review,) = (await second.list_pending_reviews()).reviews
    assert ("COMPENSATION_FAILED", RECALL, compensation.event_id, approval.event_id) == (
        review.reason_code,
        review.action_type,
        review.approved_decision_id,
        review.compensates_decision_id,
    )
    (pending,) = [one for one in (await second.list_pending_decisions()).decisions if one.compensates_decision_id]
    assert PENDING_PHASE_UNDER_REVIEW == pending.phase
    await caught_up((first, second))
    listed = await asyncio.to_thread(gavel, "reviews", "--bus", bus, server=pair[0], COLUMNS="400")
    assert ("COMPENSATION_FAILED" in listed.stdout, review.decision_id in listed.stdout) == (True, True), listed
    refused = await asyncio.to_thread(gavel, "revoke", compensation.event_id, "--reason", "no", "--bus", bus, server=pair[0])
    assert (True, True) == (refused.returncode != 0, f"reject review {review.decision_id}" in " ".join(refused.stderr.split())), refused
    rejected = await asyncio.to_thread(
        gavel, "review", "reject", review.decision_id, "--reason", "lost", "--by", "ada", "--bus", bus, server=pair[1]
    )
    assert 0 == rejected.returncode, rejected
    await approve(first, SUBJECT)
    await prove(second)
