"""Proposal loops that meet other work: conflicts, competing proposals, adoption, repeated and keyed runs."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.proposal_pb2 import Proposal
from gavel_client import (
    FactNeed,
    GavelClient,
    GavelError,
    LoopResult,
    ProposalLoop,
    RunKeyError,
    StopReason,
    observation_envelope,
    reference,
)
from gavel_client.agents.run_ids import next_event_id

from tests.integration.services.agents.loops import RULES, Sources, codes, draft
from tests.integration.services.world import AGENT, Clock, World, running_world


class HeldClock(Clock):
    """A clock that stands still until `let_go`."""

    def __init__(self) -> None:
        super().__init__()
        self._let_go_at_s: float | None = None

    def let_go(self) -> None:
        """Let the clock run."""
        self._let_go_at_s = time.monotonic()

    def __call__(self) -> int:
        """Return the time, in milliseconds since the epoch."""
        return self.now_ms + (0 if self._let_go_at_s is None else int((time.monotonic() - self._let_go_at_s) * 1000))


async def run_during_approval(world: World, decision_ttl_ms: int) -> tuple[Sources, asyncio.Task[LoopResult]]:
    """Return a loop's sources and its run, after its first refusal: another approval holds the key and lapses soon."""
    await world.activate(RULES.replace("decision_ttl_ms: 60000", f"decision_ttl_ms: {decision_ttl_ms}"))
    client = GavelClient(world.channel)
    sources = Sources(client)
    assert (await ProposalLoop(client, sources.providers).run(draft())).approved
    (status,) = await sources.status(FactNeed("order/1", (), "elsewhere", ""))
    loop = ProposalLoop(client, sources.providers, backoff_initial_ms=5, backoff_maximum_ms=20)
    before = await world.head()
    running = asyncio.create_task(loop.run(draft(based_on_events=[reference(status)])))
    while await world.head() == before:  # noqa: ASYNC110  # until the rejection the approval must not lapse
        await asyncio.sleep(0.001)
    return sources, running


async def test_conflict_costs_one_rejection() -> None:
    """While another approval holds the key, the loop only preflights, which adds no rejection; afterwards one proposal suffices."""
    clock = HeldClock()
    async with running_world(clock=clock) as world:
        _, running = await run_during_approval(world, decision_ttl_ms=1_000)
        clock.let_go()
        result = await running
        assert (StopReason.APPROVED, ["CONFLICTING_DECISION", ""]) == (result.reason, codes(result)), result.detail
        assert result.rounds[0].paused_ms > 0


async def test_conflict_that_ends_before_its_delay() -> None:
    """Other work of the same trace is not adopted; if it ends before `retry_after_ms` have passed, the loop goes on at once."""
    async with running_world(clock=HeldClock()) as world:
        await world.activate(RULES)
        client = GavelClient(world.channel)
        sources = Sources(client)
        holder = await ProposalLoop(client, sources.providers).run(draft(trace_id="refund-1"))
        (status,) = await sources.status(FactNeed("order/1", (), "elsewhere", ""))
        other = draft(amount=11.0, trace_id="refund-1", based_on_events=[reference(status)])
        before = await world.head()
        running = asyncio.create_task(ProposalLoop(client, sources.providers, deadline_ms=30_000).run(other))
        while await world.head() < before + 2:  # noqa: ASYNC110  # it waits once its refusal is in the log
            await asyncio.sleep(0.001)
        assert holder.decision is not None
        await client.revoke_decision(holder.decision.event_id, revoked_by="ada", reason="another amount")
        result = await running
        assert (StopReason.APPROVED, ["CONFLICTING_DECISION", ""]) == (result.reason, codes(result)), result.detail
        refusal = result.rounds[0].decision
        assert refusal is not None
        assert refusal.decision.retry_hint.retry_after_ms > 30_000


