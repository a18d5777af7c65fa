"""The agent layer on a real server, with the real SDKs on transcripts: reads are witnessed, effects are proposals, calls are recorded."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from gavel.v1.decision_pb2 import OUTCOME_APPROVED
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.execution_pb2 import EXECUTION_STATUS_SUCCESS
from gavel.v1.tool_pb2 import ToolBinding, ToolContract, ToolProvider
from gavel_client import FactNeed, FactProviders, GavelClient, GavelError, ProposalLoop, StopReason, fact_envelope
from gavel_client.llm import (
    ActionTool,
    Agent,
    AgentRun,
    AgentStoppedError,
    AgentTool,
    FinalAnswer,
    InvocationRecorder,
    LLMRequest,
    LLMResponse,
    LLMService,
    LLMTool,
    LLMToolCall,
    ModelProvider,
    ToolExecutionResult,
    UserMessage,
    runtime_tool,
)
from gavel_client.tools import FunctionProvider, ToolInvocation, ToolRuntime
from gavel_client.values import to_struct

from tests.integration.services.world import AGENT, ORDERS, World, report
from tests.support.llm.transcripts import APIS, Reply, TranscriptServer

AMOUNT = {"type": "object", "required": ["amount"], "additionalProperties": False, "properties": {"amount": {"type": "number"}}}
TASK = "The customer complains: it is broken. Refund it if the rules allow."


@pytest.fixture
async def complaint(world_with_rules: World, client: GavelClient) -> Envelope:
    """The fact that begins the work."""
    return (await client.publish_event(fact_envelope("order/7", ORDERS, key="order.complaint", value="broken"))).envelope


@pytest.fixture
async def runtime(client: GavelClient) -> ToolRuntime:
    """A runtime with two tools that read orders, and one with an effect."""
    effects = {"orders.status": [], "orders.total": [], "mail.send": ["external.write"]}
    for name, side_effects in effects.items():
        schema = to_struct({"type": "object", "required": ["order"], "properties": {"order": {"type": "string"}}})
        await client.register_contract(
            ToolContract(name=name, version="1", side_effects=side_effects, default_provider="orders", argument_schema=schema)
        )
    await client.register_provider(ToolProvider(provider_id="orders", version="1", tools=sorted(effects)))

    def status(invocation: ToolInvocation) -> dict[str, object]:
        return {"order": invocation.arguments["order"], "status": "delivered"}

    def total(invocation: ToolInvocation) -> dict[str, object]:
        raise RuntimeError("the database is away")

    return ToolRuntime(client, "tools-1", providers=[FunctionProvider("orders", {"orders.status": status, "orders.total": total})])


def providers(client: GavelClient) -> FactProviders:
    """Return the provider of the evidence that the rules require."""
    fact_providers = FactProviders()

    @fact_providers.facts("order.status", source=ORDERS.id)
    async def order(need: FactNeed) -> list[Envelope]:
        fact = fact_envelope(need.subject, ORDERS, key="order.status", value="delivered", trace_id=need.trace_id)
        return [(await client.publish_event(fact)).envelope]

    return fact_providers


async def tools_of(client: GavelClient, runtime: ToolRuntime) -> list[AgentTool]:
    """Return the tools of the agent: two reads, and the refund."""
    return [
        await runtime_tool(
            client,
            runtime,
            "orders.status",
            "Status of an order",
            observe=lambda data: {"order.observed_status": data["status"]},
            subject=lambda arguments: arguments["order"],
        ),
        await runtime_tool(client, runtime, "orders.total", "Total of an order"),
        ActionTool(
            "refund_create",
            "Refunds an order",
            AMOUNT,
            action_type="refund.create",
            loop=ProposalLoop(client, providers(client)),
            max_fact_age_ms=60_000,
        ),
    ]


@asynccontextmanager
async def agent(
    client: GavelClient,
    models: TranscriptServer,
    tools: Sequence[AgentTool],
    api: str = "messages",
    model: str = "final_answer",
    **fields: Any,
) -> AsyncIterator[Agent]:
    """Yield an agent whose model is the transcript `model`, after the replies that a test queues."""
    service = LLMService([models.provider(api, model)], recorder=InvocationRecorder(client, AGENT))
    async with service:
        yield Agent(service, client, AGENT, tools, instructions="Be brief.", **fields)


async def trace_of(client: GavelClient, cause: Envelope) -> dict[str, Envelope]:
    """Return the events of the trace by event_id, in order."""
    return {event.event_id: event for event in (await client.get_trace(cause.trace_id)).envelopes}


@pytest.mark.parametrize("api", APIS.values())
async def test_a_run(api: str, client: GavelClient, models: TranscriptServer, runtime: ToolRuntime, complaint: Envelope) -> None:
    """Turns come one by one with whole responses; tools are witnessed; the effect is a proposal that cites what led to it."""
    models.replies.extend([Reply("parallel_tools"), Reply("refund")])
    async with agent(client, models, await tools_of(client, runtime), api) as target:
        turns = [turn async for turn in target.run(TASK, cause=complaint)]
    trace = await trace_of(client, complaint)
    reads, refund, answer = turns
    # The first turn reads twice, at once; one of the tools fails, and the model is told.
    status, total = reads.tool_results
    assert (None, "E_TOOL") == (status.error, total.error)
    assert {"order": "order/7", "status": "delivered"} == json.loads(status.output)
    assert "E_TOOL" in total.output
    assert ["tool_call", "tool_result", "observation"] == [trace[event_id].WhichOneof("payload") for event_id in status.event_ids]
    # The second turn proposes: the event of the model's answer is the cause, the observation is cited.
    [proposal_result] = refund.tool_results
    assert None is proposal_result.error
    assert StopReason.APPROVED is proposal_result.details.reason
    first = trace[proposal_result.event_ids[0]]
    assert refund.annotations["invocation_event_id"] == first.causation_id
    assert "agent_diagnostic" == trace[first.causation_id].WhichOneof("payload")
    assert [complaint.event_id, status.event_ids[2]] == [item.event_id for item in first.proposal.based_on_events]
    assert {"amount": 40} == dict(first.proposal.params)
    decision = next(event for event in reversed(trace.values()) if event.HasField("decision"))
    assert OUTCOME_APPROVED == decision.decision.outcome
    # The third turn answers, by a tool like any other.
    [final] = answer.tool_results
    assert ("final_answer", "The refund of 40 EUR is approved.") == (final.call.name, final.output)
    assert "final_answer" == answer.annotations["end"]
    # Each call of the model is an event, caused by what the model read last.
    invocations = [event for event in trace.values() if event.HasField("agent_diagnostic")]
    assert [turn.annotations["invocation_event_id"] for turn in turns] == [event.event_id for event in invocations]
    causes = [complaint.event_id, total.event_ids[-1], proposal_result.event_ids[-1]]
    assert causes == [event.causation_id for event in invocations]
    assert [trace[event_id].causation_id for event_id in (status.event_ids[0], total.event_ids[0])] == [invocations[0].event_id] * 2
    # The model read the decision.
    assert "approved" in json.dumps(models.requests[-1].body)


async def test_the_whole_run_at_once(client: GavelClient, models: TranscriptServer, runtime: ToolRuntime, complaint: Envelope) -> None:
    """`respond` collects the turns; the final output is that of the final answer."""
    models.replies.append(Reply("refund"))
    async with agent(client, models, await tools_of(client, runtime)) as target:
        response = await target.respond(TASK, cause=complaint)
    assert ["refund_create", "final_answer"] == [result.call.name for turn in response.turns for result in turn.tool_results]
    assert "The refund of 40 EUR is approved." == response.final_output


@pytest.mark.parametrize("api", APIS.values())
async def test_each_layer_hands_on_the_whole_response(
    api: str, client: GavelClient, models: TranscriptServer, runtime: ToolRuntime, complaint: Envelope
) -> None:
    """The response in a turn is the provider's, with the attempt's number and the event of the call added, and nothing lost."""
    provider = models.provider(api, "final_answer")
    below = await provider.complete(LLMRequest([UserMessage("-")]))
    await provider.close()
    async with agent(client, models, await tools_of(client, runtime), api) as target:
        response = await target.respond(TASK, cause=complaint)
    above = response.turns[-1].llm_response
    added = {"gavel_invocation": above.extras["gavel_invocation"]}
    [meta] = below.provider_meta
    assert above.raw_events == below.raw_events
    assert (
        dataclasses.replace(
            below, extras={**below.extras, **added}, provider_meta=(dataclasses.replace(meta, extra={**meta.extra, "attempt": 1}),)
        )
        == above
    )


async def test_a_text_without_calls_ends_a_run(
    client: GavelClient, models: TranscriptServer, runtime: ToolRuntime, complaint: Envelope
) -> None:
    """A model that only talks has answered."""
    async with agent(client, models, await tools_of(client, runtime), model="text") as target:
        response = await target.respond(TASK, cause=complaint)
    assert "Damaged goods are refunded within 30 days. ✅" == response.final_output
    assert "text" == response.turns[-1].annotations["end"]


async def test_a_refused_proposal_teaches_the_model(
    client: GavelClient, models: TranscriptServer, runtime: ToolRuntime, complaint: Envelope
) -> None:
    """A call without an approval is an error whose text says why; the agent does not wait for a person's review."""
    models.replies.append(Reply("refund_large"))
    async with agent(client, models, await tools_of(client, runtime)) as target:
        response = await target.respond(TASK, cause=complaint)
    [result] = response.turns[0].tool_results
    assert "REVIEW" == result.error
    assert "LARGE_REFUND" in result.output
    content = models.requests[-1].body["messages"][-1]["content"]
    assert (True, result.output) == (content[0]["is_error"], content[0]["content"])


