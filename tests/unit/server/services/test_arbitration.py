"""Calls of ArbitrationService whose callers go before they are answered."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest
from gavel.v1 import arbitration_service_pb2 as arbitration
from gavel.v1.envelope_pb2 import Envelope
from gavel_server.bus.registry import BusRegistry
from gavel_server.bus.sequencer import Sequencer
from gavel_server.compile.compiler import Compiler
from gavel_server.process import time_slice
from gavel_server.rpc.decoding import BATCH_BYTES_AT_ONCE, SLICE_ITEMS
from gavel_server.services.arbitration import Arbitration
from google.protobuf.message import Message

from tests.support.calls import call_context
from tests.support.driver import proposal_envelope

UUID = "0198c5a0-0000-7000-8000-000000000001"
MANY = [proposal_envelope([]) for _ in range(SLICE_ITEMS + 1)]
LARGE = [proposal_envelope([], expected_outcome="x" * (BATCH_BYTES_AT_ONCE // 20)) for _ in range(50)]
REQUESTS: dict[str, tuple[str, Message]] = {
    "a proposal": ("SubmitProposal", arbitration.SubmitProposalRequest(envelope=proposal_envelope([]))),
    "a batch": ("BatchSubmitProposals", arbitration.BatchSubmitProposalsRequest(envelopes=MANY[:1])),
    "a batch of many": ("BatchSubmitProposals", arbitration.BatchSubmitProposalsRequest(envelopes=MANY)),
    "a large batch": ("BatchSubmitProposals", arbitration.BatchSubmitProposalsRequest(envelopes=LARGE)),
    "a preflight": ("Preflight", arbitration.PreflightRequest(envelope=Envelope())),
    "preflights": ("BatchPreflight", arbitration.BatchPreflightRequest(envelopes=LARGE)),
    "a revocation": ("RevokeDecision", arbitration.RevokeDecisionRequest(decision_id=UUID, revoked_by="rita", reason="no")),
    "a wait": ("WaitDecision", arbitration.WaitDecisionRequest(decision_id=UUID)),
}


class Respond:
    """Takes the answer to a call."""

    def __init__(self) -> None:
        self.answers: list[bytes | Exception] = []

    def __call__(self, answer: bytes | Exception) -> None:
        """Note the answer."""
        self.answers.append(answer)


async def run_loop(passes: int) -> None:
    """Let all tasks run."""
    for _ in range(passes):
        await asyncio.sleep(0)


@pytest.mark.parametrize("passes", [0, 10])
@pytest.mark.parametrize("request_", REQUESTS)
async def test_a_call_whose_caller_goes_leaves_nothing(monkeypatch: pytest.MonkeyPatch, request_: str, passes: int) -> None:
    """Once its caller has gone, nothing of a call's request or work stays in memory, however long its bus takes to open."""
    monkeypatch.setattr(time_slice, "SLICE_SECONDS", -1.0)  # a large batch gives way at each item

    async def never_open(_: str) -> Sequencer:
        await asyncio.Event().wait()
        raise AssertionError

    async def exists(_: str) -> bool:
        return True

    buses = BusRegistry(never_open, exists)
    name, message = REQUESTS[request_]
    method = Arbitration(buses, Compiler()).methods[name]
    context, respond = call_context(f"gavel.v1.ArbitrationService/{name}"), Respond()
    answers, held = respond.answers, weakref.ref(respond)
    method(message.SerializeToString(), context, respond)
    del respond
    await run_loop(passes)
    assert held() is not None
    context.cancellation.cancel()
    await run_loop(3)
    gc.collect()
    assert (None, []) == (held(), answers)
    await buses.stop()
