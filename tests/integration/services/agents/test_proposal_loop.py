"""The agents' loop against a real server: proposals, publications, pauses and reasons to stop (constitution §5.6)."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any

import grpc
import pytest
from gavel.v1 import common_pb2
from gavel.v1.common_pb2 import EventCategory
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.fact_pb2 import REVIEW_VERDICT_APPROVE, REVIEW_VERDICT_REJECT, ReviewVerdict
from gavel.v1.proposal_pb2 import Proposal
from gavel.v1.tool_pb2 import ToolContract, ToolProvider
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
    proposal_envelope,
    reference,
)
from gavel_client.agents import deadline
from gavel_client.tools import FunctionProvider, ToolRuntime

from tests.integration.services.agents.loops import RULES, Sources, codes, draft
from tests.integration.services.world import AGENT, ORDERS, World

REVOCATION_ID = "7b7a1a52-8d0c-4d8e-9d75-0f3d0e6f1f55"
TOOL_EVENTS = {EventCategory.Value("EVENT_CATEGORY_TOOL_CALL_EVENT"), EventCategory.Value("EVENT_CATEGORY_TOOL_RESULT_EVENT")}

DEADLINE_MS = 60_000


class Clock:
    """Stands in for the module `time` where deadlines are measured: its time passes only when a test says so."""

    ms = 0.0

    def monotonic(self) -> float:
        """Return the time in seconds."""
        return self.ms / 1000


async def test_loop_fetches_the_hint_and_is_approved(refund_world: World, client: GavelClient) -> None:
    """One rejection names all missing facts; the loop fetches them with evidence and proposes again, caused by the rejection."""
    sources = Sources(client)
    result = await ProposalLoop(client, sources.providers).run(draft())
    assert (StopReason.APPROVED, ["NO_FACT_INPUT", ""]) == (result.reason, codes(result)), result.detail
    assert {("order/1", ("order.status",)), ("customer/7", ("customer.score",))} == {(need.subject, need.keys) for need in sources.needs}
    first, second = result.rounds
    assert first.decision is not None
    assert first.decision.event_id == second.proposal.causation_id
    assert first.decision.trace_id == second.proposal.trace_id
    observed = [one for one in first.published if one.WhichOneof("payload") == "observation"]
    facts = [one for one in first.published if one.WhichOneof("payload") == "fact"]
    assert {one.event_id for one in (*facts, *observed)} == {one.event_id for one in second.proposal.proposal.based_on_events}
    assert [common_pb2.TRUST_TIER_2_TOOL_OBSERVATION] == [one.observation.trust_tier for one in observed]
    log = (await client.list_events(trace_id=first.decision.trace_id)).envelopes
    tools = [one for one in log if one.event_category in TOOL_EVENTS]
    assert [first.decision.event_id, tools[0].event_id] == [one.causation_id for one in tools]
    assert tools[1].tool_result.content_hash == observed[0].observation.evidence_hash


async def test_recorded_facts_are_cited_without_a_provider(client: GavelClient) -> None:
    """If the log already holds the missing facts, the loop cites them and calls no provider."""
    sources = Sources(client)
    assert (await ProposalLoop(client, sources.providers).run(draft())).approved
    await sources.status(FactNeed("order/2", (), "elsewhere", ""))
    sources.needs.clear()
    result = await ProposalLoop(client, sources.providers).run(draft("order/2"))
    assert (StopReason.APPROVED, ["NO_FACT_INPUT", ""], []) == (result.reason, codes(result), sources.needs)


async def test_superseded_citation_is_replaced_without_a_provider(client: GavelClient) -> None:
    """If a proposal cites an outdated fact, the loop cites the current one."""
    sources = Sources(client)
    assert (await ProposalLoop(client, sources.providers).run(draft())).approved
    (old,), (new,) = [await sources.status(FactNeed("order/2", (), "elsewhere", "")) for _ in range(2)]
    sources.needs.clear()
    result = await ProposalLoop(client, sources.providers).run(draft("order/2", based_on_events=[reference(old)]))
    assert (StopReason.APPROVED, ["FACT_SUPERSEDED", ""], []) == (result.reason, codes(result), sources.needs)
    assert reference(new) in result.rounds[1].proposal.proposal.based_on_events


async def test_second_run_cites_the_evidence_of_an_aborted_one(client: GavelClient) -> None:
    """A second run in the trace of an aborted one cites the evidence that the first has published, and calls no provider."""
    sources = Sources(client)
    assert (await ProposalLoop(client, sources.providers).run(draft())).approved
    note = (await client.publish_event(fact_envelope("order/2", ORDERS, key="order.note", value="call first"))).envelope
    second: dict[str, Any] = {"trace_id": "refund-2", "based_on_events": [reference(note)]}
    broken_off = await ProposalLoop(client, FactProviders()).run(draft("order/2", **second))
    assert (StopReason.NO_PROVIDER, ["NEED_MORE_FACTS"]) == (broken_off.reason, codes(broken_off))
    await sources.status(FactNeed("order/2", (), "refund-2", ""))
    sources.needs.clear()
    result = await ProposalLoop(client, sources.providers).run(draft("order/2", **second))
    assert (StopReason.APPROVED, ["DUPLICATE_PROPOSAL", ""], []) == (result.reason, codes(result), sources.needs)


async def test_refusal_by_rules_is_not_resubmitted(client: GavelClient) -> None:
    """A proposal that the rules refused is not resubmitted with other citations if a preflight refuses it as well."""
    sources = Sources(client, score=0.95)
    refusal = await ProposalLoop(client, sources.providers).run(draft(trace_id="refund-1"))
    assert (StopReason.NEEDS_REVISION, ["NO_FACT_INPUT", "FRAUD"]) == (refusal.reason, codes(refusal))
    repeated = draft(trace_id="refund-1", based_on_events=refusal.rounds[-1].proposal.proposal.based_on_events)
    await client.publish_event(fact_envelope("order/1", ORDERS, key="order.note", value="call first"))
    result = await ProposalLoop(client, sources.providers).run(repeated)
    assert (StopReason.NEEDS_REVISION, ["DUPLICATE_PROPOSAL"]) == (result.reason, codes(result))


async def test_provider_is_retried_while_the_server_is_unavailable(client: GavelClient) -> None:
    """While the server is unavailable, a provider is called again until it can publish."""
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


async def test_stale_fact_of_a_provider_ends_the_loop(client: GavelClient) -> None:
    """If a provider's fact is stale, the loop stops with that reason, without another rejection."""
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
    assert re.fullmatch("order.status from the provider is [0-9]+ ms old; the limit is 60000 ms", failure.message)


