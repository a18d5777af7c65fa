"""The server's end of the link: calls the method of each request frame and sends back its answer. No coroutine, no task, no gRPC."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Final

from gavel_server.bus.request import Cancellation
from gavel_server.errors import ServiceError
from gavel_server.front.authentication import FrontAuthentication
from gavel_server.front.frames import (
    AUTHENTICATE,
    BOUND,
    CANCEL,
    FORGET,
    METHODS,
    OPEN_STREAM,
    PING,
    REFUSED,
    RESPONSE,
    REVOKE,
    SERVE,
    STATUS,
    STOP,
    TLS,
    UNBOUND,
    decode_caller,
    decode_handle,
    decode_peer,
    has_metadata,
    message_start,
)
from gavel_server.front.link import Link
from gavel_server.front.orders import encode_serve, encode_tls
from gavel_server.rpc.call_context import CallContext
from gavel_server.rpc.callback_methods import Method, Tasks, open_uncounted, opening_of
from gavel_server.rpc.errors import refuse
from gavel_server.rpc.service_descriptors import ARBITRATION

if TYPE_CHECKING:
    from gavel_server.identity.tls import TlsMaterial

# The method with a stream of requests.
_STREAM: Final = METHODS[-1]
# In place of a method, in metrics and log lines of refused credentials: the front asks once for all calls of a connection.
AUTHENTICATION = "front.authenticate"


class Backend:
    """Answers the calls of one front. Call `connect` once."""

    def __init__(self, methods: Mapping[str, Method], authentication: FrontAuthentication | None = None) -> None:
        self._authentication = authentication or FrontAuthentication()
        self._is_required = self._authentication.is_required
        self._handles: set[int] = set()  # that the front has not forgotten
        self._tasks = Tasks()
        self._methods = tuple((f"{ARBITRATION.full_name}/{name}", methods[name]) for name in METHODS)
        self._open_stream = methods.get(opening_of(_STREAM), open_uncounted)
        self._streams: dict[int, Cancellation] = {}  # number -> of an open stream
        self._link: Link | None = None
        self._waiting: dict[int, Cancellation] = {}  # number -> of a call that is not answered
        self._serving = False
        self._alive = True
        self._address: asyncio.Future[str | OSError] = asyncio.get_running_loop().create_future()

    async def connect(self, end: socket.socket) -> None:
        """Take the server's end of the socket pair."""
        _, self._link = await asyncio.get_running_loop().create_unix_connection(lambda: Link(self._handle, self._disconnect), sock=end)

    async def address(self) -> str:
        """Return the address that the front has bound, once it has. Raises OSError if it cannot, or if it ended."""
        result = await asyncio.shield(self._address)
        if isinstance(result, OSError):
            raise result
        return result

    def serve(self) -> None:
        """Let the front answer calls, within the limits."""
        self._serving = True
        self._send(SERVE, 0, encode_serve(self._authentication))

    def use_tls(self, material: TlsMaterial) -> None:
        """Let the front encrypt new connections with other certificates."""
        if self._serving:
            self._send(TLS, 0, encode_tls(material))

    def ping(self) -> bool:
        """Ask the front for a sign of life. Return whether it has sent any frame since the last ping."""
        alive, self._alive = self._alive, False
        self._send(PING, 0, b"")
        return alive

    def stop(self) -> None:
        """Stop the front: at once if it does not serve yet, else after the calls under way."""
        if self._serving:
            self._send(STOP, 0, b"")
        elif self._link is not None:
            self._link.close()

    def _send(self, kind: int, number: int, content: bytes) -> None:
        if self._link is not None:
            self._link.send(kind, number, content)

    def _handle(self, kind: int, number: int, content: bytes) -> None:
        self._alive = True
        if kind < len(self._methods):
            name, method = self._methods[kind]
            context = self._context(name, content)
            self._waiting[number] = context.cancellation
            method(content[message_start(content) :], context, partial(self._answer, number))
        elif kind == CANCEL:
            for calls in (self._waiting, self._streams):
                cancellation = calls.pop(number, None)
                if cancellation is not None:
                    cancellation.cancel()
        elif kind == OPEN_STREAM:
            context = self._context(f"{ARBITRATION.full_name}/{_STREAM}", content)
            self._waiting[number] = self._streams[number] = context.cancellation
            self._open_stream(b"", context, partial(self._answer, number))
        elif kind == AUTHENTICATE:
            self._tasks.start(self._authenticate(number, content))
        elif kind == FORGET:
            self._handles.discard(number)
            self._authentication.forget(number)
        elif kind == REFUSED:
            self._authentication.on_refused(content.decode())
        elif kind == BOUND:
            self._settle(content.decode())
        elif kind == UNBOUND:
            self._settle(OSError(content.decode()))

    def _context(self, name: str, content: bytes) -> CallContext:
        return CallContext(
            name,
            partial(decode_caller, content, monotonic()),
            peer=decode_peer(content),
            has_metadata=has_metadata(content),
            session=self._authentication.session(decode_handle(content)) if self._is_required else None,
        )

    def _answer(self, number: int, result: bytes | ServiceError) -> None:
        if self._waiting.pop(number, None) is None:
            return  # the caller has gone
        if isinstance(result, ServiceError):
            self._streams.pop(number, None)
            self._send(STATUS, number, result.encoded_status())
        else:
            self._send(RESPONSE, number, result)

    async def _authenticate(self, number: int, content: bytes) -> None:
        try:
            handle = await self._authentication.authenticate(content, self._revoke)
        except Exception as error:  # noqa: BLE001  # a bug is answered as INTERNAL with an id, and logged under it
            self._send(STATUS, number, refuse(AUTHENTICATION, error).encoded_status())
            return
        self._handles.add(int.from_bytes(handle[:4], "little"))
        self._send(RESPONSE, number, handle)
        if self._link is None:
            self._forget_all()

    def _revoke(self, handle: int, reason: str) -> None:
        self._send(REVOKE, handle, reason.encode())

    def _forget_all(self) -> None:
        for handle in self._handles:
            self._authentication.forget(handle)
        self._handles.clear()

    def _disconnect(self) -> None:
        self._link = None
        self._forget_all()
        for calls in (self._waiting, self._streams):
            for cancellation in calls.values():
                cancellation.cancel()
            calls.clear()
        self._settle(OSError("the native front ended before it could listen; start the server again, or with --front none"))

    def _settle(self, result: str | OSError) -> None:
        if not self._address.done():
            self._address.set_result(result)
