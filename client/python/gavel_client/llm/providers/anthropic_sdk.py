"""Providers that are called with Anthropic's SDK: the Messages API.

The package anthropic (the extra `anthropic` of gavel-client) is imported when a provider is constructed. Its types stay in this module.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from gavel_client.llm.errors import LLMProviderError, MissingPackageError, UnknownProviderEvent
from gavel_client.llm.models import JsonObject
from gavel_client.llm.provider import ModelProvider
from gavel_client.llm.providers.anthropic_messages import MessagesFormat, failure
from gavel_client.llm.providers.failures import failure_code, retry_after_ms

if TYPE_CHECKING:
    import anthropic

_NO_OPTIONS: Final[JsonObject] = MappingProxyType({})


def anthropic_messages(
    model: str,
    *,
    api_key: str | None = None,
    base_url: str | None = None,
    options: JsonObject = _NO_OPTIONS,
    name: str = "anthropic",
) -> ModelProvider:
    """Return a provider of Anthropic's Messages API.

    `api_key` and `base_url` default to ANTHROPIC_API_KEY and ANTHROPIC_BASE_URL. `options` are fields of the request that `LLMSettings`
    lacks, e.g. {"thinking": {"type": "adaptive"}}. Raises MissingPackageError without the package anthropic.
    """
    try:
        import anthropic
    except ModuleNotFoundError as error:
        raise MissingPackageError("anthropic", "anthropic") from error
    try:
        client = anthropic.AsyncAnthropic(api_key=api_key, base_url=base_url, max_retries=0)
    except anthropic.AnthropicError as error:
        raise LLMProviderError(name, "authentication", str(error)) from error
    return ModelProvider(name, model, MessagesFormat(), _Transport(name, client), options)


class _Transport:
    """Sends JSON with the SDK. Its own retries are off.

    Events are read before the SDK filters them: it drops events without a name.
    """

    def __init__(self, name: str, client: anthropic.AsyncAnthropic) -> None:
        self._name = name
        self._client = client

    async def post(self, body: Mapping[str, Any], timeout_seconds: float) -> JsonObject:
        """Return the body of the answer."""
        response = await self._call(self._client.messages.with_raw_response.create(**_arguments(body), timeout=timeout_seconds))
        return self._object(response.http_response.json)

    async def events(self, body: Mapping[str, Any], timeout_seconds: float) -> AsyncGenerator[JsonObject, None]:
        """Yield the events of a streamed answer."""
        from anthropic import AsyncStream

        call = self._client.messages.with_streaming_response.create(**_arguments(body), stream=True, timeout=timeout_seconds)
        response = await self._call(call.__aenter__())
        try:
            events = AsyncStream.raw_events(response.http_response)
            while True:
                try:
                    event = await self._call(anext(events))
                except StopAsyncIteration:
                    return
                raw = self._object(event.json)
                if event.event != raw.get("type"):
                    raise UnknownProviderEvent(self._name, "event", event.event, raw)
                yield raw
        finally:
            await call.__aexit__(None, None, None)

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def _call(self, call: Awaitable[Any]) -> Any:
        import httpx2
        from anthropic import AnthropicError, APIConnectionError, APIStatusError, APITimeoutError, CredentialsError

        try:
            return await call
        except (APITimeoutError, httpx2.TimeoutException) as error:
            raise LLMProviderError(self._name, "timeout", "the provider did not answer in time") from error
        except (APIConnectionError, httpx2.TransportError) as error:
            raise LLMProviderError(self._name, "connection", f"{error} ({type(error.__cause__ or error).__name__})") from error
        except APIStatusError as error:
            advice = retry_after_ms(error.response.headers)
            body = error.body
            if isinstance(body, dict) and isinstance(body.get("error"), dict):
                raise failure(body, self._name, error.status_code, advice) from error
            code = failure_code(error.status_code)
            raise LLMProviderError(self._name, code, error.message, status=error.status_code, retry_after_ms=advice) from error
        except CredentialsError as error:
            raise LLMProviderError(self._name, "authentication", str(error)) from error
        except AnthropicError as error:
            raise LLMProviderError(self._name, "malformed", str(error)) from error
        except TypeError as error:
            # The SDK finds out at the first call that it has no credentials.
            if "authentication method" not in str(error):
                raise
            message = "there are no credentials; pass api_key, or set ANTHROPIC_API_KEY"
            raise LLMProviderError(self._name, "authentication", message) from error
        except ValueError as error:
            raise LLMProviderError(self._name, "malformed", f"a part of the stream is not text ({type(error).__name__})") from error

    def _object(self, value: Any) -> JsonObject:
        try:
            answer = value()
        except ValueError as error:
            raise LLMProviderError(self._name, "malformed", "its answer is not JSON") from error
        if not isinstance(answer, dict):
            raise LLMProviderError(self._name, "malformed", f"it sent a {type(answer).__name__} in place of an object")
        return answer


def _arguments(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of the SDK's method: those that it requires, the rest as it is."""
    required = ("model", "messages", "max_tokens")
    arguments = {name: value for name, value in body.items() if name in required}
    return {**arguments, "extra_body": {name: value for name, value in body.items() if name not in required}}
