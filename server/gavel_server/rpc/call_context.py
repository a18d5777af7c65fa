"""The context of a call: which method, over which transport, by whom, with which metadata, until when.

Both transports give the same context for the same call (ADR 0031); the names follow gRPC. Metadata is the caller's own: gRPC's keys are
left out. A context is built for each call of the hot path, so its parts are decoded when a method first reads them.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, Literal, NamedTuple
from urllib.parse import unquote

import grpc
from gavel_rules.identity.principal import ANONYMOUS, Principal

from gavel_server.bus.request import Cancellation
from gavel_server.fairness.callers import address_of, caller_of
from gavel_server.identity.sessions import Session
from gavel_server.process.telemetry.trace_context import TRACEPARENT_KEY, parse_traceparent

Transport = Literal["grpc.aio", "native"]
Metadata = tuple[tuple[str, str | bytes], ...]
"""Sorted by key; values of one key in the caller's order. Values are text, or bytes where the key ends in "-bin"."""

# The front writes the caller's address into a forwarded call under this key. Trusted on the private socket only, with its secret.
PEER_KEY: Final = "gavel-peer"
# So the time at which the front received a forwarded call, in nanoseconds since the epoch.
RECEIVED_KEY: Final = "gavel-received"
# The peer of a caller on a unix socket, which has no address of its own.
UNIX_PEER: Final = "unix:"
# The server answers with it, before everything else, if a forwarded call waits. The front does not pass these headers on.
WAITS_KEY: Final = "gavel-waits"
# The one key of Gavel's that is a caller's own metadata: the request is refused if its bus has another incarnation.
BUS_INCARNATION_KEY: Final = "gavel-bus-incarnation"
_GRPC_KEYS: Final = frozenset({"user-agent", "te", "content-type", "authorization"})
_GAVEL_PREFIX: Final = "gavel-"


class Caller(NamedTuple):
    """A transport's description of a caller. `deadline_seconds` is on the clock of `time.monotonic`; None: the call has no deadline.

    `received_ns` is when the native front received the call, in nanoseconds since the epoch; 0: there is no front.
    """

    transport: Transport
    peer: str
    metadata: Metadata
    deadline_seconds: float | None
    received_ns: int = 0


class CallContext:
    """The context of one call, for interceptor and methods."""

    __slots__ = (
        "_caller",
        "_decode",
        "_has_metadata",
        "_has_sent_headers",
        "_key",
        "_peer",
        "_principal",
        "_send_headers",
        "cancellation",
        "method",
        "session",
    )

    def __init__(
        self,
        method: str,
        decode: Callable[[], Caller],
        send_headers: Callable[[Metadata], Awaitable[None]] | None = None,
        peer: str | None = None,
        *,
        has_metadata: bool = True,
        session: Session | None = None,
    ) -> None:
        """`method` is "gavel.v1.EventService/GetEvent" or the like; `decode` is called once, when the caller is first read.

        `peer` is the caller's address, if it is known without decoding; `has_metadata` is False if the caller is known to have sent none.
        `session` is the caller's, if the transport has authenticated it.
        """
        self._peer: Final = peer
        self._has_metadata: Final = has_metadata
        self._principal: Final = ANONYMOUS if session is None else session.principal
        # Ends when the caller's credentials expire or are revoked; None: the call needs none.
        self.session: Final = session
        self.method: Final = method
        self._decode: Final = decode
        self._send_headers: Final = send_headers
        self._has_sent_headers = False
        self._caller: Caller | None = None
        self._key = ""  # the caller's, once it is known
        # The transport cancels it when the caller has gone.
        self.cancellation: Final = Cancellation()

    @property
    def transport(self) -> Transport:
        """How the caller reached the server; a call that the front forwards is "native"."""
        return self._decode_caller().transport

    @property
    def peer(self) -> str:
        """The caller's end of its connection: "HOST:PORT", "[IPV6]:PORT", or "unix:"."""
        return self._decode_caller().peer if self._peer is None else self._peer

    @property
    def principal(self) -> Principal:
        """The caller: authenticated before any method is called, or ANONYMOUS on a server without authentication."""
        return self._principal

    @property
    def caller(self) -> str:
        """The caller's key for limits by connection (`fairness/callers`)."""
        key = self._key
        if not key:
            key = self._key = caller_of(self.peer, self._principal)
        return key

    @property
    def address(self) -> str:
        """The caller's key for limits by address: its principal, if it was authenticated, else its host."""
        return address_of(self.caller)

    @property
    def metadata(self) -> Metadata:
        """The caller's own metadata."""
        return self._decode_caller().metadata if self._has_metadata else ()

    @property
    def bus_incarnation(self) -> str:
        """The incarnation of the bus that the caller knows, or "": the event_id of the bus's first event."""
        for key, value in self.metadata:
            if key == BUS_INCARNATION_KEY:
                return str(value)
        return ""

    @property
    def traceparent(self) -> str:
        """The caller's trace context in the form of version 00 (W3C Trace Context), or "" if the caller sent none that is valid."""
        text = ""
        for key, value in self.metadata:
            if key == TRACEPARENT_KEY:
                text = str(value)  # the last one, as gRPC's C core keeps it
        return parse_traceparent(text) if text else ""

    @property
    def received_ns(self) -> int:
        """When the native front received the call, in nanoseconds since the epoch; 0: there is no front."""
        return self._decode_caller().received_ns

    def remaining_ms(self) -> int | None:
        """Return how long the caller still waits, in milliseconds and at least 0; None: the call has no deadline."""
        deadline_seconds = self._decode_caller().deadline_seconds
        return None if deadline_seconds is None else max(0, int((deadline_seconds - time.monotonic()) * 1000))

    async def send_headers(self) -> None:
        """Send the response headers now, before the first message. Does nothing where the transport sends no headers by themselves."""
        await self._send_once(())

    async def announce_wait(self) -> None:
        """Tell the native front that the call waits, so that another one may have its place."""
        await self._send_once(((WAITS_KEY, "1"),))

    async def _send_once(self, headers: Metadata) -> None:
        if self._send_headers is not None and not self._has_sent_headers:
            self._has_sent_headers = True
            await self._send_headers(headers)

    def _decode_caller(self) -> Caller:
        if self._caller is None:
            self._caller = self._decode()
        return self._caller


