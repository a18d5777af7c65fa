"""The base of both clients: the channel, the default bus, and the incarnations of buses.

The asynchronous and the synchronous client differ only in how they wait.
"""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, NamedTuple, TypeVar

import grpc
from gavel.v1.administration_service_pb2 import WhoAmIResponse
from gavel.v1.administration_service_pb2_grpc import AdministrationServiceStub

from gavel_client.rpc.backoff import Backoff
from gavel_client.rpc.calls.call import StreamCall, UnaryCall
from gavel_client.rpc.credentials import ClientCredentials, Credential, Metadata, Tls
from gavel_client.rpc.errors import NO_TOKEN, GavelError, describe_error

TARGET_DEFAULT: Final = "127.0.0.1:9090"
# Responses may be larger than requests: a page of 1,000 events, 500 decisions with their evidence.
RESPONSE_BYTES_MAX: Final = 64 * 1024 * 1024
# By default gRPC's pause between connection attempts grows to two minutes, too long for a restart of the server.
RECONNECT_PAUSE_MS_MIN: Final = 100
RECONNECT_PAUSE_MS_MAX: Final = 1_000
# Timeout of one connection attempt: long enough for a distant or busy server, short enough for a second attempt before a read's deadline.
CONNECT_TIMEOUT_MS: Final = 5_000
# A connection whose peer has vanished ends after the sum of both, even if its only call is an idle stream. The server permits a ping every
# 10 s.
KEEPALIVE_MS: Final = 30_000
KEEPALIVE_TIMEOUT_MS: Final = 10_000
CHANNEL_OPTIONS: Final = (
    ("grpc.max_receive_message_length", RESPONSE_BYTES_MAX),
    ("grpc.initial_reconnect_backoff_ms", RECONNECT_PAUSE_MS_MIN),
    # The name misleads: gRPC uses it as the minimum timeout of a connection attempt, not as a pause.
    ("grpc.min_reconnect_backoff_ms", CONNECT_TIMEOUT_MS),
    ("grpc.max_reconnect_backoff_ms", RECONNECT_PAUSE_MS_MAX),
    ("grpc.keepalive_time_ms", KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    # gRPC 1.85 waits this long for the answer to a ping, whatever the option above says; by default a minute.
    ("grpc.http2.ping_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    ("grpc.http2.max_pings_without_data", 0),  # no limit
)

# The metadata with which a request names the incarnation of its bus: the event_id of the bus's first event.
BUS_INCARNATION_KEY: Final = "gavel-bus-incarnation"
# Marks the call with which the client asks for the incarnation; an empty one is not checked.
INCARNATION_QUESTION: Final = ((BUS_INCARNATION_KEY, ""),)
# How long a call waits for the server to tell the incarnation. The client asks once for each bus, after the first call that succeeds.
INCARNATION_TIMEOUT_SECONDS: Final = 2.0
_TRANSIENT: Final = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.UNAUTHENTICATED,  # the credentials have expired since the call
    }
)

_logger = logging.getLogger(__name__)

Channel = TypeVar("Channel")


class Stream(NamedTuple):
    """An open stream of responses; `ends_at` is its deadline on the monotonic clock, in seconds."""

    responses: Any
    ends_at: float | None


