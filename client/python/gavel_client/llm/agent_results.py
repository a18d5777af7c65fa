"""The parts of an agent's run: turns, each with the model's response and the results of the tools that it called (constitution 003)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from gavel_client.llm.errors import LLMError
from gavel_client.llm.models import LLMResponse, LLMToolCall


@dataclass(frozen=True)
class ToolExecutionResult:
    """The result of one tool call: of a tool that reads, of a proposal, or the final answer."""

    call: LLMToolCall
    """The model's request."""
    output: str
    """The text for the model."""
    error: str | None = None
    """Code of the failure, e.g. E_ARGS, or how a proposal ended that was not approved, e.g. REVIEW. None: the tool succeeded."""
    event_ids: tuple[str, ...] = ()
    """Events in the log: call, result and observation, or proposals and decisions; the last one last."""
    details: Any = None
    """The ToolOutcome of a runtime, the LoopResult of a proposal, or the decoded final answer."""
    recorded_output: str | None = None
    """The output with the contract's redactions applied, for the record of the model's next call. None: the contract redacts nothing."""


@dataclass(frozen=True)
class AgentTurn:
    """One answer of the model, whole, and what its tools did."""

    llm_response: LLMResponse
    tool_results: tuple[ToolExecutionResult, ...] = ()
    annotations: Mapping[str, Any] = field(default_factory=dict)
    """`turn`: its number from 1. `invocation_event_id`: the event of the model's call. `end`, in the last turn: "final_answer" or
    "text"."""


@dataclass(frozen=True)
class AgentResponse:
    """A whole run. `final_output` is the output of the final answer, or the text of a last turn without tool calls."""

    turns: Sequence[AgentTurn]
    final_output: str


StopCause = Literal["turns_max", "length", "content_filter", "refusal"]


class AgentStoppedError(LLMError):
    """A run ended without an answer: at its limit of turns, or because the model's answer was cut, filtered or refused."""

    def __init__(self, cause: StopCause, turns: Sequence[AgentTurn]) -> None:
        super().__init__(f"the agent stopped after {len(turns)} turns without an answer: {cause}")
        self.cause: Final[StopCause] = cause
        self.turns: Final = tuple(turns)
