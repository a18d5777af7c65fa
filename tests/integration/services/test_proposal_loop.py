"""The agents' loop against a real server: what it proposes, publishes and waits for, and where it ends (seeds 002 §5.6)."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import grpc
import pytest
from gavel.v1 import common_pb2
from gavel.v1.common_pb2 import EventCategory
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.proposal_pb2 import Proposal
from gavel_client import (
    FactNeed,
    FactProviders,
    GavelClient,
    GavelError,
    LoopResult,
    ProposalLoop,
    ProviderError,
    StopReason,
    SyncGavelClient,
    SyncProposalLoop,
    ToolReading,
    fact_envelope,
    observation_envelope,
    proposal_envelope,
    reference,
)

from tests.integration.services.world import AGENT, ORDERS, Clock, World, running_world

RULES = """
gavel: v1
rule_set: refunds
version: 1
actions:
  refund.create:
    params:
      type: object
      required: [amount]
      additionalProperties: false
      properties: {amount: {type: number}}
    facts:
      status: {key: order.status, type: string, max_age_ms: 60000, sources: [orders-db]}
      score: {key: customer.score, subject: '"customer/7"', type: number, min_trust: 2, max_age_ms: 60000, sources: [fraud-mcp]}
    decision_ttl_ms: 60000
    rejection_limit: 9
rules:
  - {id: large, action: refund.create, priority: 9, when: params.amount > 1000, effect: review, reason_code: LARGE_REFUND}
  - {id: fraud, action: refund.create, priority: 5, when: facts.score > 0.9, effect: reject, reason_code: FRAUD}
  - {id: small, action: refund.create, priority: 1, when: params.amount <= 100, effect: approve}
"""

TOOL_EVENTS = {EventCategory.Value("EVENT_CATEGORY_TOOL_CALL_EVENT"), EventCategory.Value("EVENT_CATEGORY_TOOL_RESULT_EVENT")}


@pytest.fixture
async def ruled(world: World) -> World:
    """A server with the rule set of this file in force."""
    await world.activate(RULES)
    return world


@pytest.fixture
def client(ruled: World) -> GavelClient:
    """A client of that server."""
    return GavelClient(ruled.channel)


class Sources:
    """Providers of the two facts that the rule set wants, and what they were asked."""

    def __init__(self, client: GavelClient, score: object = 0.1) -> None:
        self.needs: list[FactNeed] = []
        self.providers = FactProviders()
        self._client = client
        self._score = score
        self.providers.facts("order.status", source="orders-db")(self.status)
        self.providers.tool("customer.score", tool_name="fraud-mcp")(self.score)

    async def status(self, need: FactNeed) -> Sequence[Envelope]:
        """Have the order database publish the status."""
        self.needs.append(need)
        fact = fact_envelope(need.subject, ORDERS, key="order.status", value="delivered", trace_id=need.trace_id)
        return [(await self._client.publish_event(fact)).envelope]

    async def score(self, need: FactNeed) -> ToolReading:
        """Ask the fraud tool."""
        self.needs.append(need)
        return ToolReading({"score": self._score, "of": need.subject}, {"customer.score": self._score}, summary="scored")


def draft(subject: str = "order/1", amount: float = 10.0, **fields: Any) -> Envelope:
    """Return a first proposal that cites nothing."""
    return proposal_envelope(subject, AGENT, action_type="refund.create", params={"amount": amount}, max_fact_age_ms=60_000, **fields)


def codes(result: LoopResult) -> list[str]:
    """Return the reason codes of a loop's decisions."""
    return [one.decision.decision.reason_code for one in result.rounds if one.decision is not None]