async def test_reading_is_as_old_as_its_call(refund_world: World, client: GavelClient) -> None:
    """The age of a reading counts from its call, so that a value is stale that could not be recorded for longer than it may be old."""
    sources = Sources(client)

    @(providers := FactProviders()).tool("customer.score", tool_name="fraud-mcp")
    async def score(need: FactNeed) -> ToolReading:
        reading = await sources.score(need)
        refund_world.clock.now_ms += 60_001
        return reading

    providers.facts("order.status", source="orders-db")(sources.status)
    result = await ProposalLoop(client, providers).run(draft())
    assert (StopReason.PROVIDER_FAILED, "TOO_OLD") == (result.reason, result.rounds[0].failures[0].code)
    (observed,) = [one for one in result.rounds[0].published if one.WhichOneof("payload") == "observation"]
    (call,) = [one for one in result.rounds[0].published if one.WhichOneof("payload") == "tool_call"]
    # The call began at once: not after the minute that passed on the bus meanwhile.
    assert 0 <= observed.observation.observed_at.ToMilliseconds() - call.recorded_at.ToMilliseconds() < 60_000


async def test_citations_stay_within_the_limit(refund_world: World, client: GavelClient) -> None:
    """An agent that cites as many events as a proposal may cite is approved once the loop has added the required ones."""
    sources = Sources(client)
    notes = [
        (await client.publish_event(fact_envelope("order/1", ORDERS, key=f"order.note-{number}", value=number))).envelope
        for number in range(256)
    ]
    result = await ProposalLoop(client, sources.providers).run(draft(based_on_events=[reference(note) for note in notes]))
    assert (StopReason.APPROVED, ["NEED_MORE_FACTS", ""]) == (result.reason, codes(result)), result.detail
    assert 256 == len(result.rounds[1].proposal.proposal.based_on_events)


async def test_facts_of_dependent_subjects_are_fetched_next(world: World) -> None:
    """If a fact's subject depends on another fact, the loop fetches one after the other and is approved."""
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


