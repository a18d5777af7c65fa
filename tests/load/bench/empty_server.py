"""The baseline of the benchmark: ArbitrationService on grpc.aio and uvloop with handlers that do nothing.

It parses each request as the generated stubs do and answers with a decision of a real server. Its cost is that of the transport:
parsing, serializing and the event loop.

Usage: empty_server.py FILE, a serialized SubmitProposalResponse to answer with. It prints its port and serves until it is terminated.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import uvloop
from gavel.v1 import arbitration_service_pb2 as messages
from google.protobuf.message import Message


def empty_handlers(answer: messages.SubmitProposalResponse) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
    """Return the handlers by call: each answers with the same decision, a batch with one per envelope."""
    decision = answer.decision.decision
    preflight_answer = messages.PreflightResponse(decision=decision, evaluated_at_sequence_number=1)
    submit_result = messages.ProposalResult(decision=answer.decision)
    preflight_result = messages.PreflightResult(decision=decision)

    async def submit(request: messages.SubmitProposalRequest, context: object) -> messages.SubmitProposalResponse:
        return answer

    async def preflight(request: messages.PreflightRequest, context: object) -> messages.PreflightResponse:
        return preflight_answer

    async def batch_submit(request: messages.BatchSubmitProposalsRequest, context: object) -> messages.BatchSubmitProposalsResponse:
        return messages.BatchSubmitProposalsResponse(results=[submit_result] * len(request.envelopes))

    async def batch_preflight(request: messages.BatchPreflightRequest, context: object) -> messages.BatchPreflightResponse:
        return messages.BatchPreflightResponse(results=[preflight_result] * len(request.envelopes))

    def handler(behaviour: Callable[..., Any], request: type[Message], response: type[Message]) -> grpc.RpcMethodHandler[Any, Any]:
        return grpc.unary_unary_rpc_method_handler(behaviour, request.FromString, response.SerializeToString)

    return {
        "SubmitProposal": handler(submit, messages.SubmitProposalRequest, messages.SubmitProposalResponse),
        "Preflight": handler(preflight, messages.PreflightRequest, messages.PreflightResponse),
        "BatchSubmitProposals": handler(batch_submit, messages.BatchSubmitProposalsRequest, messages.BatchSubmitProposalsResponse),
        "BatchPreflight": handler(batch_preflight, messages.BatchPreflightRequest, messages.BatchPreflightResponse),
    }


async def serve(answer: messages.SubmitProposalResponse) -> None:
    """Serve on a free port of the loopback interface until the process is terminated."""
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("gavel.v1.ArbitrationService", empty_handlers(answer)),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    uvloop.run(serve(messages.SubmitProposalResponse.FromString(Path(sys.argv[1]).read_bytes())))