async def test_what_the_hint_names_is_fetched_and_the_second_proposal_is_approved(ruled: World, client: GavelClient) -> None:
    """One rejection names everything; the loop gets it, with evidence, and proposes again, caused by the rejection."""
    sources = Sources(client)
    result = await ProposalLoop(client, sources.providers).run(draft())
    assert (StopReason.APPROVED, ["NO_FACT_INPUT", ""]) == (result.reason, codes(result)), result.detail
    assert {("order/1", ("order.status",)), ("customer/7", ("customer.score",))} == {(need.subject, need.keys) for need in sources.needs}
    first, second = result.rounds
    assert first.decision is not None
    assert first.decision.event_id == second.proposal.causation_id
    assert first.decision.trace_id == second.proposal.trace_id
    observed = [one for one in first.published if one.WhichOneof("payload") == "observation"]
    stated = [one for one in first.published if one.WhichOneof("payload") == "fact"]
    assert {one.event_id for one in (*stated, *observed)} == {one.event_id for one in second.proposal.proposal.based_on_events}
    assert [common_pb2.TRUST_TIER_2_TOOL_OBSERVATION] == [one.observation.trust_tier for one in observed]
    log = (await client.list_events(trace_id=first.decision.trace_id)).envelopes
    tools = [one for one in log if one.event_category in TOOL_EVENTS]
    assert [first.decision.event_id, tools[0].event_id] == [one.causation_id for one in tools]
    assert tools[1].tool_result.content_hash == observed[0].observation.evidence_hash


async def test_what_is_recorded_already_is_only_cited(client: GavelClient) -> None:
    """A proposal that forgot to cite what the log holds costs no provider a call."""
    sources = Sources(client)
    assert (await ProposalLoop(client, sources.providers).run(draft())).approved
    await sources.status(FactNeed("order/2", (), "elsewhere", ""))
    sources.needs.clear()
    result = await ProposalLoop(client, sources.providers).run(draft("order/2"))
    assert (StopReason.APPROVED, ["NO_FACT_INPUT", ""], []) == (result.reason, codes(result), sources.needs)


async def test_a_superseded_citation_is_mended_without_a_provider(client: GavelClient) -> None:
    """Who cites an older version than the one that counts has the newer one cited for it."""
    sources = Sources(client)
    assert (await ProposalLoop(client, sources.providers).run(draft())).approved
    (old,), (new,) = [await sources.status(FactNeed("order/2", (), "elsewhere", "")) for _ in range(2)]
    sources.needs.clear()
    result = await ProposalLoop(client, sources.providers).run(draft("order/2", based_on_events=[reference(old)]))
    assert (StopReason.APPROVED, ["FACT_SUPERSEDED", ""], []) == (result.reason, codes(result), sources.needs)
    assert reference(new) in result.rounds[1].proposal.proposal.based_on_events


async def test_a_run_that_broke_off_is_taken_up_again(client: GavelClient) -> None:
    """An agent that died with the evidence got and not cited proposes once more in its trace: what is there is cited, no provider asked."""
    sources = Sources(client)
    assert (await ProposalLoop(client, sources.providers).run(draft())).approved
    note = (await client.publish_event(fact_envelope("order/2", ORDERS, key="order.note", value="call first"))).envelope
    again: dict[str, Any] = {"trace_id": "refund-2", "based_on_events": [reference(note)]}
    broken_off = await ProposalLoop(client, FactProviders()).run(draft("order/2", **again))
    assert (StopReason.NO_PROVIDER, ["NEED_MORE_FACTS"]) == (broken_off.reason, codes(broken_off))
    await sources.status(FactNeed("order/2", (), "refund-2", ""))
    sources.needs.clear()
    result = await ProposalLoop(client, sources.providers).run(draft("order/2", **again))
    assert (StopReason.APPROVED, ["DUPLICATE_PROPOSAL", ""], []) == (result.reason, codes(result), sources.needs)


async def test_what_the_rules_refused_is_not_put_to_them_again(client: GavelClient) -> None:
    """A repetition of what the rules refused is not proposed with other citations: a preflight says that it would not help."""
    sources = Sources(client, score=0.95)
    refused = await ProposalLoop(client, sources.providers).run(draft(trace_id="refund-1"))
    assert (StopReason.NEEDS_REVISION, ["NO_FACT_INPUT", "FRAUD"]) == (refused.reason, codes(refused))
    repeated = draft(trace_id="refund-1", based_on_events=refused.rounds[-1].proposal.proposal.based_on_events)
    await client.publish_event(fact_envelope("order/1", ORDERS, key="order.note", value="call first"))
    result = await ProposalLoop(client, sources.providers).run(repeated)
    assert (StopReason.NEEDS_REVISION, ["DUPLICATE_PROPOSAL"]) == (result.reason, codes(result))


