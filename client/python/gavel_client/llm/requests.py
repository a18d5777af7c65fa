"""A request to a model: messages, tools and settings, the same for every provider."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from gavel_client.llm.models import LLMResponse

MAX_OUTPUT_TOKENS_DEFAULT: Final = 8_192

ReasoningEffort = Literal["low", "medium", "high"]


@dataclass(frozen=True)
class SystemMessage:
    """Instructions of the developer."""

    text: str


@dataclass(frozen=True)
class UserMessage:
    """A message to the model."""

    text: str


@dataclass(frozen=True)
class AssistantMessage:
    """An earlier answer of a model, whole: its provider gets its own items back, another provider the text and the tool calls."""

    response: LLMResponse


@dataclass(frozen=True)
class ToolMessage:
    """The output of a tool for the call `call_id` of an earlier answer. `recorded_output`, if set, is recorded in its place."""

    call_id: str
    name: str
    output: str
    is_error: bool = False
    recorded_output: str | None = None


LLMMessage = SystemMessage | UserMessage | AssistantMessage | ToolMessage


@dataclass(frozen=True)
class LLMTool:
    """A tool that the model may call. `name` has 1..64 letters, digits, "_" and "-". `parameters` is a JSON Schema of an object.

    `redactions` are those of a contract; those of arguments apply to the record of a call.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    redactions: Sequence[str] = ()


@dataclass(frozen=True)
class LLMSettings:
    """Settings that every provider knows. None leaves the provider's default.

    Settings of one provider alone are its `options`.
    """

    temperature: float | None = None
    top_p: float | None = None
    max_output_tokens: int = MAX_OUTPUT_TOKENS_DEFAULT
    reasoning_effort: ReasoningEffort | None = None


@dataclass(frozen=True)
class LLMRequest:
    """One question to a model.

    `tool_choice`: "auto", "required" (any tool) or "none". `output_schema`: the JSON Schema of the text, for providers that can
    constrain it; `LLMService.complete_json` checks it for all.
    """

    messages: Sequence[LLMMessage]
    tools: Sequence[LLMTool] = ()
    tool_choice: Literal["auto", "required", "none"] = "auto"
    settings: LLMSettings = field(default_factory=LLMSettings)
    output_schema: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if not self.messages:
            raise ValueError("a request needs at least one message")
