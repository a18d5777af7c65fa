"""Providers that are called with OpenAI's SDK: the Responses API, and servers that speak Chat Completions.

The package openai (the extra `openai` of gavel-client) is imported when a provider is constructed. Its types stay in this module.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from gavel_client.llm.errors import LLMProviderError, MissingPackageError
from gavel_client.llm.models import JsonObject
from gavel_client.llm.provider import ModelProvider
from gavel_client.llm.providers.chat_completions import ChatCompletionsFormat
from gavel_client.llm.providers.failures import failure_code, retry_after_ms
from gavel_client.llm.providers.openai_responses import ResponsesFormat

if TYPE_CHECKING:
    import openai

_NO_OPTIONS: Final[JsonObject] = MappingProxyType({})


def openai_responses(
    model: str,
    *,
    api_key: str | None = None,
    base_url: str | None = None,
    options: JsonObject = _NO_OPTIONS,
    name: str = "openai",
) -> ModelProvider:
    """Return a provider of OpenAI's Responses API.

    `api_key` and `base_url` default to OPENAI_API_KEY and OPENAI_BASE_URL. `options` are fields of the request that `LLMSettings` lacks,
    e.g. {"store": False, "include": ["reasoning.encrypted_content"]}. Raises MissingPackageError without the package openai.
    """
    client = _client(name, api_key, base_url)
    return ModelProvider(name, model, ResponsesFormat(), _Transport(name, client, lambda: client.responses), options)


def chat_completions(
    model: str,
    *,
    api_key: str | None = None,
    base_url: str | None = None,
    options: JsonObject = _NO_OPTIONS,
    name: str = "openai",
    max_tokens_field: str = "max_completion_tokens",
    usage_in_streams: bool = True,
) -> ModelProvider:
    """Return a provider of the Chat Completions API, of OpenAI or of another server at `base_url`.

    `name` identifies the provider in the log, e.g. "deepseek". For servers that lack newer parts of the API: `max_tokens_field`
    "max_tokens", and `usage_in_streams` False if streams report no tokens; a stream that is cut at its end is then not noticed.
    """
    client = _client(name, api_key, base_url)
    wire = ChatCompletionsFormat(max_tokens_field, usage_in_streams)
    stream_options = {"stream_options": {"include_usage": True}} if usage_in_streams else {}
    return ModelProvider(name, model, wire, _Transport(name, client, lambda: client.chat.completions, stream_options), options)


class _Transport:
    """Sends JSON with a resource of the SDK, `responses` or `chat.completions`. The SDK's own retries are off."""

    def __init__(self, name: str, client: openai.AsyncOpenAI, resource: Callable[[], Any], stream_fields: JsonObject = _NO_OPTIONS) -> None:
        self._name = name
        self._client = client
        self._resource = resource
        self._stream_fields = stream_fields

    async def post(self, body: Mapping[str, Any], timeout_seconds: float) -> JsonObject:
        """Return the body of the answer."""
        response = await self._call(self._resource().with_raw_response.create(**_arguments(body, {}), timeout=timeout_seconds))
        try:
            answer = response.http_response.json()
        except ValueError as error:
            raise LLMProviderError(self._name, "malformed", "its answer is not JSON") from error
        return _object(answer, self._name)

    async def events(self, body: Mapping[str, Any], timeout_seconds: float) -> AsyncGenerator[JsonObject, None]:
        """Yield the events of a streamed answer."""
        arguments = _arguments(body, {"stream": True, **self._stream_fields})
        stream = await self._call(self._resource().create(**arguments, timeout=timeout_seconds))
        try:
            while True:
                try:
                    event = await self._call(anext(stream))
                except StopAsyncIteration:
                    return
                yield _object(event.to_dict(mode="json") if hasattr(event, "to_dict") else event, self._name)
        finally:
            await stream.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def _call(self, call: Awaitable[Any]) -> Any:
        from openai import APIConnectionError, APIError, APIStatusError, APITimeoutError, OpenAIError

        try:
            return await call
        except APITimeoutError as error:
            raise LLMProviderError(self._name, "timeout", "the provider did not answer in time") from error
        except APIConnectionError as error:
            raise LLMProviderError(self._name, "connection", _reason(error)) from error
        except APIStatusError as error:
            code = "quota" if error.code == "insufficient_quota" else failure_code(error.status_code)
            advice = retry_after_ms(error.response.headers)
            raw = error.body if isinstance(error.body, dict) else None
            raise LLMProviderError(self._name, code, error.message, status=error.status_code, retry_after_ms=advice, raw=raw) from error
        except APIError as error:
            # An error within a stream, as servers of Chat Completions send it.
            raise _stream_failure(self._name, error.message, error.body) from error
        except OpenAIError as error:
            # Of this kind are the SDK's providers of tokens.
            raise LLMProviderError(self._name, "authentication", str(error)) from error
        except ValueError as error:
            raise LLMProviderError(self._name, "malformed", f"an event is not JSON ({type(error).__name__})") from error


def _client(name: str, api_key: str | None, base_url: str | None) -> openai.AsyncOpenAI:
    try:
        import openai
    except ModuleNotFoundError as error:
        raise MissingPackageError("openai", "openai") from error
    try:
        return openai.AsyncOpenAI(api_key=api_key, base_url=base_url, max_retries=0)
    except openai.OpenAIError as error:
        raise LLMProviderError(name, "authentication", str(error)) from error


def _arguments(body: Mapping[str, Any], more: JsonObject) -> dict[str, Any]:
    """Return the arguments of the SDK's method: those that it requires, the rest as it is."""
    required = ("model", "messages", "input")
    arguments = {name: value for name, value in body.items() if name in required}
    rest = {name: value for name, value in body.items() if name not in required}
    return {**arguments, **more, "extra_body": rest}


def _object(answer: object, name: str) -> JsonObject:
    if not isinstance(answer, dict):
        raise LLMProviderError(name, "malformed", f"it sent a {type(answer).__name__} in place of an object")
    return answer


def _stream_failure(name: str, message: str, body: object) -> LLMProviderError:
    raw = body if isinstance(body, dict) else {}
    status = raw.get("code")
    code = failure_code(status) if isinstance(status, int) and not isinstance(status, bool) else "server"
    return LLMProviderError(name, "rate_limit" if status == "rate_limit_exceeded" else code, message, raw={"error": raw})


def _reason(error: Exception) -> str:
    return f"{error} ({type(error.__cause__).__name__})" if error.__cause__ else str(error)
