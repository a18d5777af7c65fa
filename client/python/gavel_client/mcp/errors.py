"""Errors of the proxy."""

from __future__ import annotations

from collections.abc import Sequence

from gavel_client.rpc.errors import GavelClientError


class ConfigurationError(GavelClientError):
    """A configuration is invalid; `messages` lists all mistakes as "file:line:column: code: message (suggestion)"."""

    def __init__(self, messages: Sequence[str]) -> None:
        self.messages = tuple(messages)
        super().__init__("\n".join(messages))


class DefinitionError(GavelClientError):
    """A tool of an upstream server cannot be governed, because its definition is unusable."""


class ExpressionError(GavelClientError):
    """An expression of the configuration does not compile, or gives no usable value for a call."""


class UpstreamError(GavelClientError):
    """A request to an upstream server failed.

    `code` is a code of tools, e.g. "E_TIMEOUT". `may_have_acted` tells whether the server may have carried out the request.
    """

    def __init__(self, code: str, message: str, *, may_have_acted: bool) -> None:
        self.code = code
        self.message = message
        self.may_have_acted = may_have_acted
        super().__init__(f"{code}: {message}")
