"""The fact derivation reactor on a real Redis and real gRPC with a fake server."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import pytest
from gavel.v1.common_pb2 import EVENT_CATEGORY_DECISION_EVENT
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.event_service_pb2 import GetEventResponse, ListEventsResponse
from gavel.v1.execution_pb2 import EXECUTION_STATUS_FAILED, EXECUTION_STATUS_STARTED, EXECUTION_STATUS_SUCCESS, Execution, ExecutionStatus
from gavel.v1.projection_service_pb2 import (
    PENDING_PHASE_AWAITING_FACTS,
    PENDING_PHASE_EXECUTING,
    ListPendingDecisionsResponse,
    PendingDecision,
)
from gavel.v1.rule_set_service_pb2 import GetRuleSetResponse
from gavel_client.consumers.fact_derivation import FactDerivationReactor
from gavel_client.consumers.work_source import EXECUTIONS
from gavel_client.rpc.client import GavelClient
from gavel_rules.derivation import derive
from gavel_rules.language.rule_set import CompiledRuleSet, compile_rule_set

from tests.unit.client.fake_server import FakeServer, approved_decision, refusal
from tests.unit.client.work_queues import LONG_MS, SHORT_MS, WAIT_S, Queue, until, until_equal

GROUP = "fdr"


@pytest.fixture
async def queue(redis_url: str, bus: str) -> AsyncIterator[Queue]:
    """The executions queue of the test's bus."""
    async with Queue.open(redis_url, bus, EXECUTIONS) as opened:
        yield opened


@pytest.fixture
def reactor(client: GavelClient, redis_url: str) -> FactDerivationReactor:
    """A reactor on the test's bus that does not get its pending entries again."""
    return FactDerivationReactor(client, redis_url=redis_url, min_idle_ms=LONG_MS)


@pytest.fixture
def soon_again(client: GavelClient, redis_url: str) -> FactDerivationReactor:
    """A reactor that soon gets its pending entries again."""
    return FactDerivationReactor(client, redis_url=redis_url, min_idle_ms=SHORT_MS)


@asynccontextmanager
async def running(reactor: FactDerivationReactor) -> AsyncIterator[None]:
    """Run a reactor in the context and stop it at the end."""
    task = asyncio.create_task(reactor.run())
    try:
        yield
    finally:
        reactor.stop()
        await asyncio.wait_for(task, WAIT_S)


def executed(decision: Envelope, sequence_number: int, status: ExecutionStatus.ValueType = EXECUTION_STATUS_SUCCESS) -> Envelope:
    """An execution of `decision` as recorded in the log."""
    return Envelope(
        schema_version="gavel.v1",
        sequence_number=sequence_number,
        event_id=f"0190a000-0000-7000-8000-{sequence_number:012d}",
        trace_id=decision.trace_id,
        subject=decision.subject,
        bus=decision.bus,
        execution=Execution(decision_id=decision.event_id, execution_id="exec_000000000001", attempt=1, status=status),
    )


async def test_facts_are_published(server: FakeServer, queue: Queue, reactor: FactDerivationReactor, bus: str) -> None:
    """The facts of a report are published as derived; then its entry is deleted."""
    decision = approved_decision(7, bus)
    execution = executed(decision, 9)
    server.script("GetEvent", GetEventResponse(envelope=decision))
    await queue.add(execution)
    async with running(reactor):
        await until_equal(queue.ids, [])
    execution.chain_hash = b"\0" * 32
    facts = derive(execution, decision, None)
    assert 1 == len(facts)
    assert list(facts) == [request.envelope for request in server.requests["PublishEvent"]]
    assert [decision.event_id] == [request.event_id for request in server.requests["GetEvent"]]
    assert (1, 0) == (reactor.statistics.processed, reactor.statistics.failed)


