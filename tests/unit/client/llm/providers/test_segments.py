"""The results of the adapters: segments with citations and safety, usage, metadata."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from gavel_client.llm import (
    LLMCitationRef,
    LLMProviderError,
    LLMRequest,
    LLMResponse,
    LLMSafetyAnnotation,
    LLMSegment,
    LLMToolCall,
    LLMUsage,
    ToolMessage,
    UnknownProviderEvent,
    UserMessage,
)
from gavel_client.llm.provider import WireFormat
from gavel_client.llm.providers.anthropic_messages import MessagesFormat
from gavel_client.llm.providers.chat_completions import ChatCompletionsFormat
from gavel_client.llm.providers.openai_responses import ResponsesFormat

from tests.support.llm.transcripts import stream_events, transcript

FORMATS: dict[str, WireFormat] = {
    "responses": ResponsesFormat(),
    "chat_completions": ChatCompletionsFormat("max_completion_tokens", usage_in_streams=True),
    "messages": MessagesFormat(),
}


def body(api: str, name: str) -> dict[str, Any]:
    """Return the body of a transcript."""
    return json.loads(transcript(api, name, ".json").read_bytes())  # type: ignore[no-any-return]


def response(api: str, name: str) -> LLMResponse:
    """Return the response of a transcript."""
    return FORMATS[api].response(body(api, name), "provider")


def test_reasoning_search_text_and_citation() -> None:
    """The segments of a response are its parts in order; the citation names its source and the text that it supports."""
    answer = response("responses", "text")
    assert ["reasoning", "reasoning", "other", "text", "citation"] == [segment.type for segment in answer.segments]
    *_, search, text, citation = answer.segments
    assert "refund period damaged goods" == search.metadata["item"]["action"]["query"]
    assert [dict(citation.metadata)] == text.metadata["annotations"]
    assert LLMCitationRef("", "https://shop.example/refunds", (0, 38)) == citation.citation
    assert LLMUsage(812, 96, 64, 512, body("responses", "text")["usage"]) == answer.usage
    assert ("default", "completed") == (
        answer.extras["openai_response_metadata"]["service_tier"],
        answer.extras["openai_response_metadata"]["status"],
    )


def test_hosted_tools_are_kept_whole() -> None:
    """Items of tools that the provider runs are segments of type other, with the whole item."""
    answer = response("responses", "hosted_tools")
    kinds = ["file_search_call", "code_interpreter_call", "mcp_list_tools", "mcp_call"]
    assert kinds == [segment.metadata["item"]["type"] for segment in answer.segments[:4]]
    assert [LLMCitationRef("file-1", "policy.pdf"), LLMCitationRef("cfile_1", "sum.csv", (0, 13))] == [
        s.citation for s in answer.segments[5:]
    ]


def test_citations_and_failures_of_hosted_tools_in_messages() -> None:
    """Citations stand after the block that they belong to; a failed search is an error."""
    answer = response("messages", "citations")
    assert ["other", "other", "text", "text", "citation", "other", "error"] == [segment.type for segment in answer.segments]
    assert LLMCitationRef("", "https://shop.example/refunds") == answer.segments[4].citation
    assert "max_uses_exceeded" == answer.segments[6].content
    cited = {"type": "char_location", "cited_text": "30 days", "document_index": 0, "document_title": "Policy"}
    block = {"type": "text", "text": "30 days.", "citations": [cited]}
    assert (
        LLMCitationRef("0", "Policy")
        == FORMATS["messages"].response(body("messages", "text") | {"content": [block]}, "p").segments[1].citation
    )


@pytest.mark.parametrize(
    ("api", "call_ids"),
    [("responses", ("call_9aX1", "call_9aX2")), ("chat_completions", ("call_b1", "call_b2")), ("messages", ("toolu_01", "toolu_02"))],
)
def test_calls_of_tools_are_segments(api: str, call_ids: tuple[str, str]) -> None:
    """Each call of a tool is a segment with its arguments, id and name, after the parts before it; a stream has the same segments."""
    answer = response(api, "parallel_tools")
    expected = [
        ('{"order":"order/7"}', call_ids[0], "orders_status"),
        ('{"order":"order/7","note":"Grüße\\n"}', call_ids[1], "orders_total"),
    ]
    assert ["tool_call", "tool_call"] == [segment.type for segment in answer.segments[-2:]]
    assert expected == _calls(answer.segments)
    assembly = FORMATS[api].assembly("provider")
    events = [event for raw in stream_events(api, "parallel_tools") for event in assembly.feed(raw)]
    streamed = [segment for event in events if event.event_type == "response.tool_call.completed" for segment in event.segments]
    assert expected == _calls(streamed)


def _calls(segments: Sequence[LLMSegment]) -> list[tuple[str, str, str]]:
    """Return arguments, id and name of the segments that are calls of tools."""
    return [(one.content, one.metadata["call_id"], one.metadata["name"]) for one in segments if one.type == "tool_call"]


@pytest.mark.parametrize("api", FORMATS)
def test_refusals_are_errors_and_no_text(api: str) -> None:
    """A refusal is a segment of type error that was blocked; its explanation is not part of the text."""
    answer = response(api, "refusal")
    assert "refusal" == answer.finish_reason
    error = answer.segments[-1]
    category = "cyber" if api == "messages" else ""
    assert ("error", "refusal", LLMSafetyAnnotation(category, "", True)) == (error.type, error.metadata["code"], error.safety)
    assert error.content
    assert error.content not in answer.text


@pytest.mark.parametrize("api", ["responses", "chat_completions"])
def test_filtered_answers_are_marked(api: str) -> None:
    """An answer that the provider's filter ended keeps its text, and says that it was ended."""
    answer = response(api, "content_filter")
    assert ("content_filter", "First, you") == (answer.finish_reason, answer.text)
    assert LLMSafetyAnnotation("content_filter", "", True) == answer.segments[-1].safety


