"""Calls of methods without a transport."""

from __future__ import annotations

from gavel.v1.arbitration_service_pb2 import DESCRIPTOR
from gavel_server.errors import ServiceError
from gavel_server.rpc.call_context import CallContext, Caller
from gavel_server.rpc.callback_methods import call
from gavel_server.rpc.interceptor import Interceptor
from gavel_server.services.arbitration import Arbitration
from google.protobuf.message import Message


def call_context(method: str = "gavel.v1.ArbitrationService/SubmitProposal") -> CallContext:
    """Return the context of a call by nobody in particular."""
    return CallContext(method, lambda: Caller("grpc.aio", "unix:", (), None))


async def call_arbitration(service: Arbitration, method: str, request: Message) -> bytes:
    """Return the answer's bytes of a method behind the interceptor. Raises ServiceError."""
    descriptor = DESCRIPTOR.services_by_name["ArbitrationService"]
    methods = Interceptor().intercept(descriptor, service.methods)
    answer = await call(methods[method], request.SerializeToString(), call_context(f"{descriptor.full_name}/{method}"))
    if isinstance(answer, ServiceError):
        raise answer
    return answer
