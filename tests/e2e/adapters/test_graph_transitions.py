"""The record of the steps of a LangGraph.

Tests import the framework themselves: processes that only collect them are spared the second.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import TypedDict

import pytest
from gavel.v1.diagnostic_pb2 import GraphTransition
from gavel.v1.envelope_pb2 import Envelope
from gavel_client import GavelClient, GavelError, SyncGavelClient
from gavel_client.gate import Gate, SyncGate
from gavel_client.rpc.paging import pages

from tests.e2e.adapters.agents.agent import Depot, actions


class State(TypedDict):
    """A state that names events."""

    gavel_event_ids: list[str]


async def events_of(client: GavelClient) -> list[Envelope]:
    """Return the events of the bus."""
    return [event async for page in pages(client.list_events, page_size=1000) for event in page.envelopes]


def transitions(events: Sequence[Envelope]) -> list[GraphTransition]:
    """Return the transitions among events."""
    return [event.agent_diagnostic.graph_transition for event in events if event.agent_diagnostic.HasField("graph_transition")]


@pytest.mark.long
@pytest.mark.parametrize("is_synchronous", [False, True])
async def test_each_step_is_recorded_with_its_events(client: GavelClient, sync_client: SyncGavelClient, is_synchronous: bool) -> None:
    """The log has every node of a run once, with the events that the tools' step wrote and the model's next step read."""
    from gavel_client.adapters.graph_transitions import GraphTransitions

    from tests.e2e.adapters.agents.langgraph import LangGraphAgent, SyncLangGraphAgent

    if is_synchronous:
        agent: LangGraphAgent = SyncLangGraphAgent(SyncGate(sync_client, actions(), agent="a", executor="x"), Depot(), "thread-1")
    else:
        agent = LangGraphAgent(Gate(client, actions(), agent="a", executor="x"), Depot(), "thread-1")
    agent.callbacks = [GraphTransitions(sync_client, "a")]
    await agent.start([{"parcel": "1", "weight": 2.0}])
    events = await events_of(client)
    proposal, decision = (next(event for event in events if event.HasField(kind)) for kind in ("proposal", "decision"))
    written = [proposal.event_id, decision.event_id]
    recorded = transitions(events)
    steps = [(one.graph_node, list(one.input_event_ids), list(one.output_event_ids)) for one in recorded]
    assert [("model", [], []), ("tools", [], written), ("model", written, [])] == steps
    versions = [one.state_version for one in recorded]
    assert sorted(set(versions)) == versions
    assert {"thread-1"} == {event.trace_id for event in events if event.agent_diagnostic.HasField("graph_transition")}


async def test_a_step_cannot_name_an_event_that_does_not_exist(client: GavelClient, sync_client: SyncGavelClient) -> None:
    """A node that names an event which is not on the bus fails, and is not recorded."""
    from gavel_client.adapters.graph_transitions import GraphTransitions
    from langgraph.graph import END, START, StateGraph

    unknown = str(uuid.uuid4())

    def node(state: State) -> State:
        return {"gavel_event_ids": [unknown]}

    builder = StateGraph(State)
    builder.add_node("node", node)
    builder.add_edge(START, "node")
    builder.add_edge("node", END)
    graph = builder.compile()
    with pytest.raises(GavelError) as refused:
        await graph.ainvoke({"gavel_event_ids": []}, {"callbacks": [GraphTransitions(sync_client, "a")]})
    assert "EVENT_NOT_FOUND" == refused.value.reason
    assert [] == transitions(await events_of(client))