async def test_conflict_beyond_the_deadline_ends_the_loop(client: GavelClient) -> None:
    """If the conflicting work goes on until the deadline of the loop or the run, the run ends with that reason and no second proposal."""
    sources = Sources(client)
    assert (await ProposalLoop(client, sources.providers).run(draft())).approved
    (status,) = await sources.status(FactNeed("order/1", (), "elsewhere", ""))
    result = await ProposalLoop(client, sources.providers, deadline_ms=500).run(draft(based_on_events=[reference(status)]))
    assert (StopReason.DEADLINE, ["CONFLICTING_DECISION"]) == (result.reason, codes(result))
    other = draft(based_on_events=[reference(status)], trace_id="another-run")
    result = await ProposalLoop(client, sources.providers, deadline_ms=3_600_000).run(other, deadline_ms=500)
    assert (StopReason.DEADLINE, ["CONFLICTING_DECISION"]) == (result.reason, codes(result))


async def test_evidence_that_grows_stale_during_a_conflict_is_fetched_again() -> None:
    """Evidence that grows stale while the key is held is fetched again before the next proposal, without a rejection."""
    clock = HeldClock()
    async with running_world(clock=clock) as world:
        sources, running = await run_during_approval(world, decision_ttl_ms=50)
        sources.needs.clear()
        clock.now_ms += 60_001
        result = await running
        assert (StopReason.APPROVED, ["CONFLICTING_DECISION", ""]) == (result.reason, codes(result)), result.detail
        assert {"order/1", "customer/7"} == {need.subject for need in sources.needs}


async def test_second_run_waits_for_a_competing_proposal_of_its_trace() -> None:
    """A second run in the trace of one that was aborted in a contest gets the decision on the competing proposal after one rejection."""
    clock = HeldClock()
    async with running_world(clock=clock) as world:
        contested = RULES.replace("min_trust: 2", "min_trust: 3").replace("decision_ttl_ms: 60000", "contest_window_ms: 1000")
        await world.activate(contested)
        client = GavelClient(world.channel)
        sources = Sources(client)
        (status,) = await sources.status(FactNeed("order/1", (), "refund-1", ""))
        await client.publish_event(
            observation_envelope("customer/7", AGENT, source_tool="fraud-mcp", evidence=status, extracted_fields={"customer.score": 0.1})
        )
        second: dict[str, Any] = {"trace_id": "refund-1", "based_on_events": [reference(status)]}
        before = await world.head()
        competing = draft(priority=1, causation_id=status.event_id, **second)
        broken_off = asyncio.create_task(client.submit_proposal(competing))
        while await world.head() == before:  # noqa: ASYNC110  # it competes once it is in the log
            await asyncio.sleep(0.001)
        running = asyncio.create_task(ProposalLoop(client, sources.providers, proposals_max=1).run(draft(priority=2, **second)))
        while await world.head() < before + 3:  # noqa: ASYNC110  # the repetition and its refusal are in the log
            await asyncio.sleep(0.001)
        clock.let_go()
        result = await running
        decision = (await broken_off).decision
        assert (StopReason.APPROVED, ["DUPLICATE_PROPOSAL", ""]) == (result.reason, codes(result)), result.detail
        assert (competing.event_id, decision) == (result.rounds[-1].proposal.event_id, result.decision)


async def test_second_run_adopts_the_approval_of_its_trace(client: GavelClient) -> None:
    """If an approval of its own trace holds the key, a second run returns that approval."""
    sources = Sources(client)
    first = await ProposalLoop(client, sources.providers).run(draft(trace_id="refund-1"))
    second = await ProposalLoop(client, sources.providers).run(draft(trace_id="refund-1"))
    assert (StopReason.APPROVED, ["NO_FACT_INPUT", "CONFLICTING_DECISION", ""]) == (second.reason, codes(second)), second.detail
    assert first.decision == second.decision


async def test_a_run_with_a_key_adopts_nothing() -> None:
    """A run with a run_key waits while equal work of its trace holds the key or competes, and gets a decision of its own."""
    clock = HeldClock()
    async with running_world(clock=clock) as world:
        await world.activate(RULES.replace("decision_ttl_ms: 60000", "decision_ttl_ms: 1000\n    contest_window_ms: 500"))
        client = GavelClient(world.channel)
        sources = Sources(client)
        loop = ProposalLoop(client, sources.providers, backoff_initial_ms=5, backoff_maximum_ms=20)
        clock.let_go()
        runs = [asyncio.create_task(loop.run(draft(trace_id="refund-1"), run_key=key)) for key in ("turn-1", "turn-2")]
        first, second = await asyncio.gather(*runs)
        assert [StopReason.APPROVED] * 2 == [first.reason, second.reason], (first.detail, second.detail)
        assert first.decision != second.decision


