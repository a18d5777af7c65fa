"""Authenticates every call over grpc.aio. `front.authentication` does so for the native front; both ask `identity.authenticator`.

A call comes from the front, for a caller that has a handle; from a part of the server itself; or from a caller with credentials.
The front and the server's own parts know a secret of this start. With it, a call may name a handle and the caller's address; without it the
private socket answers nothing. Callers cannot send it: it never leaves the machine, and is on no command line and in no log.
"""

from __future__ import annotations

import hmac
import os
import stat
from contextlib import suppress
from pathlib import Path
from ssl import PEM_cert_to_DER_cert
from typing import TYPE_CHECKING, Any, Final

import grpc
from gavel_rules.identity.principal import SERVER

from gavel_server.errors import ServiceError
from gavel_server.identity.credentials import Credentials
from gavel_server.identity.errors import unauthenticated
from gavel_server.identity.handles import NO_HANDLE, UNKNOWN, Handles
from gavel_server.identity.sessions import Session
from gavel_server.rpc.call_context import peer_address
from gavel_server.rpc.service_descriptors import HEALTH

if TYPE_CHECKING:
    # For the type only: it loads the libraries of keys and certificates, which a server without authentication does not need.
    from gavel_server.identity.authenticator import Authenticator

SECRET_KEY: Final = "gavel-secret"  # noqa: S105  # its name
HANDLE_KEY: Final = "gavel-handle"
AUTHORIZATION_KEY: Final = "authorization"
# Health says whether the server answers. Load balancers and orchestrators ask for it and have no credentials. A caller may show some all
# the same, to ask for the health of a bus (`services/health`).
OPEN_METHODS: Final = frozenset(f"{HEALTH.full_name}/{method.name}" for method in HEALTH.methods)
_OWN: Final = Session(SERVER)
# Connecting to a Unix socket takes the permission to write it.
_OTHERS_CONNECT: Final = stat.S_IWGRP | stat.S_IWOTH
_CERTIFICATE_CHAIN: Final = "x509_pem_cert_chain"
_CERTIFICATE: Final = "x509_pem_cert"
_PEM_END: Final = b"-----END CERTIFICATE-----"

_GrpcContext = grpc.aio.ServicerContext[Any, Any]


class CallAuthentication:
    """Returns the session of a call over grpc.aio."""

    def __init__(
        self,
        authenticator: Authenticator | None = None,
        *,
        secret: str = "",
        behind_front: bool = False,
        handles: Handles | None = None,
        socket: Path | None = None,
    ) -> None:
        """Without an authenticator callers need no credentials. `secret` is the secret of this start; "": there is no private socket.

        `behind_front`: calls come over the private socket alone. `socket` is the Unix socket for callers, if there is one.
        """
        self._authenticator: Final = authenticator
        self._secret: Final = secret.encode()
        self._behind_front: Final = behind_front
        self._handles: Final = Handles() if handles is None else handles
        self._socket: Final = socket
        # Whether every call passes without a look.
        self.is_open: Final = authenticator is None and not secret

    async def session(self, method: str, call: _GrpcContext) -> Session | None:
        """Return the session of a call; None: it needs none. Raises ServiceError UNAUTHENTICATED."""
        metadata = tuple(call.invocation_metadata() or ())
        if self._secret:
            secrets = [value for key, value in metadata if key == SECRET_KEY]
            if len(secrets) == 1 and hmac.compare_digest(_encode(secrets[0]), self._secret):
                return self._inner_session(method, [value for key, value in metadata if key == HANDLE_KEY])
            if self._behind_front:
                raise unauthenticated("this socket is private to the server; use the address that the server listens on")
        if self._authenticator is None:
            return None
        credentials = _credentials(call, metadata)
        if credentials.user_id is not None and not credentials.authorizations and self._is_shared():
            if method in OPEN_METHODS:
                return None
            raise unauthenticated(
                f"other users may connect to {self._socket}, and without the native front the server cannot tell them apart: run chmod 600 "
                "on it, serve with the native front, or show a token"
            )
        if method not in OPEN_METHODS:
            return await self._authenticator.authenticate(credentials)
        if credentials.authorizations or credentials.certificates or credentials.user_id is not None:
            with suppress(ServiceError):
                return await self._authenticator.authenticate(credentials)
        return None

    def _is_shared(self) -> bool:
        """Return whether somebody has let other users connect to the socket for callers, which `rpc.transport` makes private."""
        if self._socket is None:
            return False
        try:
            return bool(self._socket.stat().st_mode & _OTHERS_CONNECT)
        except OSError:
            return True

    def _inner_session(self, method: str, handles: list[Any]) -> Session | None:
        if not handles:
            return _OWN
        if self._authenticator is None:
            return None
        handle = int(handles[0]) if str(handles[0]).isdecimal() else NO_HANDLE
        session = self._handles.get(handle)
        if method in OPEN_METHODS:
            return session if session is not None and session.error() is None else None
        if session is None:
            raise unauthenticated(UNKNOWN)
        session.check()
        return session


def _credentials(call: _GrpcContext, metadata: tuple[Any, ...]) -> Credentials:
    """Return the credentials of a caller. gRPC does not name the user of a Unix socket, which the server's own user alone can reach."""
    peer = call.peer()
    is_unix = peer.startswith("unix:")
    properties = call.auth_context() or {}
    return Credentials(
        peer=peer_address(peer),
        is_encrypted=b"ssl" in properties.get("transport_security_type", ()),
        certificates=_certificates(properties),
        authorizations=tuple(_text(value) for key, value in metadata if key == AUTHORIZATION_KEY),
        user_id=os.getuid() if is_unix else None,
    )


def _certificates(properties: Any) -> tuple[bytes, ...]:
    """Return the client's certificates in DER, its own first; () without one."""
    chain = b"".join(properties.get(_CERTIFICATE_CHAIN, ())) or b"".join(properties.get(_CERTIFICATE, ()))
    parts = [part.strip() for part in chain.split(_PEM_END)]
    return tuple(PEM_cert_to_DER_cert((part + _PEM_END).decode("ascii")) for part in parts if part)


def _encode(value: str | bytes) -> bytes:
    return value.encode(errors="replace") if isinstance(value, str) else value


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode(errors="replace")
