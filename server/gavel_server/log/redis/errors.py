"""The errors of the embedded Redis."""

from __future__ import annotations

from gavel_server.log.protocol import LogError


class EmbeddedRedisError(LogError):
    """The embedded Redis cannot run; the message says why and what to do."""


class DataDirectoryInUseError(EmbeddedRedisError):
    """Another server uses the data directory. `url` is that of its Redis, None if it is not known yet."""

    def __init__(self, message: str, url: str | None) -> None:
        self.url = url
        super().__init__(message)
