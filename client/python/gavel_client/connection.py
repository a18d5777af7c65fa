"""What the two clients share: where calls go, on which bus, and how a described call becomes a method.

A client is a channel, a default bus and a Backoff. The asynchronous and the synchronous one differ only in how they wait.
"""

from __future__ import annotations

import inspect
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Final, Generic, NamedTuple, TypeVar

import grpc

from gavel_client.backoff import Backoff
from gavel_client.calls import StreamCall, UnaryCall
from gavel_client.errors import GavelError

TARGET_DEFAULT: Final = "127.0.0.1:9090"

Channel = TypeVar("Channel")
Method = TypeVar("Method", bound=Callable[..., Any])


class Stream(NamedTuple):
    """A stream of answers under way; `ends_at` is its deadline on the monotonic clock, in seconds."""

    answers: Any
    ends_at: float | None


class Connection(ABC, Generic[Channel]):
    """A channel to one server, opened with the first call.

    `target` is "HOST:PORT", "unix:PATH", or a channel that somebody else made (for TLS, interceptors, tests) and closes.
    `bus` is the bus of every call that names none; empty means "default". `backoff` paces repeated tries.
    """

    def __init__(self, target: str | Channel = TARGET_DEFAULT, *, bus: str = "", backoff: Backoff | None = None) -> None:
        self.bus = bus
        self._target = target
        self._backoff = backoff or Backoff()
        self._channel: Channel | None = None
        self._stubs: dict[Callable[[Any], Any], Any] = {}

    @property
    def closed(self) -> bool:
        """Whether no channel is open: before the first call, or since the client was closed."""
        return self._channel is None

    @abstractmethod
    def _open_channel(self, target: str) -> Channel:
        """Open a channel to "HOST:PORT" or "unix:PATH"."""

    def _rpc(self, call: UnaryCall[Any] | StreamCall[Any]) -> Any:
        """Return the stub's method for `call`, its request addressed to this connection's bus unless it names its own."""
        call.request.bus = call.request.bus or self.bus
        return call.rpc(self._stub(call.stub))

    def _streamed(self, rpc: Any, request: Any, timeout_ms: int | None) -> Stream:
        """Make a call that is answered by a stream."""
        if timeout_ms is None:
            return Stream(rpc(request, timeout=None), None)
        ends_at = time.monotonic() + timeout_ms / 1000
        return Stream(rpc(request, timeout=timeout_ms / 1000), ends_at)

    def _broken(self, stream: Stream, error: grpc.RpcError) -> GavelError:
        """Return why a stream ended that did not come to its end."""
        return GavelError.from_rpc_error(error, None if self.closed else stream.ends_at)

    def _stub(self, stub: Callable[[Any], Any]) -> Any:
        if stub not in self._stubs:
            if self._channel is None:
                self._channel = self._open_channel(self._target) if isinstance(self._target, str) else self._target
            self._stubs[stub] = stub(self._channel)
        return self._stubs[stub]

    def _release_channel(self) -> Channel | None:
        """Forget the channel; return it if it is this connection's own to close."""
        channel, self._channel = self._channel, None
        self._stubs.clear()
        return channel if isinstance(self._target, str) else None


def as_method(method: Method, describe: Callable[..., Any]) -> Method:
    """Give `method` the name, documentation and signature of the call that it makes, with `self` in front."""
    signature = inspect.signature(describe)
    own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    method.__name__ = describe.__name__
    method.__doc__ = describe.__doc__
    method.__signature__ = signature.replace(parameters=[own, *signature.parameters.values()])  # type: ignore[attr-defined]
    return method
