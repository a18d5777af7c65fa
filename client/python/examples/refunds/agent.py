"""An agent as a graph of nodes, like those of LangGraph, governed by Gavel. Its nodes are plain functions; it calls no model.

    python client/python/examples/refunds/agent.py --server 127.0.0.1:9090 --token-file refund-graph.token

docs/clients.md shows how to start all processes of the example. A complaint arrives as a fact, `UserIntentDetected`, of the gateway in
front of people. It fires a trigger, which runs the graph:

    triage ──▶ plan ──▶ propose ──▶ conclude          propose is a ProposalLoop: tools, observations, proposals
       ╰────────────────────────────────▲             until the refund is decided

The agent only proposes. The order system, `orders.py`, states what the order is, and `executor.py` pays; each is a process with credentials
of its own, and the grants let none of them speak for another.

The nodes share a state; edges select the next node. Every step is published as an AGENT_DIAGNOSTIC with a GraphTransition: the
node, the version of the state, the events read and written, and the reason. An auditor sees the agent's steps and evidence, not
its thoughts.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC
from typing import Final

from gavel.v1.common_pb2 import PRODUCER_TYPE_AGENT, EventCategory, Producer
from gavel.v1.decision_pb2 import Outcome
from gavel.v1.diagnostic_pb2 import GraphTransition
from gavel.v1.envelope_pb2 import Envelope
from gavel_client import (
    FactNeed,
    FactProviders,
    Firing,
    GavelClient,
    PositionFile,
    ProposalLoop,
    TokenFile,
    Trigger,
    TriggerSubscription,
    diagnostic_envelope,
    proposal_envelope,
    reference,
    wait_for_facts,
)
from gavel_client.values import from_value

AGENT: Final = Producer(type=PRODUCER_TYPE_AGENT, id="refund-graph", version="1")
END: Final = "end"


@dataclass
class State:
    """The state that the nodes share: the complaint, its analysis, and the ids of the events that a step read and wrote."""

    complaint: Envelope
    amount: float = 0.0
    wants_refund: bool = False
    outcome: str = ""
    read: list[str] = field(default_factory=list)
    written: list[str] = field(default_factory=list)


Node = Callable[[State], Awaitable[None]]
# Returns the next node and a reason code.
Edge = Callable[[State], tuple[str, str]]


class Graph:
    """A graph of nodes and edges. `run` starts at `entry`, publishes each step and ends when an edge leads to END."""

    def __init__(self, client: GavelClient, entry: str) -> None:
        self._client = client
        self._entry = entry
        self._nodes: dict[str, tuple[Node, Edge]] = {}

    def add(self, name: str, node: Node, edge: Edge) -> None:
        """Add a node and its outgoing edge."""
        self._nodes[name] = (node, edge)

    async def run(self, state: State) -> None:
        """Run the nodes from `entry` to END."""
        name, reason, version = self._entry, "TRIGGERED", 0
        while name != END:
            node, edge = self._nodes[name]
            state.read, state.written = [], []
            await node(state)
            version += 1
            await self._export(
                state,
                GraphTransition(
                    graph_node=name,
                    state_version=version,
                    input_event_ids=state.read,
                    output_event_ids=state.written,
                    transition_reason_code=reason,
                ),
            )
            name, reason = edge(state)

    async def _export(self, state: State, transition: GraphTransition) -> None:
        complaint = state.complaint
        await self._client.publish_event(
            diagnostic_envelope(
                complaint.subject,
                AGENT,
                kind="GraphTransitioned",
                graph_transition=transition,
                trace_id=complaint.trace_id,
                causation_id=complaint.event_id,
            )
        )


def refund_graph(client: GavelClient) -> Graph:
    """Return the agent: it reads a complaint, plans a refund, proposes it and stores the outcome."""

    async def triage(state: State) -> None:
        state.read = [state.complaint.event_id]
        text = from_value(state.complaint.fact.value)["text"]
        state.wants_refund = "refund" in text.lower()

    async def plan(state: State) -> None:
        state.read = [state.complaint.event_id]
        state.amount = float(from_value(state.complaint.fact.value)["amount"])

    async def propose(state: State) -> None:
        proposal = proposal_envelope(
            state.complaint.subject,
            AGENT,
            action_type="refund.create",
            params={"amount": state.amount, "currency": "EUR", "customer_id": "c-77", "reason": "damaged"},
            max_fact_age_ms=300_000,
            based_on_events=[reference(state.complaint)],
            risk=0.1,
            confidence=0.9,
            trace_id=state.complaint.trace_id,
            causation_id=state.complaint.event_id,
        )
        # A trigger may fire again after a crash; the run of a complaint is made once.
        result = await ProposalLoop(client, evidence_providers(client)).run(proposal, run_key=state.complaint.event_id)
        for item in result.rounds:
            state.written += [item.proposal.event_id, *(event.event_id for event in item.published)]
            state.read += [item.decision.event_id] if item.decision is not None else []
        state.outcome = result.reason.name

    async def conclude(state: State) -> None:
        state.outcome = state.outcome or "NOTHING_TO_DO"

    graph = Graph(client, "triage")
    graph.add("triage", triage, lambda state: ("plan", "REFUND_WANTED") if state.wants_refund else ("conclude", "NOTHING_WANTED"))
    graph.add("plan", plan, lambda _: ("propose", "PLANNED"))
    graph.add("propose", propose, lambda state: ("conclude", state.outcome))
    graph.add("conclude", conclude, lambda _: (END, "DONE"))
    return graph


def evidence_providers(client: GavelClient) -> FactProviders:
    """Return the provider of the evidence that the rules require: the order system publishes it, and the agent waits for it."""
    providers = FactProviders()

    @providers.facts("order.status", "order.total", "order.customer_id", source="orders-db")
    async def order(need: FactNeed) -> list[Envelope]:
        return await wait_for_facts(client, need)

    return providers


def line(event: Envelope) -> str:
    """Return the line of the timeline for an event."""
    kind = EventCategory.Name(event.event_category).removeprefix("EVENT_CATEGORY_").removesuffix("_EVENT").replace("_", " ").lower()
    match event.WhichOneof("payload"):
        case "fact":
            what = f"{event.event_name}: {event.fact.key} = {from_value(event.fact.value)}"
        case "proposal":
            what = f"{event.proposal.action_type}, citing {len(event.proposal.based_on_events)}"
        case "decision":
            missing = ", ".join(event.decision.retry_hint.missing_fact_keys)
            what = f"{Outcome.Name(event.decision.outcome).removeprefix('OUTCOME_')} {event.decision.reason_code}".rstrip()
            what += f", missing {missing}" if missing else ""
        case "agent_diagnostic" if event.agent_diagnostic.HasField("graph_transition"):
            step = event.agent_diagnostic.graph_transition
            what = f"node {step.graph_node} (state {step.state_version}, because {step.transition_reason_code})"
            what += f" read {len(step.input_event_ids)}, wrote {len(step.output_event_ids)}"
        case _:
            what = event.event_name
    at = event.recorded_at.ToDatetime(tzinfo=UTC).strftime("%H:%M:%S.%f")[:-3]
    return f"{event.sequence_number:>5}  {at}  {kind:<16} {event.producer.id:<14} {what}"


async def run(server: str, bus: str, token_file: str, position_file: str, complaints: int) -> None:
    """Run the graph for each complaint and print its trace; stop after `complaints` of them, or never if that is 0."""
    handled = 0
    async with GavelClient(server, bus=bus, credentials=TokenFile(token_file)) as client:
        graph = refund_graph(client)

        async def wake(firing: Firing) -> None:
            nonlocal handled
            for complaint in firing.events:
                await graph.run(State(complaint))
                print(f"{complaint.subject}, trace {complaint.trace_id}")
                for event in (await client.get_trace(complaint.trace_id)).envelopes:
                    print(line(event), flush=True)
                handled += 1
            if handled == complaints:
                subscription.stop()

        trigger = Trigger("complaints", event_names=("UserIntentDetected",), subjects=("order/*",))
        subscription = TriggerSubscription(client, [trigger], wake, producer=AGENT, position=PositionFile(position_file))
        await subscription.run()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="An agent as a graph, governed by Gavel.")
    parser.add_argument("--server", default="127.0.0.1:9090", help="HOST:PORT of a Gavel server")
    parser.add_argument("--bus", default="", help="the bus")
    parser.add_argument("--token-file", required=True, help="the file of the token of refund-graph")
    parser.add_argument("--position", default="refund-graph.position", help="the file that keeps how far the agent has read")
    parser.add_argument("--complaints", type=int, default=0, help="stop after so many complaints; 0: never")
    settings = parser.parse_args()
    sys.exit(asyncio.run(run(settings.server, settings.bus, settings.token_file, settings.position, settings.complaints)))