async def test_a_provider_that_met_a_restart_is_asked_again(client: GavelClient) -> None:
    """A server that is away when a provider publishes ends no run: the provider is asked until it is back."""
    sources, providers = Sources(client), FactProviders()
    providers.tool("customer.score", tool_name="fraud-mcp")(sources.score)
    tries: list[FactNeed] = []

    @providers.facts("order.status", source="orders-db")
    async def status(need: FactNeed) -> Sequence[Envelope]:
        tries.append(need)
        if len(tries) < 3:
            raise GavelError(grpc.StatusCode.UNAVAILABLE, "SHUTTING_DOWN", "the server is draining")
        return await sources.status(need)

    result = await ProposalLoop(client, providers, backoff_initial_ms=1).run(draft())
    assert (StopReason.APPROVED, 3) == (result.reason, len(tries)), result.detail


async def test_a_fact_from_long_ago_is_no_answer(client: GavelClient) -> None:
    """A provider that dates facts by their last change has nothing fresh: the loop says so, and spares the trace another rejection."""
    sources, providers = Sources(client), FactProviders()
    providers.tool("customer.score", tool_name="fraud-mcp")(sources.score)

    @providers.facts("order.status", source="orders-db")
    async def status(need: FactNeed) -> list[Envelope]:
        changed_at = datetime(2000, 1, 1, tzinfo=UTC)
        fact = fact_envelope(need.subject, ORDERS, key="order.status", value="delivered", occurred_at=changed_at)
        return [(await client.publish_event(fact)).envelope]

    result = await ProposalLoop(client, providers).run(draft())
    assert (StopReason.PROVIDER_FAILED, ["NO_FACT_INPUT"]) == (result.reason, codes(result))
    (failure,) = result.rounds[0].failures
    assert "TOO_OLD" == failure.code
    assert re.fullmatch("what the provider has of order.status is [0-9]+ ms old; at most 60000 ms are wanted", failure.message)


async def test_what_a_hint_could_not_name_yet_is_fetched_next(world: World) -> None:
    """Whose score is needed follows from the order's customer: the loop gets the customer, then the score, then the approval."""
    rules = RULES.replace("""'"customer/7"'""", """'"customer/" + facts.owner'""")
    owner = "      owner: {key: order.customer, type: string, max_age_ms: 60000, sources: [orders-db]}\n"
    await world.activate(rules.replace("      score:", owner + "      score:"))
    client = GavelClient(world.channel)
    sources = Sources(client)

    @sources.providers.facts("order.customer", source="orders-db")
    async def customer(need: FactNeed) -> list[Envelope]:
        fact = fact_envelope(need.subject, ORDERS, key="order.customer", value="9", trace_id=need.trace_id)
        return [(await client.publish_event(fact)).envelope]

    result = await ProposalLoop(client, sources.providers).run(draft())
    assert (StopReason.APPROVED, ["NO_FACT_INPUT", "NEED_MORE_FACTS", ""]) == (result.reason, codes(result)), result.detail
    assert ["order/1", "customer/9"] == [need.subject for need in sources.needs]


async def test_without_a_provider_nothing_is_proposed_in_vain(client: GavelClient) -> None:
    """Where nobody can get some of what the hint names, nobody is asked and nothing is counted; a tool is no source of tier 1."""
    sources = Sources(client)
    lacking = FactProviders()
    lacking.tool("customer.score", tool_name="fraud-mcp")(sources.score)
    lacking.tool("order.status", tool_name="shop-mcp")(sources.score)
    result = await ProposalLoop(client, lacking).run(draft())
    assert (StopReason.NO_PROVIDER, "no provider suits order.status of order/1", 1) == (result.reason, result.detail, len(result.rounds))
    assert [] == sources.needs