async def test_lost_reports_are_derived(server: FakeServer, queue: Queue, client: GavelClient, redis_url: str, bus: str) -> None:
    """Lost reports of a decision that awaits facts are read from the log and derived once, even if it stays pending."""
    decision = approved_decision(7, bus)
    failed, done = executed(decision, 9, EXECUTION_STATUS_FAILED), executed(decision, 12)
    other = executed(approved_decision(5, bus), 10)
    waiting = PendingDecision(
        decision_id=decision.event_id,
        sequence_number=7,
        last_sequence_number=12,
        trace_id=decision.trace_id,
        phase=PENDING_PHASE_AWAITING_FACTS,
    )
    begun = PendingDecision(decision_id=other.execution.decision_id, sequence_number=5, phase=PENDING_PHASE_EXECUTING)
    server.answers["ListPendingDecisions"] = lambda request: ListPendingDecisionsResponse(
        decisions=[one for one in (begun, waiting) if not request.phases or one.phase in request.phases], projection_version=12
    )
    server.answers["GetEvent"] = lambda _: GetEventResponse(envelope=decision)
    pages = [[executed(decision, 8, EXECUTION_STATUS_STARTED), failed, other], [done]]
    server.script(
        "ListEvents", *(ListEventsResponse(envelopes=page, next_page_token=token) for page, token in zip(pages, ("2", ""), strict=True))
    )
    reactor = FactDerivationReactor(client, redis_url=redis_url, scan_interval_ms=2)
    async with running(reactor):
        await until(lambda: reactor.statistics.processed == 1)
        looks = len(server.requests["ListPendingDecisions"])
        await until(lambda: len(server.requests["ListPendingDecisions"]) > looks + 3)
    facts = [fact for report in (failed, done) for fact in derive(report, decision, None)]
    assert facts == [request.envelope for request in server.requests["PublishEvent"]]
    first, second = server.requests["ListEvents"]
    assert (decision.trace_id, 7, 12) == (first.trace_id, first.from_sequence_number, first.to_sequence_number)
    assert ("", "2") == (first.page_token, second.page_token)
    assert 1 == reactor.statistics.processed


async def test_started_derives_nothing(server: FakeServer, queue: Queue, reactor: FactDerivationReactor, bus: str) -> None:
    """STARTED derives no fact and causes no call."""
    await queue.add(executed(approved_decision(7, bus), 9, EXECUTION_STATUS_STARTED))
    async with running(reactor):
        await until_equal(queue.ids, [])
    assert {} == dict(server.requests)


