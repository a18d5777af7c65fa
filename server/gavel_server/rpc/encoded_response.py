"""A response that a method has encoded itself, from bytes of the log."""

from __future__ import annotations

from typing import Final, Generic, TypeVar

from google.protobuf.message import Message

Response = TypeVar("Response", bound=Message)


class EncodedResponse(Generic[Response]):
    """The bytes of a `Response`."""

    def __init__(self, content: bytes) -> None:
        self.content: Final = content