async def test_a_run_that_is_repeated_does_no_work_twice(
    world: World, client: GavelClient, models: TranscriptServer, runtime: ToolRuntime, complaint: Envelope
) -> None:
    """The model may repeat a call, and a process a run: there is one proposal and one decision."""
    tools = await tools_of(client, runtime)
    models.replies.extend([Reply("refund"), Reply("refund")])
    async with agent(client, models, tools) as target:
        first = await target.respond(TASK, cause=complaint)
    [decision] = [event for event in (await trace_of(client, complaint)).values() if event.decision.outcome == OUTCOME_APPROVED]
    started = await world.begin(decision)
    await world.report(report(decision, started, EXECUTION_STATUS_SUCCESS))
    # The work is done, and another provider gives the call another id.
    models.replies.append(Reply("refund"))
    async with agent(client, models, tools, "responses") as target:
        again = await target.respond(TASK, cause=complaint)
    trace = (await trace_of(client, complaint)).values()
    approved = [event for event in trace if event.decision.outcome == OUTCOME_APPROVED]
    assert 1 == len(approved)
    # The first proposal lacked evidence.
    assert 2 == len([event for event in trace if event.HasField("proposal")])
    results = [turn.tool_results[0] for turn in (*first.turns[:2], again.turns[0])]
    assert [(None, approved[0].event_id)] * 3 == [(result.error, result.event_ids[-1]) for result in results]
    assert results[0].call.call_id != results[2].call.call_id


