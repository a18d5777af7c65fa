"""LangGraph: a callback that records each step of a graph as an AGENT_DIAGNOSTIC with a `GraphTransition`.

The step has read the events that its input names, and written those that only its output names (see `graph_events`).
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from gavel.v1.common_pb2 import PRODUCER_TYPE_AGENT, Producer
from gavel.v1.diagnostic_pb2 import GraphTransition

from gavel_client.adapters.extras import extra
from gavel_client.adapters.graph_events import event_ids
from gavel_client.decisions import to_dict
from gavel_client.envelopes import content_hash, diagnostic_envelope
from gavel_client.gate.actions import trace_id
from gavel_client.rpc.sync import SyncGavelClient

with extra("langgraph"):
    from langchain_core.callbacks import BaseCallbackHandler

KIND = "GraphTransitioned"
_STEPS = uuid.UUID("3f0a6c50-0f0e-4c43-9d6f-4a1b7d0d8a5e")


class GraphTransitions(BaseCallbackHandler):
    """Pass it to the graph: `config={"callbacks": [GraphTransitions(client, "my-agent")]}`. A step that cannot be recorded fails.

    A graph that runs in an event loop may have it too: LangChain calls it in a thread. `subject` defaults to `agent/ID`.
    """

    raise_error = True

    def __init__(self, client: SyncGavelClient, agent: str, subject: str = "") -> None:
        self._client = client
        self._producer = Producer(type=PRODUCER_TYPE_AGENT, id=agent)
        self._subject = subject or f"agent/{agent}"
        self._running: dict[uuid.UUID, tuple[Mapping[str, Any], list[str]]] = {}

    def on_chain_start(self, serialized: Any, inputs: Any, *, run_id: uuid.UUID, **details: Any) -> None:
        """Note the step and the events of its input."""
        metadata = details.get("metadata") or {}
        if "langgraph_node" in metadata and details.get("name") == metadata["langgraph_node"]:
            self._running[run_id] = metadata, event_ids(inputs)

    def on_chain_error(self, error: BaseException, *, run_id: uuid.UUID, **details: Any) -> None:
        """Forget a step that has not ended; it runs again."""
        self._running.pop(run_id, None)

    def on_chain_end(self, outputs: Any, *, run_id: uuid.UUID, **details: Any) -> None:
        """Record the step."""
        metadata, read = self._running.pop(run_id, ({}, []))
        if not metadata:
            return
        transition = GraphTransition(
            graph_node=metadata["langgraph_node"],
            state_version=metadata["langgraph_step"],
            input_event_ids=read,
            output_event_ids=[event_id for event_id in event_ids(outputs) if event_id not in read],
            transition_reason_code=", ".join(map(str, metadata.get("langgraph_triggers", ()))),
        )
        thread, place = str(metadata.get("thread_id", "")), str(metadata.get("langgraph_checkpoint_ns", ""))
        step = content_hash([thread, place, to_dict(transition)])
        self._client.publish_event(
            diagnostic_envelope(
                self._subject,
                self._producer,
                kind=KIND,
                graph_transition=transition,
                event_id=str(uuid.uuid5(_STEPS, f"{self._producer.id}/{step}")),
                trace_id=trace_id(thread) if thread else "",
            )
        )
