"""The errors of the layers of language models."""

from __future__ import annotations

from typing import Any, Final, Literal

from gavel_client.llm.models import JsonObject, LLMProviderMeta, LLMResponse
from gavel_client.rpc.errors import GavelClientError

FailureCode = Literal[
    "authentication",  # the credentials are missing, wrong, or lack a right
    "connection",  # the provider cannot be reached, or the connection broke
    "incomplete_stream",  # the stream ended before the response was complete
    "invalid_request",  # the provider refuses the request itself
    "malformed",  # the provider's answer breaks its own format
    "overloaded",  # the provider has no capacity
    "quota",  # the account has no credit
    "rate_limit",  # too many requests or tokens
    "server",  # the provider failed
    "timeout",  # no answer in time
]

# Failures that another attempt with the same provider may mend.
RETRYABLE_CODES: Final = frozenset({"connection", "incomplete_stream", "malformed", "overloaded", "rate_limit", "server", "timeout"})


class LLMError(GavelClientError):
    """Base of the errors of `gavel_client.llm`."""


class MissingPackageError(LLMError):
    """The SDK of a provider, or another optional package, is not installed."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"the package {package} is not installed; install it with: pip install 'gavel-client[{extra}]'")


class UnknownProviderEvent(LLMError):  # noqa: N818 (the name of the design, constitution 003)
    """A provider sent an event, an item or a value that its adapter does not list. The adapter has to learn it; nothing is guessed."""

    def __init__(self, provider: str, what: str, value: object, raw: JsonObject) -> None:
        super().__init__(f"{provider} sent the unknown {what} {value!r}; this version of gavel-client does not support it")
        self.provider: Final = provider
        self.what: Final = what
        self.value: Final = value
        self.raw: Final = raw


class InvalidRequestError(LLMError):
    """A request that the log cannot record, so it is not sent: its JSON has no canonical form, or its settings do not fit into a Struct."""


class LLMProviderError(LLMError):
    """A failed attempt. `status` is that of HTTP, if there was an answer; `retry_after_ms` the provider's advice, if any."""

    def __init__(
        self,
        provider: str,
        code: FailureCode,
        message: str,
        *,
        status: int | None = None,
        retry_after_ms: int | None = None,
        raw: JsonObject | None = None,
    ) -> None:
        super().__init__(f"{provider}: {code}: {message}")
        self.provider: Final = provider
        self.code: Final[FailureCode] = code
        self.message: Final = message
        self.status: Final = status
        self.retry_after_ms: Final = retry_after_ms
        self.raw: Final = raw

    @property
    def is_retryable(self) -> bool:
        """Whether the same provider may succeed at another attempt."""
        return self.code in RETRYABLE_CODES


class LLMFailedError(LLMError):
    """No provider answered. `provider_meta` has all attempts; the last failure is the cause (`__cause__`)."""

    def __init__(self, provider_meta: tuple[LLMProviderMeta, ...]) -> None:
        attempts = "; ".join(
            f"{meta.provider_name} {meta.model}: {meta.extra['error']['code']}: {meta.extra['error']['message']}" for meta in provider_meta
        )
        super().__init__(f"no provider answered in {len(provider_meta)} attempts: {attempts}")
        self.provider_meta: Final = provider_meta


class InvalidOutputError(LLMError):
    """The model's text is not JSON that matches the schema. `response` is its last answer, `problem` the mismatch."""

    def __init__(self, problem: str, response: LLMResponse) -> None:
        super().__init__(f"the model's output does not match the schema: {problem}")
        self.problem: Final = problem
        self.response: Final = response


def error_fields(error: LLMProviderError) -> dict[str, Any]:
    """Return the failure as JSON values, for the metadata of its attempt."""
    fields: dict[str, Any] = {"code": error.code, "message": error.message}
    return fields if error.status is None else fields | {"status": error.status}
