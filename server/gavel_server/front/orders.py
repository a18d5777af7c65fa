"""The orders of the server to the native front, as JSON: how to serve, and with which certificates (`server/front/orders.go`)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from gavel_server.front.authentication import FrontAuthentication
from gavel_server.front.limits import limits_and_methods

if TYPE_CHECKING:
    from gavel_server.identity.tls import TlsMaterial


def encode_serve(authentication: FrontAuthentication) -> bytes:
    """Return the content of the order to serve."""
    identity = {"secret": authentication.secret, "required": authentication.is_required, "tls": _tls(authentication.tls)}
    return json.dumps({"limits": limits_and_methods(), "identity": identity}).encode()


def encode_tls(material: TlsMaterial) -> bytes:
    """Return the content of the order to use other certificates."""
    return json.dumps(_tls(material)).encode()


def _tls(material: TlsMaterial | None) -> dict[str, Any] | None:
    if material is None:
        return None
    return {
        "certificate": material.certificate.decode(),
        "key": material.key.decode(),
        "client_ca": material.client_ca.decode(),
        "client_certificate": material.client_certificate,
    }