async def test_missing_provider_ends_the_loop_without_a_proposal(client: GavelClient) -> None:
    """If a fact of the hint has no provider, no provider is called and no rejection is added; a tool is not a source of tier 1."""
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
async def test_failed_provider_ends_the_loop_and_is_recorded(client: GavelClient, failure: object, code: str, tool_answered: bool) -> None:
    """A provider's failure is recorded as a tool result with its code, without foreign text; no further proposal follows."""
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
    # A failure after the tool has answered is not the tool's.
    assert ["" if tool_answered else code] == [one.error_code for one in results]


async def test_revise_changes_a_refused_proposal(client: GavelClient) -> None:
    """After a refusal by a rule, `revise` changes the proposal; its citations stay."""
    calls: list[str] = []

    def smaller(envelope: Envelope, decision: Envelope) -> Proposal:
        calls.append(decision.decision.reason_code)
        changed = Proposal()
        changed.CopyFrom(envelope.proposal)
        changed.params["amount"] = 50.0
        return changed

    result = await ProposalLoop(client, Sources(client).providers, revise=smaller).run(draft(amount=500))
    assert (StopReason.APPROVED, ["NO_FACT_INPUT", "NO_RULE_MATCHED", ""]) == (result.reason, codes(result))
    assert ["NO_RULE_MATCHED"] == calls
    assert result.decision is not None
    assert 50 == result.decision.decision.params["amount"]


def _change_estimates(envelope: Envelope, _: Envelope) -> Proposal:
    """Change fields that do not distinguish two proposals in the log."""
    changed = Proposal()
    changed.CopyFrom(envelope.proposal)
    changed.confidence = 1.0
    return changed


@pytest.mark.parametrize(
    ("revise", "reason"),
    [
        (None, StopReason.NEEDS_REVISION),
        (lambda *_: None, StopReason.NEEDS_REVISION),
        (lambda envelope, _: envelope.proposal, StopReason.NO_PROGRESS),
        (_change_estimates, StopReason.NO_PROGRESS),
    ],
)
async def test_refusal_by_rules_without_a_revision_ends_the_loop(client: GavelClient, revise: Any, reason: StopReason) -> None:
    """Without `revise`, if it gives up, or if its changes do not count, the loop ends without another rejection."""
    result = await ProposalLoop(client, Sources(client).providers, revise=revise).run(draft(amount=500))
    assert (reason, ["NO_FACT_INPUT", "NO_RULE_MATCHED"]) == (result.reason, codes(result))


async def test_review_ends_the_loop(client: GavelClient) -> None:
    """A decision that needs review ends the loop, and the next loop of the trace."""
    result = await ProposalLoop(client, Sources(client).providers).run(draft(amount=5000))
    assert (StopReason.REVIEW, ["NO_FACT_INPUT", "LARGE_REFUND"]) == (result.reason, codes(result))
    assert result.decision is not None
    second = await ProposalLoop(client, Sources(client).providers).run(draft(trace_id=result.decision.trace_id))
    assert (StopReason.REVIEW, ["UNDER_REVIEW"]) == (second.reason, codes(second))


@pytest.mark.parametrize(
    ("verdict", "reason"), [(REVIEW_VERDICT_APPROVE, StopReason.APPROVED), (REVIEW_VERDICT_REJECT, StopReason.TERMINAL)]
)
async def test_repeated_run_gets_the_verdict(client: GavelClient, verdict: ReviewVerdict.ValueType, reason: StopReason) -> None:
    """A run that ended with a review, repeated after the verdict, ends with the decision that followed, also if that has expired since."""
    loop = ProposalLoop(client, Sources(client).providers)
    first = await loop.run(draft(amount=5000), run_key="task-1")
    assert first.reason is StopReason.REVIEW
    assert first.decision is not None
    assert first.decision == (await loop.run(draft(amount=5000), run_key="task-1")).decision
    followed = (await client.resolve_review(first.decision.event_id, verdict, reviewer="ann", reason="seen")).decision
    for _ in range(2):
        result = await loop.run(draft(amount=5000), run_key="task-1")
        assert (reason, followed) == (result.reason, result.decision), result.detail
        if verdict == REVIEW_VERDICT_APPROVE:
            await client.revoke_decision(followed.event_id, revoked_by="ann", reason="no", event_id=REVOCATION_ID)


