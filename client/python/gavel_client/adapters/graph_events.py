"""The events named by the state of a LangGraph: in its field `gavel_event_ids`, and in messages, where GavelMiddleware puts them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gavel.v1.envelope_pb2 import Envelope

# A field of the state, and of `additional_kwargs` of a message.
EVENT_IDS = "gavel_event_ids"
# The contract's limit on each list of a GraphTransition.
EVENTS_MAX = 256


def name_events(message: Any, decision: Envelope | None) -> Any:
    """Add the event_ids of the proposal and the decision behind a tool's output to the output, if it is a message; return it."""
    if decision is not None and hasattr(message, "additional_kwargs"):
        message.additional_kwargs[EVENT_IDS] = [decision.decision.proposal_id, decision.event_id]
    return message


def event_ids(value: Any) -> list[str]:
    """Return the newest event_ids that the input or the output of a step names, at most EVENTS_MAX."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [event_id for item in value for event_id in event_ids(item)][-EVENTS_MAX:]
    state = value if isinstance(value, Mapping) else getattr(value, "update", None)  # a Command has an update of the state
    if not isinstance(state, Mapping):
        return []
    # The input of a single call of a tool has the state as a field.
    named = [state.get(EVENT_IDS) or (), event_ids(state.get("state") or ())]
    named += [getattr(message, "additional_kwargs", {}).get(EVENT_IDS, ()) for message in state.get("messages") or ()]
    return list(dict.fromkeys(event_id for one in named for event_id in one))[-EVENTS_MAX:]