async def test_adoption_during_a_conflict_is_repeated() -> None:
    """A loop that waits for a key adopts an approval of its own work; a repeated run gets it too, after that work has ended."""
    clock = HeldClock()
    async with running_world(clock=clock) as world:
        await world.activate(RULES.replace("decision_ttl_ms: 60000", "decision_ttl_ms: 1000"))
        client = GavelClient(world.channel)
        sources = Sources(client)
        assert (await ProposalLoop(client, sources.providers).run(draft(amount=11.0))).approved
        (status,) = await sources.status(FactNeed("order/1", (), "elsewhere", ""))
        waiting = draft(trace_id="refund-2", based_on_events=[reference(status)])
        before = await world.head()
        loop = ProposalLoop(client, sources.providers, backoff_initial_ms=5, backoff_maximum_ms=20)
        running = asyncio.create_task(loop.run(waiting))
        while await world.head() < before + 2:  # noqa: ASYNC110  # it waits once its refusal is in the log
            await asyncio.sleep(0.001)
        clock.now_ms += 1_001
        other = draft(trace_id="refund-2", based_on_events=[reference(status)], confidence=0.7)
        approval = (await client.submit_proposal(other)).decision
        result = await running
        assert (StopReason.APPROVED, approval) == (result.reason, result.decision), result.detail
        clock.now_ms += 1_001
        before = await world.head()
        repeated = await loop.run(waiting)
        assert (StopReason.APPROVED, approval) == (repeated.reason, repeated.decision), repeated.detail
        assert before == await world.head() - 1  # the expiry


async def test_run_key_takes_the_recorded_proposal(client: GavelClient) -> None:
    """Under one run_key another proposal for the same work gets the first decision; other work raises RunKeyError."""
    sources = Sources(client)
    loop = ProposalLoop(client, sources.providers)
    first = await loop.run(draft(confidence=0.5), run_key="task-1")
    sources.needs.clear()
    second = await loop.run(draft(confidence=0.9), run_key="task-1")
    assert (first.decision, [], 2) == (second.decision, sources.needs, len(second.rounds))
    with pytest.raises(RunKeyError, match="another subject and params"):
        await loop.run(draft("order/2", amount=11.0), run_key="task-1")
    # Another producer has run_keys of its own.
    foreign = draft("order/3")
    foreign.producer.id = "agent-2"
    assert first.decision != (await loop.run(foreign, run_key="task-1")).decision


async def test_event_under_the_id_of_the_next_step_is_not_taken(client: GavelClient) -> None:
    """An event of another producer under the event_id of the next proposal is not taken for the run's own step."""
    sources = Sources(client)
    first = draft()
    rejection = (await client.submit_proposal(first)).decision
    foreign = draft(event_id=next_event_id(rejection.event_id), causation_id=rejection.event_id)
    foreign.producer.id = "agent-2"
    await client.submit_proposal(foreign)
    with pytest.raises(GavelError, match="is not a step of the run"):
        await ProposalLoop(client, sources.providers).run(first)


async def test_interrupted_run_calls_no_tool_again(client: GavelClient) -> None:
    """A run with more proposals allowed continues an earlier one that used up its own, without another call of a provider."""
    sources = Sources(client)
    first = draft(amount=500)
    short = await ProposalLoop(client, sources.providers, proposals_max=2).run(first)
    assert (StopReason.BUDGET, ["NO_FACT_INPUT", "NO_RULE_MATCHED"]) == (short.reason, codes(short))
    sources.needs.clear()

    def smaller(envelope: Envelope, _: Envelope) -> Proposal:
        changed = Proposal()
        changed.CopyFrom(envelope.proposal)
        changed.params["amount"] = 50.0
        return changed

    result = await ProposalLoop(client, sources.providers, revise=smaller).run(first)
    assert (StopReason.APPROVED, ["NO_FACT_INPUT", "NO_RULE_MATCHED", ""]) == (result.reason, codes(result)), result.detail
    assert [] == sources.needs
