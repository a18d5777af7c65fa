"""A world whose callers are who their metadata says, in place of credentials: what these tests are about begins where credentials end."""

from __future__ import annotations

import json
from typing import Any, Final

from gavel_rules.identity.principal import ANONYMOUS, Principal
from gavel_server.identity.sessions import Session
from gavel_server.rpc.call_context import CallContext
from gavel_server.rpc.interceptor import Interceptor

from tests.support.hashes import sha256_of

_KEY: Final = "test-principal"

ADMIN: Final = Principal("ada", "token", credential_id="ada-1")
AGENT: Final = Principal("agents-7", "jwt", "https://issuer.example", ("refund-agents",), credential_id="jti-1")
DATABASE: Final = Principal("spiffe://acme/orders-db", "mtls", "CN=acme", credential_id=sha256_of("1"))
PAYMENTS: Final = Principal("service:payments", "token", credential_id="payments-1")
REVIEWER: Final = Principal("rita", "jwt", "https://issuer.example", ("risk",))
STRANGER: Final = Principal("mallory", "token")

GRANTS: Final = """
gavel: v1
name: main
version: 1
grants:
  - {to: ["group:refund-agents"], buses: [default], may: [propose, preflight, read], produce: {types: [agent], ids: ["agent-*"]}, actions: ["refund.*"], subjects: ["order/*"]}
  - {to: ["spiffe://acme/orders-db"], may: [publish], produce: {types: [database_snapshot], ids: [orders-db]}, facts: ["order.*"]}
  - {to: ["service:payments"], may: [execute], produce: {types: [executor], ids: ["payments*"]}, actions: ["refund.*"]}
  - {to: ["group:risk"], may: [review, revoke], actions: ["refund.*"]}
  - {to: [ada], may: [grant, deploy, activate, read, replay]}
"""  # noqa: E501


class KnowingInterceptor(Interceptor):
    """Takes a caller's principal from its metadata; without one the caller is anonymous."""

    async def _begin(self, name: str, context: Any) -> CallContext:
        made = await super()._begin(name, context)
        principal = principal_in(dict(context.invocation_metadata() or ()))
        session = None if principal is ANONYMOUS else Session(principal)
        return CallContext(name, made._decoded, made._send_headers, session=session)


def principal_in(metadata: dict[str, str | bytes]) -> Principal:
    """Return the principal that a call's metadata names."""
    text = metadata.get(_KEY)
    if text is None:
        return ANONYMOUS
    fields = json.loads(text)
    return Principal(fields["name"], fields["method"], fields["issuer"], tuple(fields["groups"]), (), fields["credential_id"])


def by(principal: Principal) -> tuple[tuple[str, str], ...]:
    """Return the metadata of a call by a principal."""
    fields = {
        "name": principal.name,
        "method": principal.method,
        "issuer": principal.issuer,
        "groups": principal.groups,
        "credential_id": principal.credential_id,
    }
    return ((_KEY, json.dumps(fields)),)