@pytest.mark.parametrize(
    ("failure", "code", "tool_answered"),
    [
        (ProviderError("E_PERMISSION", "not for you"), "E_PERMISSION", False),
        (ZeroDivisionError("secret"), "PROVIDER_EXCEPTION", False),
        (ToolReading({"a": float("nan")}, {"customer.score": 1}), "INVALID_READING", False),
        (ToolReading({}, {"Customer Score": 1}), "INVALID_READING", True),
        (ToolReading({}, {"customer.name": "Ann"}), "NOT_ANSWERED", True),
        ("0.1", "INVALID_READING", False),
    ],
)
async def test_a_provider_that_fails_ends_the_loop_and_is_in_the_log(
    client: GavelClient, failure: object, code: str, tool_answered: bool
) -> None:
    """A failure is a tool result with its code, a stranger's text left out; no proposal follows that would be refused for it."""
    sources = Sources(client)

    async def fail(need: FactNeed) -> ToolReading:
        if isinstance(failure, Exception):
            raise failure
        return failure  # type: ignore[return-value]  # what a provider must not return

    providers = FactProviders()
    providers.facts("order.status")(sources.status)
    providers.tool("customer.score", tool_name="fraud-mcp")(fail)
    result = await ProposalLoop(client, providers).run(draft())
    assert (StopReason.PROVIDER_FAILED, 1) == (result.reason, len(result.rounds))
    assert [code] == [one.code for one in result.rounds[0].failures]
    assert "secret" not in result.detail
    log = (await client.list_events(trace_id=result.rounds[0].published[0].trace_id)).envelopes
    assert "secret" not in str(log)
    results = [one.tool_result for one in log if one.WhichOneof("payload") == "tool_result"]
    # What was read wrongly is no failure of the tool's.
    assert ["" if tool_answered else code] == [one.error_code for one in results]


async def test_the_agent_revises_what_the_rules_refuse(client: GavelClient) -> None:
    """A rule's refusal goes to `revise`, which changes the proposal; what it cites stays cited."""
    seen: list[str] = []

    def smaller(sent: Envelope, decision: Envelope) -> Proposal:
        seen.append(decision.decision.reason_code)
        changed = Proposal()
        changed.CopyFrom(sent.proposal)
        changed.params["amount"] = 50.0
        return changed

    result = await ProposalLoop(client, Sources(client).providers, revise=smaller).run(draft(amount=500))
    assert (StopReason.APPROVED, ["NO_FACT_INPUT", "NO_RULE_MATCHED", ""]) == (result.reason, codes(result))
    assert ["NO_RULE_MATCHED"] == seen
    assert result.decision is not None
    assert 50 == result.decision.decision.params["amount"]


def _bolder(sent: Envelope, _: Envelope) -> Proposal:
    """Change what the log does not tell two proposals apart by."""
    changed = Proposal()
    changed.CopyFrom(sent.proposal)
    changed.confidence = 1.0
    return changed


@pytest.mark.parametrize(
    ("revise", "reason"),
    [
        (None, StopReason.NEEDS_REVISION),
        (lambda *_: None, StopReason.NEEDS_REVISION),
        (lambda sent, _: sent.proposal, StopReason.NO_PROGRESS),
        (_bolder, StopReason.NO_PROGRESS),
    ],
)
async def test_without_a_revision_a_refusal_by_rules_ends_it(client: GavelClient, revise: Any, reason: StopReason) -> None:
    """No revise, one that gives up, and one that changes nothing that counts each end the loop before another rejection."""
    result = await ProposalLoop(client, Sources(client).providers, revise=revise).run(draft(amount=500))
    assert (reason, ["NO_FACT_INPUT", "NO_RULE_MATCHED"]) == (result.reason, codes(result))


async def test_a_review_ends_it(client: GavelClient) -> None:
    """Where a person has to decide, the loop stops, and so does the next one of the trace."""
    result = await ProposalLoop(client, Sources(client).providers).run(draft(amount=5000))
    assert (StopReason.REVIEW, ["NO_FACT_INPUT", "LARGE_REFUND"]) == (result.reason, codes(result))
    assert result.decision is not None
    again = await ProposalLoop(client, Sources(client).providers).run(draft(trace_id=result.decision.trace_id))
    assert (StopReason.REVIEW, ["UNDER_REVIEW"]) == (again.reason, codes(again))


async def test_what_cannot_be_retried_ends_it(client: GavelClient) -> None:
    """An action that no rule set governs is not proposed twice."""
    unknown = proposal_envelope("order/1", AGENT, action_type="moon.land", params={}, max_fact_age_ms=1000)
    result = await ProposalLoop(client, FactProviders()).run(unknown)
    assert (StopReason.NOT_RETRYABLE, ["NO_ACTIVE_POLICY"]) == (result.reason, codes(result))


