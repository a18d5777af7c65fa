"""The addresses of a server: the one for callers, encrypted or not, and a private one for the front and the server's own parts."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import grpc
from gavel_client.supervision import Supervisor

from gavel_server.config import Settings
from gavel_server.front.authentication import FrontAuthentication
from gavel_server.front.supervisor import FrontSupervisor
from gavel_server.identity.handles import Handles
from gavel_server.identity.identity import Identity
from gavel_server.process.sockets import private_socket
from gavel_server.rpc.callback_methods import Method
from gavel_server.rpc.identity.authentication import SECRET_KEY, CallAuthentication
from gavel_server.rpc.listener import Listener
from gavel_server.rpc.transport import UNIX, bind

if TYPE_CHECKING:
    from gavel_server.identity.tls import TlsMaterial

_SECRET_BYTES: Final = 32


class Endpoint(NamedTuple):
    """The address for callers, the address for the server's own parts, and the front in between if there is one."""

    address: str
    inner: str
    front: FrontSupervisor | None


class EndpointSecurity:
    """How callers, the front and the server's own parts are told apart."""

    def __init__(self, identity: Identity, program: Path | None, address: str = "") -> None:
        """`program` is the front's; None: there is none. `address` is the one for callers. Raises OSError."""
        if program is None and identity.wants_optional_certificates:
            raise OSError(
                "tls_client_certificate is optional, and there is no native front: gRPC for Python cannot ask for a certificate without "
                "requiring it. Require it, or serve with the native front (--front native)"
            )
        self.identity: Final = identity
        self.program: Final = program
        self._socket: Final = Path(address.removeprefix(UNIX).removeprefix("//")) if address.startswith(UNIX) else None
        self._handles: Final = Handles()
        # Without TLS, authentication and front, the address for callers serves the server's own parts, too.
        self.is_private: Final = program is not None or identity.tls is not None or identity.authenticator is not None
        self.secret: Final = secrets.token_hex(_SECRET_BYTES) if self.is_private else ""
        # Called with the method of each call that the front refuses because its caller has no valid credentials.
        self.on_refused: Callable[[str], None] = lambda _: None

    def of_calls(self) -> CallAuthentication:
        """Return the authentication of calls over grpc.aio."""
        return CallAuthentication(
            self.identity.authenticator,
            secret=self.secret,
            behind_front=self.program is not None,
            handles=self._handles,
            socket=self._socket,
        )

    def of_front(self) -> FrontAuthentication:
        """Return the authentication of calls through the front."""
        return FrontAuthentication(
            self.identity.authenticator,
            secret=self.secret,
            handles=self._handles,
            tls=self.identity.tls,
            on_refused=self.on_refused,
        )


@contextlib.asynccontextmanager
async def listen(
    settings: Settings, listener: Listener, security: EndpointSecurity, methods: Mapping[str, Method], supervisor: Supervisor
) -> AsyncIterator[Endpoint]:
    """Bind the addresses; on exit, stop the front. Raises OSError."""
    if security.secret:
        listener.probe_metadata = ((SECRET_KEY, security.secret),)
    if security.program is not None:
        async with _listen_with_front(settings, listener, security, security.program, methods, supervisor) as endpoint:
            yield endpoint
        return
    is_private = security.identity.authenticator is not None

    def bind_public(server: grpc.aio.Server, address: str) -> str:
        return bind(server, address, _server_credentials(security.identity), is_private=is_private)

    address = bind_public(listener.server, settings.listen)
    if not security.is_private:
        listener.bind(address, lambda server: bind_public(server, address))
        yield Endpoint(address, address, None)
        return
    with private_socket(lambda path: bind(listener.server, UNIX + path)) as own:

        def bind_both(server: grpc.aio.Server) -> None:
            bind_public(server, address)
            own.replace(lambda path: bind(server, UNIX + path))

        inner = UNIX + own.path
        listener.bind(inner, bind_both)
        yield Endpoint(address, inner, None)


@contextlib.asynccontextmanager
async def _listen_with_front(
    settings: Settings, listener: Listener, security: EndpointSecurity, program: Path, methods: Mapping[str, Method], supervisor: Supervisor
) -> AsyncIterator[Endpoint]:
    # A private socket: it bypasses the front, so only this user may reach it, and only with the secret of this start.
    with private_socket(lambda path: bind(listener.server, UNIX + path)) as own:
        inner = UNIX + own.path
        listener.bind(inner, lambda server: own.replace(lambda path: bind(server, UNIX + path)))
        front = FrontSupervisor(program, methods, settings.listen, inner, own.descriptors, supervisor, security.of_front())
        security.identity.on_tls.append(front.use_tls)
        listener.on_rebuild = front.restart
        try:
            yield Endpoint(await front.start(), inner, front)
        finally:
            await front.stop()


def _server_credentials(identity: Identity) -> grpc.ServerCredentials | None:
    """Return the credentials of an encrypted address, which follow the files; None: it is not encrypted."""
    material = identity.tls
    if material is None:
        return None
    used = material

    def changed() -> grpc.ServerCertificateConfiguration | None:
        nonlocal used
        if identity.tls is None or identity.tls is used:
            return None
        used = identity.tls
        return _configuration(used)

    configuration: Callable[..., grpc.ServerCredentials] = grpc.dynamic_ssl_server_credentials
    return configuration(_configuration(material), changed, require_client_authentication=bool(material.client_ca))


def _configuration(material: TlsMaterial) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(material.key, material.certificate)], material.client_ca or None)