async def test_server_that_is_away(server: FakeServer, queue: Queue, reactor: FactDerivationReactor, bus: str) -> None:
    """The reactor waits while the server is unavailable, then publishes the fact."""
    decision = approved_decision(7, bus)
    server.script("GetEvent", *[refusal(grpc.StatusCode.UNAVAILABLE, "LOG_UNAVAILABLE")] * 4, GetEventResponse(envelope=decision))
    server.script("PublishEvent", *[refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL", retry_after_ms=1)] * 4)
    await queue.add(executed(decision, 9))
    async with running(reactor):
        await until_equal(queue.ids, [])
    assert 5 == len(server.requests["PublishEvent"])
    assert 1 == len({request.envelope.event_id for request in server.requests["PublishEvent"]})
    assert 0 == reactor.statistics.failed


async def test_refused_fact_is_never_dropped(
    server: FakeServer, queue: Queue, soon_again: FactDerivationReactor, bus: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A refused fact is logged as an error, counted and left pending for another delivery; other facts are derived."""
    bad, good = approved_decision(7, bus), approved_decision(8, bus)
    known = {decision.event_id: decision for decision in (bad, good)}
    server.answers["GetEvent"] = lambda request: GetEventResponse(envelope=known[request.event_id])
    server.answers["PublishEvent"] = lambda request: (
        refusal(grpc.StatusCode.FAILED_PRECONDITION, "DERIVATION_MISMATCH") if request.envelope.fact.decision_id == bad.event_id else None
    )
    await queue.add(executed(bad, 9), executed(good, 10))
    async with running(soon_again):
        await until(lambda: soon_again.statistics.failed >= 2)
        await until_equal(queue.ids, ["9-0"])
    assert 1 == await queue.pending(GROUP)
    errors = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert "entry=9-0 could not be processed and stays pending: FAILED_PRECONDITION DERIVATION_MISMATCH" in errors[0]


async def test_forgotten_decision_is_found_in_its_trace(server: FakeServer, queue: Queue, reactor: FactDerivationReactor, bus: str) -> None:
    """A decision whose id the bus has forgotten is found in its trace."""
    decision = approved_decision(7, bus)
    server.script("GetEvent", refusal(grpc.StatusCode.NOT_FOUND, "EVENT_NOT_FOUND"))
    first_page = ListEventsResponse(envelopes=[approved_decision(3, bus)])
    first_page.next_page_token = "more"  # noqa: S105  a place in a list, not a secret
    server.script("ListEvents", first_page, ListEventsResponse(envelopes=[decision]))
    await queue.add(executed(decision, 9))
    async with running(reactor):
        await until_equal(queue.ids, [])
    first, second = server.requests["ListEvents"]
    assert ([EVENT_CATEGORY_DECISION_EVENT], "trace-1", 9, "") == (
        list(first.categories),
        first.trace_id,
        first.to_sequence_number,
        first.page_token,
    )
    assert "more" == second.page_token
    assert [decision.event_id] == [request.envelope.fact.decision_id for request in server.requests["PublishEvent"]]


async def test_unknown_decision_is_never_dropped(server: FakeServer, queue: Queue, soon_again: FactDerivationReactor, bus: str) -> None:
    """An execution whose decision is not found is counted as failed and left pending."""
    server.answers["GetEvent"] = lambda _: refusal(grpc.StatusCode.NOT_FOUND, "EVENT_NOT_FOUND")
    await queue.add(executed(approved_decision(7, bus), 9))
    async with running(soon_again):
        await until(lambda: soon_again.statistics.failed >= 2)
    assert ["9-0"] == await queue.ids()


async def test_many_reactors_many_executions(server: FakeServer, queue: Queue, client: GavelClient, redis_url: str, bus: str) -> None:
    """Several reactors share a queue: the fact of every execution is published and the queue is emptied."""
    decisions = [approved_decision(number, bus) for number in range(1, 41)]
    known = {decision.event_id: decision for decision in decisions}
    server.answers["GetEvent"] = lambda request: GetEventResponse(envelope=known[request.event_id])
    await queue.add(*(executed(decision, 100 + decision.sequence_number) for decision in decisions))
    first, second = (FactDerivationReactor(client, redis_url=redis_url, concurrency=4) for _ in range(2))
    async with running(first), running(second):
        await until_equal(queue.ids, [])
    assert known.keys() == {request.envelope.fact.decision_id for request in server.requests["PublishEvent"]}
    assert 40 == first.statistics.processed + second.statistics.processed


DERIVING = """\
gavel: v1
rule_set: refunds
version: 3
actions: {refund.create: {params: {type: object}}}
rules: [{id: fine, action: refund.create, priority: 1, when: 'true', effect: approve}]
derivations:
  - {id: refunded, version: 2, on: {action: refund.create, status: SUCCESS}, key: order.refunded, value: execution.attempt}
"""


def decided(sequence_number: int, bus: str, rule_set: CompiledRuleSet) -> Envelope:
    """An approval by a rule set."""
    decision = approved_decision(sequence_number, bus)
    decision.decision.action_type = "refund.create"
    decision.decision.policy_id = rule_set.policy_id
    decision.decision.policy_version = rule_set.version
    decision.decision.rule_set_digest = rule_set.digest
    return decision


async def test_rule_set_is_read_once(server: FakeServer, queue: Queue, reactor: FactDerivationReactor, bus: str) -> None:
    """The derivations of the decision's rule set apply; it is read once, by policy and version."""
    rule_set = compile_rule_set(DERIVING)
    decision = decided(7, bus, rule_set)
    server.script("GetEvent", GetEventResponse(envelope=decision), GetEventResponse(envelope=decision))
    server.script("GetRuleSet", GetRuleSetResponse(document=DERIVING, canonical_json=rule_set.canonical_json))
    executions = [executed(decision, number) for number in (9, 10)]
    async with running(reactor):
        for execution in executions:
            await queue.add(execution)
        await until_equal(queue.ids, [])
    published = [request.envelope.fact for request in server.requests["PublishEvent"]]
    rules = [(fact.derivation_rule_id, fact.derivation_rule_version) for fact in published]
    assert sorted([("gavel.execution-status", 1), ("refunded", 2)] * 2) == sorted(rules)
    assert [("refunds", 3)] == [(request.policy_id, request.version) for request in server.requests["GetRuleSet"]]


async def test_rule_set_with_another_digest_derives_nothing(
    server: FakeServer, queue: Queue, reactor: FactDerivationReactor, bus: str
) -> None:
    """A rule set with another digest than the decision's derives nothing; the execution stays pending and counts as failed."""
    rule_set = compile_rule_set(DERIVING)
    decision = decided(7, bus, compile_rule_set(DERIVING.replace("order.refunded", "order.other")))
    server.script("GetEvent", GetEventResponse(envelope=decision))
    server.script("GetRuleSet", GetRuleSetResponse(document=DERIVING, canonical_json=rule_set.canonical_json))
    await queue.add(executed(decision, 9))
    async with running(reactor):
        await until(lambda: reactor.statistics.failed > 0)
    assert [] == server.requests["PublishEvent"]