async def test_the_budget_ends_it(client: GavelClient) -> None:
    """As many proposals as allowed, and not one more; before the last refusal nobody is asked in vain."""
    sources = Sources(client)
    result = await ProposalLoop(client, sources.providers, proposals_max=1).run(draft())
    assert (StopReason.BUDGET, 1, []) == (result.reason, len(result.rounds), sources.needs)


async def test_the_deadline_ends_a_slow_provider(client: GavelClient) -> None:
    """A provider that takes too long is cut off at the deadline; its tool call is answered in the log all the same."""
    sources = Sources(client)
    providers = FactProviders()
    providers.facts("order.status")(sources.status)

    @providers.tool("customer.score", tool_name="fraud-mcp")
    async def sleepy(need: FactNeed) -> ToolReading:
        await asyncio.Event().wait()
        raise AssertionError

    result = await ProposalLoop(client, providers, deadline_ms=1_500).run(draft())
    assert (StopReason.DEADLINE, 1) == (result.reason, len(result.rounds)), result.detail
    answers = [one.tool_result.error_code for one in result.rounds[0].published if one.WhichOneof("payload") == "tool_result"]
    assert ["E_TIMEOUT"] == answers


class HeldClock(Clock):
    """Time that stands still until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self._let_go_at_s: float | None = None

    def let_go(self) -> None:
        """Let time pass."""
        self._let_go_at_s = time.monotonic()

    def __call__(self) -> int:
        """Return the time, in milliseconds since the epoch."""
        return self.now_ms + (0 if self._let_go_at_s is None else int((time.monotonic() - self._let_go_at_s) * 1000))


async def meeting_an_approval(world: World, decision_ttl_ms: int) -> tuple[Sources, asyncio.Task[LoopResult]]:
    """Return a loop's sources, and its run once that was refused because another approval, which lapses so soon, holds the key."""
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


async def test_a_conflict_is_waited_out_with_one_rejection() -> None:
    """While another approval holds the key the loop only looks, which counts for nothing; once it has lapsed, one proposal is enough."""
    clock = HeldClock()
    async with running_world(clock=clock) as world:
        _, running = await meeting_an_approval(world, decision_ttl_ms=1_000)
        clock.let_go()
        result = await running
        assert (StopReason.APPROVED, ["CONFLICTING_DECISION", ""]) == (result.reason, codes(result)), result.detail
        assert result.rounds[0].paused_ms > 0


async def test_evidence_that_a_conflict_has_outlasted_is_got_before_the_next_proposal() -> None:
    """What has become too old while the key was held costs no rejection: it is got anew before anything is proposed."""
    clock = HeldClock()
    async with running_world(clock=clock) as world:
        sources, running = await meeting_an_approval(world, decision_ttl_ms=50)
        sources.needs.clear()
        clock.now_ms += 60_001
        result = await running
        assert (StopReason.APPROVED, ["CONFLICTING_DECISION", ""]) == (result.reason, codes(result)), result.detail
        assert {"order/1", "customer/7"} == {need.subject for need in sources.needs}


async def test_a_proposal_that_competes_already_is_waited_for_as_ones_own() -> None:
    """A run after one that broke off in a contest takes the decision on the proposal that waits: one rejection, and no proposal more."""
    clock = HeldClock()
    async with running_world(clock=clock) as world:
        contested = RULES.replace("min_trust: 2", "min_trust: 3").replace("decision_ttl_ms: 60000", "contest_window_ms: 1000")
        await world.activate(contested)
        client = GavelClient(world.channel)
        sources = Sources(client)
        (status,) = await sources.status(FactNeed("order/1", (), "refund-1", ""))
        await client.publish_event(
            observation_envelope("customer/7", AGENT, source_tool="fraud-mcp", extracted_fields={"customer.score": 0.1})
        )
        again: dict[str, Any] = {"trace_id": "refund-1", "based_on_events": [reference(status)]}
        before = await world.head()
        waiting = draft(priority=1, causation_id=status.event_id, **again)
        broken_off = asyncio.create_task(client.submit_proposal(waiting))
        while await world.head() == before:  # noqa: ASYNC110  # it competes once it is in the log
            await asyncio.sleep(0.001)
        running = asyncio.create_task(ProposalLoop(client, sources.providers, proposals_max=1).run(draft(priority=2, **again)))
        while await world.head() < before + 3:  # noqa: ASYNC110  # the repetition and its refusal are in the log
            await asyncio.sleep(0.001)
        clock.let_go()
        result = await running
        decision = (await broken_off).decision
        assert (StopReason.APPROVED, ["DUPLICATE_PROPOSAL", ""]) == (result.reason, codes(result)), result.detail
        assert (waiting.event_id, decision) == (result.rounds[-1].proposal.event_id, result.decision)


