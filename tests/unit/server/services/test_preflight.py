"""Preflight on a server that is behind the log, and with one invalid proposal in a batch. In virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from gavel.v1.arbitration_service_pb2 import BatchPreflightRequest, BatchPreflightResponse, PreflightRequest, PreflightResponse
from gavel.v1.decision_pb2 import OUTCOME_APPROVED
from gavel_client import GavelError
from gavel_rules.commands import SubmitProposal
from gavel_rules.events.proposal_view import ProposalView
from gavel_rules.language.rule_set import CompiledRuleSet
from gavel_server.bus.registry import BusRegistry
from gavel_server.bus.request import CommittedAnswer
from gavel_server.bus.sequencer import Sequencer
from gavel_server.compile.compiler import Compiler
from gavel_server.errors import ServiceError
from gavel_server.log import LogUnavailableError
from gavel_server.process import time_slice
from gavel_server.services.arbitration import Arbitration
from gavel_server.services.preflight import SLICE_TERMS, Preflight

from tests.support.calls import call_arbitration, call_context
from tests.support.driver import BUS, compile_cached, document, proposal_envelope
from tests.support.simulation.servers import Servers, execute, reason, record_event, with_servers
from tests.support.turns import other_turns


async def registry(sequencer: Sequencer) -> BusRegistry:
    """The buses of one server."""

    async def opened(name: str) -> Sequencer:
        return sequencer

    async def exists(name: str) -> bool:
        return True

    buses = BusRegistry(opened, exists)
    await buses.open(BUS)
    return buses


async def arbitration(sequencer: Sequencer) -> Arbitration:
    """The service of one server."""
    return Arbitration(await registry(sequencer), Compiler())


@with_servers
async def test_preflight_reads_cited_events_first(servers: Servers) -> None:
    """A proposal that cites another server's latest event gets the decision that a submission would get."""
    one, _ = await servers.start_with_rules()
    lagging, _ = await servers.start()
    service = await arbitration(lagging)
    first = await record_event(one, servers.fact("cancelled"))
    await lagging.wait_for(first.sequence_number, 1_000)
    fact = await record_event(one, servers.fact())
    request = PreflightRequest(envelope=proposal_envelope([fact], projection_version=fact.sequence_number))
    response = PreflightResponse.FromString(await call_arbitration(service, "Preflight", request))
    assert (OUTCOME_APPROVED, "") == (response.decision.outcome, response.decision.reason_code)
    assert fact.sequence_number == response.evaluated_at_sequence_number


@with_servers
async def test_projection_version_ahead_of_the_log_fails_one_item(servers: Servers) -> None:
    """A projection_version ahead of the log is the error of that item alone; the others get their decisions."""
    sequencer, _ = await servers.start_with_rules()
    service = await arbitration(sequencer)
    fact = await record_event(sequencer, servers.fact())
    request = BatchPreflightRequest(
        envelopes=[proposal_envelope([fact]), proposal_envelope([fact], projection_version=1_000), proposal_envelope([fact])]
    )
    response = BatchPreflightResponse.FromString(await call_arbitration(service, "BatchPreflight", request))
    assert ["decision", "error", "decision"] == [result.WhichOneof("result") for result in response.results]
    alone = PreflightRequest(envelope=request.envelopes[1])
    with pytest.raises(ServiceError) as error_info:
        await call_arbitration(service, "Preflight", alone)
    assert "INVALID_REQUEST" == reason(error_info.value)


@with_servers
async def test_reading_on_ends_without_the_log_and_at_a_stop(servers: Servers) -> None:
    """Reading newer events returns also while the log is unavailable and while the server stops."""
    sequencer, log = await servers.start()
    other, _ = await servers.start()
    fact = await record_event(other, servers.fact())
    await sequencer.read_on()
    assert fact.sequence_number == sequencer.head.sequence_number
    log.head_error = LogUnavailableError("connection refused")
    await asyncio.wait_for(sequencer.read_on(), 5)
    await asyncio.wait_for(sequencer.read_on(), 5)
    log.head_error = None
    await asyncio.sleep(1)
    reading = asyncio.create_task(sequencer.read_on())
    await asyncio.sleep(0)
    await sequencer.stop()
    await asyncio.wait_for(reading, 5)
    await asyncio.wait_for(sequencer.read_on(), 5)


