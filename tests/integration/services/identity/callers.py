"""A world whose callers are who their metadata says, in place of credentials: what these tests are about begins where credentials end."""

from __future__ import annotations

import json
from typing import Any, Final

import grpc
from gavel_rules.identity.principal import ANONYMOUS, Principal
from gavel_server.identity.sessions import Session
from gavel_server.rpc.call_context import CallContext
from gavel_server.rpc.interceptor import Interceptor
from gavel_server.rpc.service_descriptors import SERVICES
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message_factory import GetMessageClass
from grpc_status import rpc_status

from tests.integration.services.world import World, refusal_of
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
        call_context = await super()._begin(name, context)
        principal = principal_in(dict(context.invocation_metadata() or ()))
        session = None if principal is ANONYMOUS else Session(principal)
        return CallContext(name, call_context._decode_caller, call_context._send_headers, session=session)


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


def rpcs() -> dict[str, MethodDescriptor]:
    """Every RPC of the contract, by its name."""
    return {f"{service.full_name}/{method.name}": method for service in SERVICES for method in service.methods}


async def reason_of(world: World, name: str, method: MethodDescriptor, principal: Principal, bus: str = "") -> str:
    """Return the reason with which a call without arguments is refused, "" if it is not."""
    request: Any = GetMessageClass(method.input_type)()
    if method.name == "CreateBus":
        request.bus = "new"
    elif bus:
        named = request if "bus" in method.input_type.fields_by_name else request.open
        named.bus = bus
    data = request.SerializeToString()
    shape = f"{'stream' if method.client_streaming else 'unary'}_{'stream' if method.server_streaming else 'unary'}"
    call: Any = getattr(world.channel, shape)(f"/{name}")
    try:
        if method.client_streaming:
            answers = call(iter([data]), metadata=by(principal), timeout=30)
        else:
            answers = call(data, metadata=by(principal), timeout=30)
        if not method.server_streaming:
            await answers
            return ""
        async for answer in answers:
            return _reason_in(answer, method)
    except grpc.aio.AioRpcError as error:
        status = rpc_status.from_call(error)  # type: ignore[arg-type]  # it reads the trailers, which this has
        return "" if status is None else refusal_of(status, error.code()).reason
    finally:
        if method.server_streaming:
            answers.cancel()
    return ""


def _reason_in(answer: bytes, method: MethodDescriptor) -> str:
    """Return the reason in a response of a stream whose requests are answered one by one."""
    response: Any = GetMessageClass(method.output_type).FromString(answer)
    return refusal_of(response.error).reason if "error" in response.DESCRIPTOR.fields_by_name and response.HasField("error") else ""