async def test_the_same_work_of_a_trace_is_not_approved_twice(client: GavelClient) -> None:
    """A run after one that got its approval, and died before it could say so, takes that approval: what holds the key is its own work."""
    sources = Sources(client)
    first = await ProposalLoop(client, sources.providers).run(draft(trace_id="refund-1"))
    again = await ProposalLoop(client, sources.providers).run(draft(trace_id="refund-1"))
    assert (StopReason.APPROVED, ["NO_FACT_INPUT", "CONFLICTING_DECISION", ""]) == (again.reason, codes(again)), again.detail
    assert first.decision == again.decision
    other = await ProposalLoop(client, sources.providers, deadline_ms=30_000).run(draft(amount=11.0, trace_id="refund-1"))
    assert (StopReason.DEADLINE, "CONFLICTING_DECISION") == (other.reason, codes(other)[-1])


async def test_a_pause_beyond_the_deadline_is_not_waited_for(client: GavelClient) -> None:
    """Where the hint's pause is longer than the time left, the loop ends at once and says so."""
    sources = Sources(client)
    assert (await ProposalLoop(client, sources.providers).run(draft())).approved
    (status,) = await sources.status(FactNeed("order/1", (), "elsewhere", ""))
    result = await ProposalLoop(client, sources.providers, deadline_ms=30_000).run(draft(based_on_events=[reference(status)]))
    assert (StopReason.DEADLINE, ["CONFLICTING_DECISION"], 0.0) == (result.reason, codes(result), result.rounds[0].paused_ms)


async def test_what_the_server_cannot_decide_is_raised(client: GavelClient) -> None:
    """A proposal that the contract does not allow is the caller's mistake, with everything that is wrong with it."""
    with pytest.raises(GavelError) as caught:
        await ProposalLoop(client, FactProviders()).run(draft(risk=7.0))
    assert ["envelope.proposal.risk"] == [violation.field for violation in caught.value.violations]


async def test_the_blocking_client_plays_the_same_loop(ruled: World) -> None:
    """Plain functions as providers and the blocking client come to the same end."""
    target = ruled.address

    def play() -> LoopResult:
        with SyncGavelClient(target) as client:
            providers = FactProviders()

            @providers.facts("order.status", source="orders-db")
            def status(need: FactNeed) -> list[Envelope]:
                fact = fact_envelope(need.subject, ORDERS, key="order.status", value="delivered", trace_id=need.trace_id)
                return [client.publish_event(fact).envelope]

            @providers.tool("customer.score", tool_name="fraud-mcp")
            def score(need: FactNeed) -> ToolReading:
                return ToolReading({"score": 0.1}, {"customer.score": 0.1})

            return SyncProposalLoop(client, providers).run(draft())

    result = await asyncio.to_thread(play)
    assert (StopReason.APPROVED, ["NO_FACT_INPUT", ""]) == (result.reason, codes(result)), result.detail


def test_each_loop_takes_its_own_client() -> None:
    """A client of the other kind is refused before anything is proposed."""
    with pytest.raises(TypeError, match="use SyncProposalLoop"):
        ProposalLoop(SyncGavelClient(), FactProviders())  # type: ignore[arg-type]  # the mistake
    with pytest.raises(TypeError, match="use ProposalLoop"):
        SyncProposalLoop(GavelClient(), FactProviders())  # type: ignore[arg-type]  # the mistake


def test_limits_must_make_sense() -> None:
    """A loop that may propose nothing, or has no time, is refused where it is made."""
    client = GavelClient()
    with pytest.raises(ValueError, match="proposals_max"):
        ProposalLoop(client, FactProviders(), proposals_max=0)
    with pytest.raises(ValueError, match="deadline_ms"):
        ProposalLoop(client, FactProviders(), deadline_ms=0)
    with pytest.raises(ValueError, match="fact key"):
        FactProviders().tool(tool_name="t")(lambda need: ToolReading({}, {}))