@pytest.mark.parametrize(("model", "cause"), [("length", "length"), ("refusal", "refusal")])
async def test_an_answer_that_is_not_whole_ends_a_run(
    model: str, cause: str, client: GavelClient, models: TranscriptServer, runtime: ToolRuntime, complaint: Envelope
) -> None:
    """No call of an answer that was cut or refused is carried out; the error has the turns."""
    async with agent(client, models, await tools_of(client, runtime), model=model) as target:
        with pytest.raises(AgentStoppedError) as caught:
            await target.respond(TASK, cause=complaint)
    assert cause == caught.value.cause
    assert [()] == [turn.tool_results for turn in caught.value.turns]
    assert [] == [event for event in (await trace_of(client, complaint)).values() if event.HasField("proposal")]


async def test_turns_are_bounded(client: GavelClient, models: TranscriptServer, runtime: ToolRuntime, complaint: Envelope) -> None:
    """A model that never answers is stopped; its turns are not lost."""
    async with agent(client, models, await tools_of(client, runtime), model="parallel_tools", turns_max=3) as target:
        turns = []
        run = target.run(TASK, cause=complaint)
        for _ in range(3):
            turns.append(await anext(run))  # noqa: PERF401 (a comprehension of awaits)
        with pytest.raises(AgentStoppedError) as caught:
            await anext(run)
    assert ("turns_max", 3) == (caught.value.cause, len(models.requests))
    assert tuple(turns) == caught.value.turns


async def test_a_paused_turn_goes_on(client: GavelClient, models: TranscriptServer, runtime: ToolRuntime, complaint: Envelope) -> None:
    """The provider gets its own paused turn back and continues it."""
    models.replies.append(Reply("pause"))
    async with agent(client, models, await tools_of(client, runtime)) as target:
        response = await target.respond(TASK, cause=complaint)
    assert ["pause", "tool_calls"] == [turn.llm_response.finish_reason for turn in response.turns]
    assert "redacted_thinking" == models.requests[-1].body["messages"][-1]["content"][0]["type"]