def test_signatures_of_thinking_are_kept() -> None:
    """The provider needs its own blocks back, unchanged."""
    answer = response("messages", "parallel_tools")
    assert "EqQBCgIYAhIkSIG==" == answer.segments[0].metadata["signature"]
    assert body("messages", "parallel_tools")["content"] == answer.extras["anthropic_content"]
    assert LLMUsage(300, 120, 30, 0, body("messages", "parallel_tools")["usage"]) == answer.usage


def test_arguments_that_end_early_are_kept_as_they_are() -> None:
    """A call that a limit cut keeps its text, which is no JSON."""
    assert (LLMToolCall("toolu_03", "refund_create", '{"amount":40,"reas'),) == response("messages", "length").tool_calls


def test_outputs_of_tools_are_one_message_for_anthropic() -> None:
    """The API wants all results of one answer in the next message, before other text."""
    request = LLMRequest([UserMessage("a"), ToolMessage("c1", "t", "1"), ToolMessage("c2", "t", "2", is_error=True), UserMessage("b")])
    [message] = FORMATS["messages"].body(request, "m", "p")["messages"]
    assert ["text", "tool_result", "tool_result", "text"] == [block["type"] for block in message["content"]]
    assert [False, True] == [block["is_error"] for block in message["content"][1:3]]


@pytest.mark.parametrize("status", ["failed", "cancelled", "in_progress", "queued"])
def test_a_response_without_an_answer_is_an_error(status: str) -> None:
    """A response that failed, was cancelled or is still being made is no answer."""
    with pytest.raises(LLMProviderError):
        FORMATS["responses"].response(
            body("responses", "text") | {"status": status, "error": {"code": "server_error", "message": "-"}}, "p"
        )


def test_a_message_without_a_reason_is_unknown() -> None:
    """A message whose stop_reason is null has not ended."""
    with pytest.raises(UnknownProviderEvent, match="stop_reason"):
        FORMATS["messages"].response(body("messages", "text") | {"stop_reason": None}, "p")


def test_a_request_without_messages_is_refused() -> None:
    """There is nothing to ask."""
    with pytest.raises(ValueError, match="at least one message"):
        LLMRequest([])
