"""The turns of calls in LangChain: each answer of a model has its own, whatever is removed from the messages.

The number of the answers is kept in the state of the graph, and each answer carries its turn. A node that runs again starts from the same
state, so it comes to the same turn. An agent within another graph counts from one each time that it is called. Its turns begin with its
place there, which LangGraph names anew for each visit, and keeps while a node is resumed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Final

from typing_extensions import NotRequired

from gavel_client.adapters.extras import extra
from gavel_client.gate import Call

with extra("langgraph"):
    from langchain.agents.middleware.types import (
        AgentState,
        ExtendedModelResponse,
        ModelRequest,
        ModelResponse,
        PrivateStateAttr,
        ToolCallRequest,
    )
    from langchain.messages import AIMessage, HumanMessage
    from langgraph.types import Command

# Between the nodes of nested graphs in a `checkpoint_ns`; the last node is that of the tools.
NAMESPACE_SEPARATOR: Final = "|"
# The key of the turn in `additional_kwargs` of an answer.
TURN: Final = "gavel_turn"


class AnswerState(AgentState[Any]):
    """The state of an agent, with the number of the model's answers."""

    gavel_answers: NotRequired[Annotated[int, PrivateStateAttr]]


def with_turn(request: ModelRequest[Any], response: ModelResponse[Any]) -> ExtendedModelResponse[Any]:
    """Return the model's answer with its turn: the last message of a person, and the number of the answer in the thread."""
    state: Any = request.state
    number = state.get("gavel_answers", 0) + 1
    persons = [message.id for message in state["messages"] if isinstance(message, HumanMessage)]
    turn = f"{persons[-1] if persons else ''}/{number}"
    result = [
        message.model_copy(update={"additional_kwargs": {**message.additional_kwargs, TURN: turn}})
        if isinstance(message, AIMessage) and message.tool_calls
        else message
        for message in response.result
    ]
    return ExtendedModelResponse(replace(response, result=result), Command(update={"gavel_answers": number}))


def call_of(request: ToolCallRequest) -> Call:
    """Return the call: its task is the thread, its turn the model's answer, after the agent's place in other graphs. Raises ValueError."""
    settings = request.runtime.config.get("configurable", {})
    place = str(settings.get("checkpoint_ns", "")).rpartition(NAMESPACE_SEPARATOR)[0]
    turn = f"{place}/{_turn(request)}" if place else _turn(request)
    return Call(request.tool_call["name"], request.tool_call["args"], str(settings.get("thread_id", "")), turn)


def _turn(request: ToolCallRequest) -> str:
    """Return the turn of a call. An answer that does not come from the agent's model has its own id as its turn. Raises ValueError."""
    answers = [message for message in request.state["messages"] if isinstance(message, AIMessage)]
    call_id = request.tool_call["id"]
    answer = next((one for one in reversed(answers) if any(call["id"] == call_id for call in one.tool_calls)), None)
    turn = answer and (answer.additional_kwargs.get(TURN) or answer.id)
    if not turn:
        raise ValueError(f"no message with an id has the call of {request.tool_call['name']}; keep the messages by add_messages")
    return str(turn)
