"""However a provider splits an answer into deltas, the assembled response is the same."""

from __future__ import annotations

import json
from typing import Any

from gavel_client.llm.providers.anthropic_messages import MessagesFormat
from gavel_client.llm.providers.chat_completions import ChatCompletionsFormat
from hypothesis import given
from hypothesis import strategies as st

TEXTS = st.text(min_size=1, max_size=30)
ARGUMENTS = st.dictionaries(st.text(max_size=5), st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=8), max_size=4)


@st.composite
def pieces(draw: st.DrawFn, text: str) -> list[str]:
    """Return a text in pieces, of which some may be empty."""
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=4)))
    return [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]


@given(st.data(), TEXTS, TEXTS, st.lists(ARGUMENTS, max_size=3))
def test_messages(data: st.DataObject, thinking: str, text: str, arguments: list[dict[str, Any]]) -> None:
    """A message of thinking, text and tools is its body, however its deltas are cut."""
    wire = MessagesFormat()
    blocks: list[dict[str, Any]] = [{"type": "thinking", "thinking": thinking, "signature": "s"}, {"type": "text", "text": text}]
    blocks += [{"type": "tool_use", "id": f"toolu_{n}", "name": "t", "input": value} for n, value in enumerate(arguments)]
    usage = {"input_tokens": 3, "output_tokens": 4}
    body = {"type": "message", "id": "m", "model": "c", "role": "assistant", "content": blocks, "stop_reason": "end_turn", "usage": usage}
    assembly = wire.assembly("anthropic")
    events = assembly.feed(
        {"type": "message_start", "message": {**body, "content": [], "stop_reason": None, "usage": {**usage, "output_tokens": 1}}}
    )
    for index, block in enumerate(blocks):
        empties: dict[str, dict[str, Any]] = {
            "thinking": {"thinking": "", "signature": ""},
            "text": {"text": ""},
            "tool_use": {"input": {}},
        }
        empty = empties[block["type"]]
        events += assembly.feed({"type": "content_block_start", "index": index, "content_block": {**block, **empty}})
        for delta in data.draw(_message_deltas(block)):
            events += assembly.feed({"type": "content_block_delta", "index": index, "delta": delta})
        assert None is assembly.result()
        events += assembly.feed({"type": "content_block_stop", "index": index})
    events += assembly.feed({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 4}})
    assert None is assembly.result()
    events += assembly.feed({"type": "message_stop"})
    result = assembly.result()
    assert result is not None
    assert wire.response(body, "anthropic") == wire.response(result, "anthropic")
    assert text == "".join(event.chunk.text_delta for event in events)
    assert thinking == "".join(event.chunk.reasoning_delta for event in events)
    assert arguments == [json.loads(event.chunk.tool_call.arguments) for event in events if event.chunk.tool_call]


@st.composite
def _message_deltas(draw: st.DrawFn, block: dict[str, Any]) -> list[dict[str, Any]]:
    match block["type"]:
        case "thinking":
            deltas = [{"type": "thinking_delta", "thinking": piece} for piece in draw(pieces(block["thinking"]))]
            return [*deltas, {"type": "signature_delta", "signature": block["signature"]}]
        case "text":
            return [{"type": "text_delta", "text": piece} for piece in draw(pieces(block["text"]))]
    text = json.dumps(block["input"]) if block["input"] else draw(st.sampled_from(["", "{}"]))
    return [{"type": "input_json_delta", "partial_json": piece} for piece in draw(pieces(text))]


@given(st.data(), TEXTS, TEXTS, st.lists(ARGUMENTS, max_size=3))
def test_chat_completions(data: st.DataObject, reasoning: str, text: str, arguments: list[dict[str, Any]]) -> None:
    """A message of reasoning, text and calls is its body, however its chunks are cut, and whatever order the calls grow in."""
    wire = ChatCompletionsFormat("max_tokens", usage_in_streams=True)
    calls = [
        {"id": f"c{n}", "type": "function", "function": {"name": "t", "arguments": json.dumps(value)}} for n, value in enumerate(arguments)
    ]
    message = {"role": "assistant", "content": text, "reasoning_content": reasoning, **({"tool_calls": calls} if calls else {})}
    usage = {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if calls else "stop"}
    body = {"object": "chat.completion", "id": "i", "model": "m", "created": 5, "choices": [choice], "usage": usage}
    deltas: list[dict[str, Any]] = [{"reasoning_content": piece} for piece in data.draw(pieces(reasoning))]
    deltas += [{"content": piece} for piece in data.draw(pieces(text))]
    parts = [
        [{"index": n, "id": call["id"], "function": {"name": "t", "arguments": ""}}]
        + [{"index": n, "function": {"arguments": piece}} for piece in data.draw(pieces(call["function"]["arguments"]))]  # type: ignore[index]
        for n, call in enumerate(calls)
    ]
    while any(parts):
        part = data.draw(st.sampled_from([queue for queue in parts if queue])).pop(0)
        deltas.append({"tool_calls": [part]})
    assembly = wire.assembly("openai")
    events = []
    for delta in deltas:
        events += assembly.feed(_chunk([{"index": 0, "delta": delta, "finish_reason": None}]))
    events += assembly.feed(_chunk([{"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}]))
    assert None is assembly.result()
    events += assembly.feed(_chunk([], usage=usage))
    result = assembly.result()
    assert result is not None
    assert wire.response(body, "openai") == wire.response(result, "openai")
    assert (text, reasoning) == ("".join(e.chunk.text_delta for e in events), "".join(e.chunk.reasoning_delta for e in events))
    for call in wire.response(body, "openai").tool_calls:
        assert call.arguments == "".join(event.chunk.arguments_delta for event in events if event.chunk.call_id == call.call_id)


def _chunk(choices: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
    return {"object": "chat.completion.chunk", "id": "i", "model": "m", "created": 5, "choices": choices, **fields}