class Connection(ABC, Generic[Channel]):
    """A channel to one server, opened by the first call.

    `target` is "HOST:PORT", "unix:PATH" or the caller's own channel (for interceptors, tests), which the caller closes.
    `tls` verifies the server: True or Tls(ca=...). `credentials` show who calls: a token, a function that returns one, a Certificate, or a
    list of a certificate and a token. Without TLS a token is sent to loopback and Unix sockets only; ValueError otherwise.
    `bus` is the bus of every call that does not name one; empty means "default". `backoff` paces retries;
    `tries_max` limits the tries of a call, the first one included. By default its deadline does.
    """

    def __init__(
        self,
        target: str | Channel = TARGET_DEFAULT,
        *,
        bus: str = "",
        tls: Tls | bool | None = None,
        credentials: Credential | Sequence[Credential] | None = None,
        backoff: Backoff | None = None,
        tries_max: int | None = None,
    ) -> None:
        self.bus = bus
        self._credentials = ClientCredentials(target, tls, credentials)
        self._target = target
        self._backoff = backoff or Backoff()
        self._tries_max = tries_max
        self._channel: Channel | None = None
        self._stubs: dict[Callable[[Any], Any], Any] = {}
        self._incarnations: dict[str, str] = {}  # by bus; "": being asked for, or the server does not tell

    @property
    def closed(self) -> bool:
        """Whether no channel is open: before the first call and after `close`."""
        return self._channel is None

    @property
    def lacks_token(self) -> bool:
        """Whether the credentials have a provider of tokens that has not returned one yet."""
        return self._credentials.lacks_token

    def check_credentials(self) -> None:
        """Read the files of `tls` and `credentials`, as the first call does. Raises OSError, ValueError for a file that cannot be used."""
        self._credentials.channel_credentials()
        self._credentials.metadata()

    @abstractmethod
    def _open_channel(self, target: str) -> Channel:
        """Open a channel to "HOST:PORT" or "unix:PATH"."""

    def _rpc(self, call: UnaryCall[Any] | StreamCall[Any]) -> Any:
        """Return the stub's method for `call`; set the request's bus to this connection's unless the request names one."""
        if hasattr(call.request, "bus"):
            call.request.bus = call.request.bus or self.bus
        return call.rpc(self._stub(call.stub))

    def _metadata(self, bus: str) -> tuple[tuple[str, str], ...]:
        """Return the metadata of a call: the credentials, and the incarnation of the bus that this client knows.

        Another bus under the name refuses the call.
        """
        incarnation = self._incarnations.get(bus)
        own = self._own_metadata()
        return (*own, (BUS_INCARNATION_KEY, incarnation)) if incarnation else own

    def _own_metadata(self) -> Metadata:
        """Return the metadata that shows who calls.

        Raises what the provider of the token raises until it has returned one: it may be unusable. Later it raises GavelError NO_TOKEN.
        """
        try:
            return self._credentials.metadata()
        except Exception as error:
            if self.lacks_token:
                raise
            _logger.warning("the provider of the token failed: %s", describe_error(error))
            message = f"the provider of the token failed: {describe_error(error)}"
            raise GavelError(grpc.StatusCode.UNAVAILABLE, NO_TOKEN, message) from error

    def _question_metadata(self) -> Metadata:
        """Return the metadata of the call that asks for the incarnation of a bus."""
        return (*self._own_metadata(), *INCARNATION_QUESTION)

    def _incarnation_rpc(self, bus: str) -> Any:
        """Return the method that tells the incarnation of a bus, or None if it is known or a call asks for it already.

        WhoAmI needs no right: a caller that may only write is not refused.
        """
        if bus in self._incarnations or self.closed:
            return None
        self._incarnations[bus] = ""
        return self._stub(AdministrationServiceStub).WhoAmI

    def _keep_incarnation(self, bus: str, answer: WhoAmIResponse | grpc.RpcError | None) -> None:
        """Keep what the server told about the incarnation of a bus. After a transient error or no answer the next call asks again."""
        if isinstance(answer, WhoAmIResponse):
            self._incarnations[bus] = answer.bus_incarnation
        elif answer is None or answer.code() in _TRANSIENT:
            del self._incarnations[bus]

    def _open_stream(self, rpc: Any, request: Any, timeout_ms: int | None, bus: str) -> Stream:
        """Start a streaming call."""
        metadata = self._metadata(bus)
        if timeout_ms is None:
            return Stream(rpc(request, timeout=None, metadata=metadata), None)
        ends_at = time.monotonic() + timeout_ms / 1000
        return Stream(rpc(request, timeout=timeout_ms / 1000, metadata=metadata), ends_at)

    def _stream_error(self, stream: Stream, error: grpc.RpcError) -> GavelError:
        """Return the error for a stream that broke."""
        return GavelError.from_rpc_error(error, None if self.closed else stream.ends_at)

    def _stub(self, stub: Callable[[Any], Any]) -> Any:
        if stub not in self._stubs:
            if self._channel is None:
                self._channel = self._open_channel(self._target) if isinstance(self._target, str) else self._target
            self._stubs[stub] = stub(self._channel)
        return self._stubs[stub]

    def _release_channel(self) -> Channel | None:
        """Drop the channel; return it if this connection opened it and has to close it."""
        channel, self._channel = self._channel, None
        self._stubs.clear()
        return channel if isinstance(self._target, str) else None