async def test_released_trace_goes_on(client: GavelClient) -> None:
    """After a person has released the trace of a run, the repeated run proposes once more, caused by the release."""
    loop = ProposalLoop(client, Sources(client).providers, proposals_max=20)
    run: dict[str, Any] = {"trace_id": "refund-1"}
    for number in range(8):
        refused = (await client.submit_proposal(draft(amount=500 + number, **run))).decision
        assert "NO_FACT_INPUT" == refused.decision.reason_code
    limited = await loop.run(draft(**run), run_key="task-1")
    assert (StopReason.REVIEW, "REJECTION_LIMIT") == (limited.reason, codes(limited)[-1])
    assert limited.decision is not None
    await client.resolve_review(limited.decision.event_id, REVIEW_VERDICT_APPROVE, reviewer="ann", reason="go on")
    result = await loop.run(draft(**run), run_key="task-1")
    assert (StopReason.APPROVED, "REVIEW_RELEASED") == (result.reason, codes(result)[0]), result.detail


async def test_terminal_refusal_ends_the_loop(client: GavelClient) -> None:
    """After a terminal refusal, such as NO_ACTIVE_POLICY, nothing is proposed again."""
    unknown = proposal_envelope("order/1", AGENT, action_type="moon.land", params={}, max_fact_age_ms=1000)
    result = await ProposalLoop(client, FactProviders()).run(unknown)
    assert (StopReason.NOT_RETRYABLE, ["NO_ACTIVE_POLICY"]) == (result.reason, codes(result))


async def test_proposals_max_ends_the_loop(client: GavelClient) -> None:
    """The loop submits as many proposals as allowed and no more; no provider is called after the last refusal."""
    sources = Sources(client)
    result = await ProposalLoop(client, sources.providers, proposals_max=1).run(draft())
    assert (StopReason.BUDGET, 1, []) == (result.reason, len(result.rounds), sources.needs)