@dataclasses.dataclass(frozen=True)
class NoteTool:
    """A tool that notes its arguments."""

    definition: LLMTool
    seen: list[object]

    async def run(self, call: LLMToolCall, arguments: Any, run: AgentRun) -> ToolExecutionResult:
        """Note the arguments."""
        self.seen.append(arguments)
        return ToolExecutionResult(call, "done")


async def test_wrong_calls_are_told_to_the_model(client: GavelClient, models: TranscriptServer, complaint: Envelope) -> None:
    """Unknown tools and invalid arguments are results with E_ARGS, and nothing is carried out."""
    models.replies.extend([Reply("parallel_tools"), Reply("refund")])
    schema = {**AMOUNT, "properties": {"amount": {"type": "number", "maximum": 1}}}
    refund = ActionTool(
        "refund_create", "-", schema, action_type="refund.create", loop=ProposalLoop(client, FactProviders()), max_fact_age_ms=60_000
    )
    async with agent(client, models, [refund]) as target:
        response = await target.respond(TASK, cause=complaint)
    errors = [(result.error, result.output) for turn in response.turns[:2] for result in turn.tool_results]
    assert ["E_ARGS"] * 3 == [code for code, _ in errors]
    assert "there is no tool 'orders_status'; the tools are refund_create, final_answer" in errors[0][1]
    assert "arguments/amount: the value is greater than the maximum of 1" in errors[2][1]
    assert [] == [event for event in (await trace_of(client, complaint)).values() if event.HasField("proposal")]


class OtherArguments:
    """A provider whose model writes other arguments, one text for each call."""

    def __init__(self, provider: ModelProvider, texts: list[str]) -> None:
        self._provider = provider
        self._texts = texts
        self.name, self.model, self.settings = provider.name, provider.model, provider.settings
        self.stream, self.close = provider.stream, provider.close

    async def complete(self, request: LLMRequest, *, timeout_ms: int = 60_000) -> LLMResponse:
        """Return the provider's answer with other arguments."""
        response = await self._provider.complete(request, timeout_ms=timeout_ms)
        return dataclasses.replace(response, tool_calls=(dataclasses.replace(response.tool_calls[0], arguments=self._texts.pop(0)),))


async def test_arguments_that_are_no_object_are_told_to_the_model(
    client: GavelClient, models: TranscriptServer, complaint: Envelope
) -> None:
    """The text that a model wrote as arguments may be anything."""
    arguments: list[object] = []
    tool = NoteTool(LLMTool("refund_create", "-", AMOUNT), arguments)
    provider = OtherArguments(models.provider("responses", "refund"), ["{", "[]", "", '{"amount": 40}'])
    async with LLMService([provider], recorder=InvocationRecorder(client, AGENT)) as service:
        with pytest.raises(AgentStoppedError) as caught:
            await Agent(service, client, AGENT, [tool], turns_max=4).respond(TASK, cause=complaint)
    results = [turn.tool_results[0] for turn in caught.value.turns]
    assert ["E_ARGS", "E_ARGS", None, None] == [result.error for result in results]
    assert [{}, {"amount": 40}] == arguments


async def test_arguments_that_cannot_be_proposed_are_told_to_the_model(
    client: GavelClient, models: TranscriptServer, complaint: Envelope
) -> None:
    """Arguments without what the subject is made of, with a wrong subject, or with a number that no event can hold are E_ARGS."""
    loop = ProposalLoop(client, FactProviders())
    refund = ActionTool(
        "refund_create",
        "-",
        {"type": "object"},
        action_type="refund.create",
        loop=loop,
        max_fact_age_ms=60_000,
        subject=lambda arguments: arguments["order"],
    )
    texts = ["{}", '{"order": "nowhere"}', '{"order": "order/1", "cents": 9007199254740993}']
    provider = OtherArguments(models.provider("responses", "refund"), texts)
    async with LLMService([provider], recorder=InvocationRecorder(client, AGENT)) as service:
        with pytest.raises(AgentStoppedError) as caught:
            await Agent(service, client, AGENT, [refund], turns_max=3).respond(TASK, cause=complaint)
    assert ["E_ARGS"] * 3 == [turn.tool_results[0].error for turn in caught.value.turns]


