"""The description of a call: the request built from plain arguments, the deadline, whether a retry is safe."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import grpc
from gavel.v1.envelope_pb2 import Envelope
from google.protobuf.message import Message

from gavel_client.envelopes import new_event_id

Stub = TypeVar("Stub")
Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response")
Response_co = TypeVar("Response_co", covariant=True)


@dataclass(frozen=True)
class UnaryCall(Generic[Response_co]):
    """A call with one response. `rpc` selects the method of an instance of `stub`."""

    stub: Callable[[Any], Any]
    rpc: Callable[[Any], Any]
    request: Any
    timeout_ms: int
    repeatable: bool

    @property
    def bus(self) -> str:
        """The bus that the request names, if it can name one."""
        return str(getattr(self.request, "bus", ""))


@dataclass(frozen=True)
class StreamCall(Generic[Response_co]):
    """A call with a stream of responses. It is never retried, because only the caller knows how far the stream came."""

    stub: Callable[[Any], Any]
    rpc: Callable[[Any], Any]
    request: Any
    timeout_ms: int | None

    @property
    def bus(self) -> str:
        """The bus that the request names, if it can name one."""
        return str(getattr(self.request, "bus", ""))


# These two functions exist for their types, which tie a request and its response to one method of one stub.


def unary_call(
    stub: Callable[[grpc.Channel], Stub],
    rpc: Callable[[Stub], grpc.UnaryUnaryMultiCallable[Request, Response]],
    request: Request,
    timeout_ms: int,
    *,
    repeatable: bool = True,
) -> UnaryCall[Response]:
    """Describe a call with one response. `repeatable`: a retry is safe."""
    return UnaryCall(stub, rpc, request, timeout_ms, repeatable)


def stream_call(
    stub: Callable[[grpc.Channel], Stub],
    rpc: Callable[[Stub], grpc.UnaryStreamMultiCallable[Request, Response]],
    request: Request,
    timeout_ms: int | None,
) -> StreamCall[Response]:
    """Describe a call with a stream of responses. `timeout_ms` None: it has no deadline."""
    return StreamCall(stub, rpc, request, timeout_ms)


def with_event_id(envelope: Envelope) -> Envelope:
    """Return the envelope with an event_id, so that a retry sends the same event."""
    if envelope.event_id:
        return envelope
    copy = Envelope()
    copy.CopyFrom(envelope)
    copy.event_id = new_event_id()
    return copy