def own_metadata(pairs: Iterable[tuple[str, str | bytes]]) -> Metadata:
    """Return a caller's own metadata, sorted by key. Credentials, and the keys of gRPC and of the front, are left out."""
    return tuple(sorted((pair for pair in pairs if _is_own(pair[0])), key=_key))


def _is_own(key: str) -> bool:
    return not (key in _GRPC_KEYS or key.startswith("grpc-") or (key.startswith(_GAVEL_PREFIX) and key != BUS_INCARNATION_KEY))


def grpc_call_context(
    method: str, call: grpc.aio.ServicerContext[Any, Any], *, behind_front: bool, session: Session | None = None
) -> CallContext:
    """Return the context of a call that arrived over grpc.aio, with the caller's session if it was authenticated.

    `behind_front`: the server listens on its private socket alone, so PEER_KEY comes from the front, or from the server's own clients.
    """

    def decode() -> Caller:
        pairs: list[tuple[str, str | bytes]] = [(key, value) for key, value in call.invocation_metadata() or ()]
        untyped: Any = call  # its stub omits that the time is None without a deadline
        remaining: float | None = untyped.time_remaining()
        deadline_seconds = None if remaining is None else time.monotonic() + remaining
        forwarded = {key: str(value) for key, value in pairs if key in (PEER_KEY, RECEIVED_KEY)} if behind_front else {}
        if PEER_KEY in forwarded:
            received = forwarded.get(RECEIVED_KEY, "")
            received_ns = int(received) if received.isascii() and received.isdigit() else 0
            return Caller("native", forwarded[PEER_KEY], own_metadata(pairs), deadline_seconds, received_ns)
        return Caller("grpc.aio", peer_address(call.peer()), own_metadata(pairs), deadline_seconds)

    return CallContext(method, decode, call.send_initial_metadata, session=session)


def peer_address(name: str) -> str:
    """Return gRPC's name of a peer as an address: "ipv4:127.0.0.1:80", "ipv6:%5B::1%5D:80", "unix:" or "unix:PATH"."""
    family, _, address = name.partition(":")
    return UNIX_PEER if family == "unix" else unquote(address)


def _key(pair: tuple[str, str | bytes]) -> str:
    return pair[0]