@with_servers
async def test_many_due_timers(servers: Servers) -> None:
    """A preflight fires a few due timers by itself. If more stay due, it is refused after a while with the reason of the bus."""
    sequencer, log = await servers.start_with_rules()
    buses = await registry(sequencer)
    fact = await record_event(sequencer, servers.fact())
    approved = await execute(sequencer, SubmitProposal(ProposalView(servers.admit_envelope(proposal_envelope([fact])))))
    assert isinstance(approved, CommittedAnswer)
    log.head_error = LogUnavailableError("connection refused")
    sequencer.replica.handle_log_error(log.head_error)
    await asyncio.sleep(60)
    assert 1 == sequencer.replica.state.due_count(sequencer.now_ms())
    request = PreflightRequest(envelope=proposal_envelope([fact], trace_id="trace-2"))
    await Preflight(buses, Compiler()).preflight(request.SerializeToString(), call_context())
    strict = Preflight(buses, Compiler(), due_timers_max=0)
    with pytest.raises(ServiceError) as refused:
        await strict.preflight(request.SerializeToString(), call_context())
    assert "LOG_UNAVAILABLE" == reason(refused.value)
    log.head_error = None
    await asyncio.sleep(10)
    await strict.preflight(request.SerializeToString(), call_context())
    assert 0 == sequencer.replica.state.due_count(sequencer.now_ms())


@with_servers
async def test_large_answers_of_a_batch(servers: Servers) -> None:
    """Decisions beyond the limit of an answer are an error that names it; those before are as they are."""
    sequencer, _ = await servers.start_with_rules()
    buses = await registry(sequencer)
    fact = await record_event(sequencer, servers.fact())
    request = BatchPreflightRequest(envelopes=[proposal_envelope([fact]) for _ in range(30)]).SerializeToString()
    whole = BatchPreflightResponse.FromString(await Preflight(buses, Compiler()).batch_preflight(request, call_context()))
    limited = Preflight(buses, Compiler(), answer_bytes_max=4 * whole.results[0].decision.ByteSize() + 100)
    response = BatchPreflightResponse.FromString(await limited.batch_preflight(request, call_context()))
    assert ["decision"] * 4 + ["error"] * 26 == [result.WhichOneof("result") for result in response.results]
    assert {"QUEUE_FULL"} == {GavelError.from_status(result.error).reason for result in response.results[4:]}


@with_servers
async def test_batch_of_slow_proposals_lets_other_tasks_run(servers: Servers) -> None:
    """Writes are committed between the decisions of a slow batch; each decision has the state_version that it was made on."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(time_slice, "SLICE_SECONDS", -1.0)  # every proposal takes longer
        sequencer, _ = await servers.start_with_rules()
        service = await arbitration(sequencer)
        fact = await record_event(sequencer, servers.fact())
        request = BatchPreflightRequest(envelopes=[proposal_envelope([fact], trace_id=f"trace-{number}") for number in range(50)])
        trying = asyncio.create_task(call_arbitration(service, "BatchPreflight", request))
        written = 0
        while not trying.done():
            await record_event(sequencer, servers.fact(subject="order/2"))
            written += 1
        decisions = [result.decision for result in BatchPreflightResponse.FromString(await trying).results]
    versions = [decision.state_version for decision in decisions]
    assert written > 1
    assert [OUTCOME_APPROVED] * 50 == [decision.outcome for decision in decisions]
    assert sorted(versions) == versions
    assert versions[0] < versions[-1]


class Override:
    """A compiler that has compiled one document."""

    def __init__(self, rule_set: CompiledRuleSet) -> None:
        self._rule_set = rule_set

    async def compile(self, *_: str) -> CompiledRuleSet:
        """Return the rule set."""
        return self._rule_set


@with_servers
async def test_other_tasks_run_while_rules_are_explained(servers: Servers) -> None:
    """An explanation of many long conditions, each of whose terms is compiled, takes turns with other tasks."""
    rules, terms = 20, 30
    condition = " || ".join(f"params.amount == {number}.5" for number in range(terms))
    text = document({}, [{"id": f"r{number}", "when": condition, "effect": "reject", "reason_code": "X"} for number in range(rules)])
    sequencer, _ = await servers.start_with_rules()
    compiler: Any = Override(compile_cached(text))
    service = Preflight(await registry(sequencer), compiler)
    request = PreflightRequest(envelope=proposal_envelope(), rule_set_override="given", explain=True)
    async with other_turns() as turns:
        response = PreflightResponse.FromString(await service.preflight(request.SerializeToString(), call_context("Preflight")))
    assert rules == len(response.explanations)
    assert turns.count >= rules * terms / SLICE_TERMS
