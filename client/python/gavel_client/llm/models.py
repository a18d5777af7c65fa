"""The types of a model's answer, which provider, service and agent layer share (constitution 003).

No field has a type of a provider's SDK. The data of a provider is kept as JSON: whole in `raw_events`, and in parts in the metadata of
segments and in `extras`. Two responses are equal if their contents are: `raw_events` and latencies, which tell how a response arrived, do
not count. So a response that was streamed equals the same response in one piece.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

JsonObject = Mapping[str, Any]

SegmentType = Literal["text", "reasoning", "tool_call", "citation", "error", "other"]

# Closed: a provider's event that maps to none of these, and is not listed by its adapter as mere progress, raises UnknownProviderEvent.
EventType = Literal[
    "response.output_text.delta",
    "response.reasoning.delta",
    "response.refusal.delta",
    "response.citation.added",
    "response.function_call_arguments.delta",
    "response.tool_call.completed",
    "response.completed",
    "response.error",
]

# Why the model ended: "length" is a limit on tokens, "pause" a turn that the provider interrupted and would continue.
FinishReason = Literal["stop", "tool_calls", "length", "content_filter", "refusal", "pause"]


@dataclass(frozen=True)
class LLMToolCall:
    """A model's request to call a tool. `arguments` is the JSON text as the model wrote it, which may be invalid."""

    call_id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class LLMUsage:
    """Numbers of tokens. `input_tokens` includes those read from and written to a cache; `details` has the provider's own counts."""

    input_tokens: int
    output_tokens: int
    reasoning_tokens: int = 0
    cached_input_tokens: int = 0
    details: JsonObject = field(default_factory=dict)

    @property
    def total_tokens(self) -> int:
        """The tokens of input and output."""
        return self.input_tokens + self.output_tokens


@dataclass(frozen=True)
class LLMCitationRef:
    """The source of a citation: its id (of a document or file; "" without one) and its address or title.

    `span` has the first character of the text segment that the source supports, and the one after the last; None if the provider does not
    tell. Places within the source are in the segment's metadata.
    """

    id: str
    source: str
    span: tuple[int, int] | None = None


@dataclass(frozen=True)
class LLMSafetyAnnotation:
    """A judgement of the provider about the answer: category and level as it spells them ("" without one), and whether it was withheld."""

    category: str
    level: str
    blocked: bool


@dataclass(frozen=True)
class LLMSegment:
    """A part of a response, in the order in which the model wrote it.

    `content` is the text: of a tool call its arguments, of a citation the cited text or source, of an error the refusal or failure.
    `metadata` has the provider's fields, e.g. annotations, signatures, ids. `citation` is set for citations, `safety` for refusals and
    filtered answers.
    """

    type: SegmentType
    content: str
    metadata: JsonObject = field(default_factory=dict)
    citation: LLMCitationRef | None = None
    safety: LLMSafetyAnnotation | None = None


# The segment of an answer that the provider's filter ended.
FILTERED: Final = LLMSegment("error", "", {"code": "content_filter"}, safety=LLMSafetyAnnotation("content_filter", "", True))


@dataclass(frozen=True)
class LLMProviderMeta:
    """One attempt to get a response. `extra` has its number and the API, and, if the attempt failed, the `error` with code and message."""

    provider_name: str
    model: str
    latency_ms: float | None = field(default=None, compare=False)
    extra: JsonObject = field(default_factory=dict)


@dataclass(frozen=True)
class LLMResponse:
    """A complete answer of a model.

    `model` is the model that answered. `text` joins the text segments. `provider_meta` has all attempts, the successful one last.
    `raw_events` holds the provider's JSON: the events of a stream, or the body. Data that identifies users, and credentials of tools,
    are removed from it. `extras` holds fields under names of their provider or layer, e.g. "openai_response_metadata".
    """

    id: str
    model: str
    text: str
    finish_reason: FinishReason
    tool_calls: tuple[LLMToolCall, ...] = ()
    usage: LLMUsage | None = None
    segments: tuple[LLMSegment, ...] = ()
    provider_meta: tuple[LLMProviderMeta, ...] = ()
    raw_events: tuple[JsonObject, ...] = field(default=(), compare=False, repr=False)
    extras: JsonObject = field(default_factory=dict)

    def is_from(self, provider: str) -> bool:
        """Report whether the provider of this name answered."""
        return bool(self.provider_meta) and self.provider_meta[-1].provider_name == provider

    def to_dict(self) -> dict[str, Any]:
        """Return the whole response as JSON values."""
        return dataclasses.asdict(self)


@dataclass(frozen=True)
class LLMStreamError:
    """The failure that ends a stream."""

    code: str
    message: str


@dataclass(frozen=True)
class LLMStreamChunk:
    """The part that an event adds.

    One field is set: the one that belongs to the event's type. `arguments_delta` continues the arguments of the call `call_id` of the tool
    `tool_name`.
    """

    text_delta: str = ""
    reasoning_delta: str = ""
    refusal_delta: str = ""
    arguments_delta: str = ""
    call_id: str = ""
    tool_name: str = ""
    tool_call: LLMToolCall | None = None
    response: LLMResponse | None = None
    error: LLMStreamError | None = None


@dataclass(frozen=True)
class LLMStreamEvent:
    """An event of a stream. The last one is "response.completed" with the whole response, or "response.error", after which the
    iteration raises the error.

    `segments` are the parts that the event completes or extends. `raw_event` is the provider's event; None if there is none, as
    for a connection that broke.
    """

    event_type: EventType
    chunk: LLMStreamChunk
    segments: tuple[LLMSegment, ...] = ()
    provider_meta: tuple[LLMProviderMeta, ...] = ()
    raw_event: JsonObject | None = field(default=None, compare=False, repr=False)
    extras: JsonObject = field(default_factory=dict)