async def test_deadline_cancels_a_slow_provider(client: GavelClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """A provider that is too slow is cancelled at the deadline; its tool call still gets a result in the log."""
    clock = Clock()
    monkeypatch.setattr(deadline, "time", clock)
    monkeypatch.setattr(deadline, "LAST_RECORD_MS", DEADLINE_MS)
    sources = Sources(client)
    await sources.status(FactNeed("order/1", (), "elsewhere", ""))
    providers = FactProviders()

    def arguments(need: FactNeed) -> dict[str, Any]:
        clock.ms = DEADLINE_MS - 50  # the time that is left to the tool
        return {}

    @providers.tool("customer.score", tool_name="fraud-mcp", arguments=arguments, timeout_ms=10 * DEADLINE_MS)
    async def sleepy(need: FactNeed) -> ToolReading:
        try:
            await asyncio.Event().wait()
            raise AssertionError
        finally:
            clock.ms = DEADLINE_MS

    result = await ProposalLoop(client, providers, deadline_ms=DEADLINE_MS).run(draft())
    assert (StopReason.DEADLINE, 1) == (result.reason, len(result.rounds)), result.detail
    answers = [one.tool_result.error_code for one in result.rounds[0].published if one.WhichOneof("payload") == "tool_result"]
    assert ["E_TIMEOUT"] == answers


async def test_invalid_proposal_is_raised(client: GavelClient) -> None:
    """An invalid proposal raises GavelError with all violations."""
    with pytest.raises(GavelError) as error_info:
        await ProposalLoop(client, FactProviders()).run(draft(risk=7.0))
    assert ["envelope.proposal.risk"] == [violation.field for violation in error_info.value.violations]


async def test_blocking_client_runs_the_same_loop(refund_world: World) -> None:
    """With plain functions as providers and the blocking client, the loop has the same result."""
    target = refund_world.address

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


async def test_blocking_loop_inside_a_running_event_loop(refund_world: World) -> None:
    """A blocking loop runs in a thread that has a running event loop, as in a notebook; context variables reach its providers."""
    target = refund_world.address
    caller: ContextVar[str] = ContextVar("caller", default="")

    def play() -> LoopResult:
        async def cell() -> LoopResult:
            caller.set("cell")
            with SyncGavelClient(target) as client:
                providers = FactProviders()

                @providers.facts("order.status", source="orders-db")
                def status(need: FactNeed) -> list[Envelope]:
                    assert "cell" == caller.get()
                    fact = fact_envelope(need.subject, ORDERS, key="order.status", value="delivered", trace_id=need.trace_id)
                    return [client.publish_event(fact).envelope]

                @providers.tool("customer.score", tool_name="fraud-mcp")
                def score(need: FactNeed) -> ToolReading:
                    return ToolReading({"score": 0.1}, {"customer.score": 0.1})

                return SyncProposalLoop(client, providers).run(draft(), run_key="cell-1")

        return asyncio.run(cell())

    result = await asyncio.to_thread(play)
    assert (StopReason.APPROVED, ["NO_FACT_INPUT", ""]) == (result.reason, codes(result)), result.detail


def test_client_of_the_other_kind_is_refused() -> None:
    """A client of the other kind is refused before anything is proposed."""
    with pytest.raises(TypeError, match="use SyncProposalLoop"):
        ProposalLoop(SyncGavelClient(), FactProviders())  # type: ignore[arg-type]  # the mistake
    with pytest.raises(TypeError, match="use ProposalLoop"):
        SyncProposalLoop(GavelClient(), FactProviders())  # type: ignore[arg-type]  # the mistake


def test_invalid_limits() -> None:
    """A loop without proposals or without time is refused by its constructor."""
    client = GavelClient()
    with pytest.raises(ValueError, match="proposals_max"):
        ProposalLoop(client, FactProviders(), proposals_max=0)
    with pytest.raises(ValueError, match="deadline_ms"):
        ProposalLoop(client, FactProviders(), deadline_ms=0)
    with pytest.raises(ValueError, match="fact key"):
        FactProviders().tool(tool_name="t")(lambda need: ToolReading({}, {}))


async def test_a_runtime_reads_for_the_loop(refund_world: World, client: GavelClient) -> None:
    """With a runtime the tool is called, recorded and checked by it; the agent's observation rests on its result."""
    contract = ToolContract(name="fraud-mcp", version="1", default_provider="crm", side_effects=["crm.read"])
    await client.register_contract(contract)
    await client.register_provider(ToolProvider(provider_id="crm", version="1", tools=["fraud-mcp"]))
    provider = FunctionProvider("crm", {"fraud-mcp": lambda call: {"score": 0.1, "of": call.arguments["subject"]}})
    runtime = ToolRuntime(client, "tools-1", providers=[provider])
    providers = FactProviders(tools=runtime)
    providers.facts("order.status", source="orders-db")(Sources(client).status)

    @providers.reading("customer.score", tool_name="fraud-mcp")
    def score(need: FactNeed, data: Mapping[str, Any]) -> Mapping[str, object]:
        assert need.subject == data["of"]
        return {"customer.score": data["score"]}

    result = await ProposalLoop(client, providers).run(draft())
    assert StopReason.APPROVED == result.reason, result
    published = {event.WhichOneof("payload"): event for event in result.rounds[0].published}
    call, answer, observation = (published[name] for name in ("tool_call", "tool_result", "observation"))
    assert ("tools-1", AGENT.id, AGENT.id) == (call.producer.id, call.tool_call.agent_id, observation.producer.id)
    assert (answer.event_id, 2) == (observation.observation.evidence_ref, observation.observation.trust_tier)


@pytest.mark.parametrize(("is_registered", "code"), [(True, "E_PERMISSION"), (False, "TOOL_NOT_FOUND")])
async def test_a_refusal_by_the_runtime_ends_the_loop(client: GavelClient, is_registered: bool, code: str) -> None:
    """A tool that agents may not call, or that nobody has registered, is a failed provider."""
    if is_registered:
        await client.register_contract(ToolContract(name="fraud-mcp", version="1", default_provider="crm", side_effects=["external.write"]))
        await client.register_provider(ToolProvider(provider_id="crm", version="1", tools=["fraud-mcp"]))
    runtime = ToolRuntime(client, "tools-1", providers=[FunctionProvider("crm", {"fraud-mcp": lambda _: {}})])
    providers = FactProviders(tools=runtime)
    providers.facts("order.status", source="orders-db")(Sources(client).status)
    providers.reading("customer.score", tool_name="fraud-mcp")(lambda need, data: data)
    result = await ProposalLoop(client, providers).run(draft())
    assert (StopReason.PROVIDER_FAILED, [code]) == (result.reason, [one.code for one in result.rounds[0].failures])


def test_reading_needs_a_runtime() -> None:
    """Without a runtime there is nobody to call the tool."""
    with pytest.raises(ValueError, match="needs a runtime of tools"):
        FactProviders().reading("customer.score", tool_name="fraud-mcp")
