"""An agent with a language model, governed by Gavel, that uses all three layers of `gavel_client.llm`.

    gavel rules deploy client/python/examples/support/rules.yaml --activate
    gavel tools register client/python/examples/support/tools.yaml
    python client/python/examples/support/agent.py --once
    gavel signal order/7 order.complaint "It is broken, I want half of my money back" --user --source chat

It needs ANTHROPIC_API_KEY, and asks OpenAI if Anthropic fails and OPENAI_API_KEY is set. A complaint wakes it:

    read (complete_json) ──▶ handle (Agent: tools, proposals) ──▶ draft a reply for the support desk (stream)

All calls of models are in the complaint's trace, and with --evidence their texts are kept. The model chooses neither the order nor whether
it is refunded: the order is that of the complaint, and the rules decide by the readings of the tools.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from typing import Any, Final

from gavel.v1.common_pb2 import PRODUCER_TYPE_AGENT, Producer
from gavel.v1.envelope_pb2 import Envelope
from gavel_client import FactProviders, Firing, GavelClient, PositionFile, ProposalLoop, Trigger, TriggerSubscription
from gavel_client.evidence import EvidenceStore
from gavel_client.llm import (
    ActionTool,
    Agent,
    AgentTool,
    InvocationRecorder,
    LLMContext,
    LLMProvider,
    LLMRequest,
    LLMService,
    SystemMessage,
    UserMessage,
    anthropic_messages,
    openai_responses,
    runtime_tool,
)
from gavel_client.tools import FunctionProvider, ToolInvocation, ToolRuntime
from gavel_client.values import from_value

AGENT: Final = Producer(type=PRODUCER_TYPE_AGENT, id="support-agent", version="1")
WISH: Final = {
    "type": "object",
    "required": ["order", "amount"],
    "additionalProperties": False,
    "properties": {"order": {"type": "string"}, "amount": {"type": "number"}},
}
AMOUNT: Final = {"type": "object", "required": ["amount"], "additionalProperties": False, "properties": {"amount": {"type": "number"}}}


def read_status(invocation: ToolInvocation) -> dict[str, Any]:
    """Read the status of an order; stands for a query of the order database."""
    return {"order": invocation.arguments["order"], "status": "delivered"}


def read_total(invocation: ToolInvocation) -> dict[str, Any]:
    """Read the total of an order; stands for a query of the order database."""
    return {"order": invocation.arguments["order"], "total": 80}


def providers() -> list[LLMProvider]:
    """Return the models in the order in which they are asked."""
    first: LLMProvider = anthropic_messages("claude-opus-4-6")
    return [first, openai_responses("gpt-5.2")] if "OPENAI_API_KEY" in os.environ else [first]


async def tools_of(client: GavelClient, runtime: ToolRuntime) -> list[AgentTool]:
    """Return what the model may do: read orders, whose values become evidence, and propose a refund."""

    def order(arguments: Any) -> str:
        return str(arguments["order"])

    return [
        await runtime_tool(
            client, runtime, "orders.status", "Status of an order", subject=order, observe=lambda data: {"order.status": data["status"]}
        ),
        await runtime_tool(
            client, runtime, "orders.total", "Total of an order in EUR", subject=order, observe=lambda data: {"order.total": data["total"]}
        ),
        ActionTool(
            "refund_create",
            "Refunds EUR for the order of the complaint",
            AMOUNT,
            action_type="refund.create",
            loop=ProposalLoop(client, FactProviders()),
            max_fact_age_ms=60_000,
        ),
    ]


async def handle(complaint: Envelope, client: GavelClient, models: LLMService, tools: list[AgentTool]) -> None:
    """Read a complaint, refund if the rules allow, and draft a reply."""
    text = f"{complaint.subject}: {from_value(complaint.fact.value)}"
    context = LLMContext.of(complaint)
    wish = await models.complete_json(
        LLMRequest([SystemMessage("Which order does the customer mean, and how much do they want back?"), UserMessage(text)]),
        WISH,
        context=context,
    )
    if wish.value["order"] != complaint.subject:
        print(f"{complaint.subject}: the customer means {wish.value['order']}; a person has to look")
        return
    agent = Agent(models, client, AGENT, tools, instructions="Look the order up, then refund what the customer wants if you can.")
    outcome = ""
    async for turn in agent.run(f"{text}\nWanted: {wish.value['amount']} EUR", cause=complaint):
        for result in turn.tool_results:
            outcome = result.output
            print(f"{complaint.subject}: {result.call.name} {result.error or 'ok'}: {outcome.splitlines()[0]}")
    draft = LLMRequest([SystemMessage("Draft a short reply to the customer."), UserMessage(f"{text}\nOutcome: {outcome}")])
    async for event in models.stream(draft, context=context):
        print(event.chunk.text_delta, end="", flush=True)
    print()


async def run(server: str, bus: str, evidence: str, position: str, once: bool) -> None:
    """Handle complaints as they come: from now on, or from where the agent stopped."""
    async with GavelClient(server, bus=bus) as client:
        recorder = InvocationRecorder(client, AGENT, evidence=EvidenceStore(evidence) if evidence else None)
        runtime = ToolRuntime(
            client, "order-tools", providers=[FunctionProvider("orders", {"orders.status": read_status, "orders.total": read_total})]
        )
        async with runtime, LLMService(providers(), recorder=recorder) as models:
            tools = await tools_of(client, runtime)

            async def wake(firing: Firing) -> None:
                for complaint in firing.events:
                    await handle(complaint, client, models, tools)
                if once:
                    subscription.stop()

            trigger = Trigger("complaints", event_names=("UserIntentDetected",), subjects=("order/*",))
            first = (await client.get_status()).head_sequence_number + 1
            subscription = TriggerSubscription(client, [trigger], wake, producer=AGENT, position=PositionFile(position), start=first)
            print("waiting for complaints", flush=True)
            await subscription.run()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="An agent with a language model, governed by Gavel.")
    parser.add_argument("--server", default="127.0.0.1:9090", help="HOST:PORT of a Gavel server with the rules and tools of the example")
    parser.add_argument("--bus", default="", help="the bus")
    parser.add_argument("--evidence", default="", help="keep prompts and outputs in this evidence store")
    parser.add_argument("--position", default="support-agent.position", help="the file that remembers where the agent stopped")
    parser.add_argument("--once", action="store_true", help="stop after the first complaint")
    settings = parser.parse_args()
    sys.exit(asyncio.run(run(settings.server, settings.bus, settings.evidence, settings.position, settings.once)))
