"""How a client knows its server and shows who it is: TLS, tokens and certificates."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc

AUTHORIZATION_KEY: Final = "authorization"
Metadata = tuple[tuple[str, str], ...]
# The texts that a header can carry: visible ASCII, as tokens of every kind are (RFC 6750 §2.1).
_TOKEN: Final = re.compile(r"[!-~]+")


@dataclass(frozen=True, slots=True)
class Tls:
    """How the server's certificate is verified."""

    ca: str | Path | None = None
    """File with the authorities in PEM. None: those that gRPC trusts, the public ones."""
    server_name: str = ""
    """The name that the server's certificate must have. Empty: the host of the target."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """A client certificate. The files are read when the channel is opened."""

    certificate: str | Path
    """File with the certificate in PEM, followed by the intermediate certificates."""
    key: str | Path
    """File with its private key in PEM."""


class TokenFile:
    """A provider of the token in a file, which is read again when it changes, as tokens of a workload do before they expire.

    While a changed file cannot be read, the previous token is used. The first read raises OSError, or ValueError for a file without a
    token.
    """

    def __init__(self, path: str | Path) -> None:
        self._path: Final = Path(path)
        self._token = ""
        self._version: tuple[int, ...] = ()

    def __call__(self) -> str:
        """Return the token."""
        try:
            status = os.stat(self._path)
            version = (status.st_mtime_ns, status.st_size, status.st_ino)
            if version != self._version:
                self._token, self._version = self._read(), version
        except (OSError, ValueError):
            if not self._token:
                raise
        return self._token

    def __repr__(self) -> str:
        return f"TokenFile({str(self._path)!r})"

    def _read(self) -> str:
        token = self._path.read_text(encoding="utf-8", errors="replace").strip()
        if not _TOKEN.fullmatch(token):
            raise ValueError(
                f"{self._path} holds {'something else than one token' if token else 'no token'}; write the token alone into it"
            )
        return token


TokenProvider = Callable[[], str]
"""Returns the token for the next call, at once: it is called before each call, also on an event loop."""
Credential = str | TokenProvider | Certificate
"""A token, which is sent with each call, or a certificate, which is presented when a connection opens."""


class ClientCredentials:
    """The credentials of one client. Raises ValueError if they do not fit together or would be sent in the clear."""

    def __init__(self, target: object, tls: Tls | bool | None, credentials: Credential | Sequence[Credential] | None) -> None:
        all_credentials = _as_sequence(credentials)
        certificates = [one for one in all_credentials if isinstance(one, Certificate)]
        tokens = [one for one in all_credentials if not isinstance(one, Certificate)]
        if len(certificates) > 1 or len(tokens) > 1:
            raise ValueError("credentials has several tokens or several certificates; give at most one of each")
        self._certificate: Final = certificates[0] if certificates else None
        self._token: Final = tokens[0] if tokens else None
        self.lacks_token = callable(self._token)  # until the provider has returned one
        if tls is None:
            tls = bool(certificates)  # a certificate is presented over TLS
        self._tls: Final = Tls() if tls is True else tls or None
        if not isinstance(target, str):
            if self._tls is not None:
                raise ValueError("tls and certificates belong to the channel that you have given; configure them there")
            return
        if certificates and self._tls is None:
            raise ValueError("a certificate is presented over TLS; give tls=True or tls=Tls(...)")
        if self._token is not None and self._tls is None and not is_local(target):
            raise ValueError(f"the token could be read on the way to {target}; give tls=True or tls=Tls(ca=...)")

    def metadata(self) -> Metadata:
        """Return the metadata that shows who makes a call."""
        if self._token is None:
            return ()
        token = self._token if isinstance(self._token, str) else self._token()
        self.lacks_token = False
        return ((AUTHORIZATION_KEY, f"Bearer {token}"),)

    def channel_credentials(self) -> grpc.ChannelCredentials | None:
        """Return the credentials of an encrypted channel; None: it is not encrypted. Raises OSError, ValueError for a useless file."""
        if self._tls is None:
            return None
        _check_files(self._tls, self._certificate)
        ca = None if self._tls.ca is None else Path(self._tls.ca).read_bytes()
        if self._certificate is None:
            return grpc.ssl_channel_credentials(root_certificates=ca)
        key, chain = Path(self._certificate.key).read_bytes(), Path(self._certificate.certificate).read_bytes()
        return grpc.ssl_channel_credentials(root_certificates=ca, private_key=key, certificate_chain=chain)

    def channel_options(self) -> tuple[tuple[str, Any], ...]:
        """Return the options of the channel beside those of every client."""
        if self._tls is None or not self._tls.server_name:
            return ()
        return (("grpc.ssl_target_name_override", self._tls.server_name),)


def _check_files(tls: Tls, certificate: Certificate | None) -> None:
    """Read the files as TLS does. Raises OSError, ValueError.

    gRPC only logs a file that it cannot use, and then fails every call as if no server answered.
    """
    import ssl  # only clients with TLS pay for it

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if tls.ca is not None:
        with open(tls.ca, "rb"):
            pass  # the error of ssl would not name the file
        try:
            context.load_verify_locations(tls.ca)
        except ssl.SSLError:
            raise ValueError(f"{tls.ca} holds no certificate in PEM") from None
    if certificate is None:
        return
    for path in (certificate.certificate, certificate.key):
        with open(path, "rb"):
            pass
    try:
        context.load_cert_chain(certificate.certificate, certificate.key, password="")
    except ssl.SSLError as error:
        why = (
            "is not the key of the certificate"
            if error.reason == "KEY_VALUES_MISMATCH"
            else "is not an unencrypted private key in PEM for it"
        )
        raise ValueError(f"{certificate.certificate} is not a certificate in PEM, or {certificate.key} {why}") from None


def _as_sequence(credentials: Credential | Sequence[Credential] | None) -> Sequence[Credential]:
    if credentials is None:
        return ()
    if isinstance(credentials, str | Certificate) or callable(credentials):
        return (credentials,)
    return credentials


def is_local(target: str) -> bool:
    """Whether only this machine can read what is sent to a target: a Unix socket or loopback."""
    if target.startswith("unix:"):
        return True
    host = target.rpartition(":")[0].rpartition("/")[2].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
