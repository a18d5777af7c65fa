"""The adapters know every event, item and reason that the SDKs document: each is supported, or refused on purpose.

Tests import the SDKs themselves: processes that only collect them are spared the second.
"""

from __future__ import annotations

from typing import Any, get_args

import pytest
from gavel_client.llm import UnknownProviderEvent
from gavel_client.llm.providers import anthropic_messages, chat_completions, openai_responses
from pydantic import BaseModel

# Events and items of OpenAI that the adapter refuses: audio, which the layers lack, and tools that the caller would have to carry out.
REFUSED_EVENTS = {
    "response.audio.delta",
    "response.audio.done",
    "response.audio.transcript.delta",
    "response.audio.transcript.done",
    "response.custom_tool_call_input.delta",
    "response.custom_tool_call_input.done",
    "response.shell_call_command.added",
    "response.shell_call_command.delta",
    "response.shell_call_command.done",
    "response.shell_call_output_content.delta",
    "response.shell_call_output_content.done",
}
MEANINGFUL_EVENTS = {
    "response.output_text.delta",
    "response.reasoning_summary_text.delta",
    "response.reasoning_text.delta",
    "response.refusal.delta",
    "response.output_text.annotation.added",
    "response.function_call_arguments.delta",
    "response.output_item.done",
    "response.completed",
    "response.incomplete",
    "response.failed",
    "error",
}


def kinds(union: Any) -> set[str]:
    """Return the values of `type` of the members of an SDK's union."""
    members = get_args(get_args(union)[0]) if hasattr(union, "__metadata__") else get_args(union)
    return {value for member in members for value in get_args(member.model_fields["type"].annotation)}


def literals(model: type[BaseModel], name: str) -> set[str]:
    """Return the values that a field of an SDK's model may have."""
    annotation = model.model_fields[name].annotation
    options = [value for part in (get_args(annotation) or [annotation]) for value in (get_args(part) or [part])]
    return {value for value in options if isinstance(value, str)}


def test_events_of_responses() -> None:
    """The documented events are those with a meaning, those of progress, and those refused on purpose."""
    from openai.types.responses import ResponseStreamEvent

    assert kinds(ResponseStreamEvent) == MEANINGFUL_EVENTS | openai_responses.PROGRESS_EVENTS | REFUSED_EVENTS
    for kind in REFUSED_EVENTS:
        with pytest.raises(UnknownProviderEvent):
            openai_responses.ResponsesFormat().assembly("openai").feed({"type": kind})


def test_items_of_responses() -> None:
    """Items that the adapter refuses ask the caller to act, or belong to the input."""
    from openai.types.responses import ResponseOutputItem

    supported = {"message", "reasoning", "function_call"} | openai_responses.HOSTED_ITEMS
    refused = kinds(ResponseOutputItem) - supported
    assert supported <= kinds(ResponseOutputItem)
    assert {"computer_call", "custom_tool_call", "local_shell_call", "shell_call", "apply_patch_call", "mcp_approval_request"} <= refused


def test_annotations_of_responses() -> None:
    """Every documented annotation is a citation."""
    from openai.types.responses.response_output_text import Annotation

    fields = {"url": "u", "filename": "f", "file_id": "i", "start_index": 0, "end_index": 1}
    for kind in kinds(Annotation):
        assert "citation" == openai_responses._citation({"type": kind, **fields}, "openai").type


def test_reasons_of_incomplete_responses() -> None:
    """Reasons that cannot come from a request of these layers are refused."""
    from openai.types.responses.response import IncompleteDetails

    assert {"max_messages", "steered"} == literals(IncompleteDetails, "reason") - set(openai_responses._INCOMPLETE)


def test_fields_and_reasons_of_chat_completions() -> None:
    """Only audio and the old call of one function are refused."""
    from openai.types.chat.chat_completion import Choice
    from openai.types.chat.chat_completion_chunk import ChoiceDelta

    assert {"audio", "function_call"} == set(ChoiceDelta.model_fields) - chat_completions._MESSAGE_FIELDS
    assert {"function_call"} == literals(Choice, "finish_reason") - set(chat_completions._FINISH_REASONS)


def test_events_of_messages() -> None:
    """Every documented event, delta, block, citation and reason is supported."""
    from anthropic.types import ContentBlock, Message, RawContentBlockDelta, RawMessageStreamEvent, StopReason, TextCitation

    events = kinds(RawMessageStreamEvent)
    assert {"message_start", "message_delta", "message_stop", "content_block_start", "content_block_delta", "content_block_stop"} == events
    assert {"text_delta", "input_json_delta", "citations_delta", "thinking_delta", "signature_delta"} == kinds(RawContentBlockDelta)
    assert {"text", "thinking", "redacted_thinking", "tool_use"} | anthropic_messages.HOSTED_BLOCKS == kinds(ContentBlock)
    assert anthropic_messages._CITATIONS == kinds(TextCitation)
    assert set(anthropic_messages._FINISH_REASONS) == set(get_args(StopReason))
    assert set(anthropic_messages._METADATA_FIELDS) < set(Message.model_fields)