async def test_a_final_answer_of_a_schema(client: GavelClient, models: TranscriptServer, complaint: Envelope) -> None:
    """The answer is an object of the schema; another one is sent back to the model."""

    def schema(kind: str) -> dict[str, Any]:
        return {"type": "object", "required": ["answer"], "properties": {"answer": {"type": kind}}}

    async with agent(client, models, [], final_answer=FinalAnswer(schema("string"))) as target:
        response = await target.respond(TASK, cause=complaint)
    assert (
        {"answer": "The refund of 40 EUR is approved."} == json.loads(response.final_output) == response.turns[-1].tool_results[0].details
    )
    async with agent(client, models, [], final_answer=FinalAnswer(schema("number")), turns_max=2) as target:
        with pytest.raises(AgentStoppedError) as caught:
            await target.respond(TASK, cause=complaint)
    assert ["E_ARGS"] * 2 == [turn.tool_results[0].error for turn in caught.value.turns]


async def test_a_tool_with_effects_is_not_offered(client: GavelClient, runtime: ToolRuntime) -> None:
    """Tools that write to the outside world are refused when the agent is made, with what to use in their place."""
    with pytest.raises(ValueError, match=r"mail\.send is not for agents: .*external\.write.*ActionTool"):
        await runtime_tool(client, runtime, "mail.send", "Sends mail")
    with pytest.raises(GavelError, match="orders"):
        await runtime_tool(client, runtime, "order.status", "Status")


async def test_a_tool_that_gets_effects_later_is_refused(
    client: GavelClient, models: TranscriptServer, runtime: ToolRuntime, complaint: Envelope
) -> None:
    """The guard is asked at every call: a contract that changed under a running agent opens nothing."""
    models.replies.append(Reply("parallel_tools"))
    async with agent(client, models, await tools_of(client, runtime)) as target:
        schema = to_struct({"type": "object", "required": ["order"], "properties": {"order": {"type": "string"}}})
        changed = ToolContract(name="orders.status", version="2", side_effects=["external.write"], default_provider="orders")
        changed.argument_schema.CopyFrom(schema)
        await client.register_contract(changed)
        response = await target.respond(TASK, cause=complaint)
    refused = response.turns[0].tool_results[0]
    assert "E_PERMISSION" == refused.error
    assert "ToolCallRefused" == (await trace_of(client, complaint))[refused.event_ids[1]].event_name


async def test_readings_belong_to_what_the_call_is_about(
    client: GavelClient, models: TranscriptServer, runtime: ToolRuntime, complaint: Envelope
) -> None:
    """A model that reads another order cannot pass its values off as those of the run's: the call names the subject."""
    other = (await client.publish_event(fact_envelope("order/8", ORDERS, key="order.complaint", value="broken"))).envelope
    models.replies.append(Reply("parallel_tools"))
    async with agent(client, models, await tools_of(client, runtime)) as target:
        response = await target.respond(TASK, cause=other)
    trace = await trace_of(client, other)
    assert ["order/7"] * 3 == [trace[event_id].subject for event_id in response.turns[0].tool_results[0].event_ids]
    with pytest.raises(ValueError, match="observe needs subject"):
        await runtime_tool(client, runtime, "orders.status", "Status", observe=lambda data: data)


async def test_bindings_of_a_session_apply(
    client: GavelClient, models: TranscriptServer, complaint: Envelope, runtime: ToolRuntime
) -> None:
    """The tools of a run are those that its session is bound to."""
    await client.register_provider(ToolProvider(provider_id="archive", version="1", tools=["orders.status"]))
    await client.bind_tool(ToolBinding(tool_name="orders.status", provider_id="archive", session_id="s-1"))
    models.replies.append(Reply("parallel_tools"))
    async with agent(client, models, await tools_of(client, runtime)) as target:
        response = await target.respond(TASK, cause=complaint, session_id="s-1")
    call = (await trace_of(client, complaint))[response.turns[0].tool_results[0].event_ids[0]]
    assert ("archive", "s-1") == (call.tool_call.provider_id, call.tool_call.session_id)


async def test_invalid_agents_are_refused(client: GavelClient, models: TranscriptServer) -> None:
    """An agent whose calls would not be recorded, whose tools share a name, or that has no turn is an error."""
    service = LLMService([models.provider("messages", "text")], recorder=InvocationRecorder(client, AGENT))
    with pytest.raises(ValueError, match="has no recorder"):
        Agent(LLMService([models.provider("messages", "text")]), client, AGENT, [])
    with pytest.raises(ValueError, match="two tools have the name final_answer"):
        Agent(service, client, AGENT, [FinalAnswer()])
    with pytest.raises(ValueError, match="turns_max is 0"):
        Agent(service, client, AGENT, [], turns_max=0)
