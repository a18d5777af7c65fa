"""Refused calls leave nothing for the garbage collector, which holds up all callers while it frees many large requests at once."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
from gavel.v1.arbitration_service_pb2 import StreamProposalsRequest
from gavel.v1.envelope_pb2 import Envelope
from gavel_server.bus.registry import BusRegistry
from gavel_server.bus.sequencer import Sequencer
from gavel_server.compile.compiler import Compiler
from gavel_server.errors import ServiceError
from gavel_server.rpc.call_context import CallContext, Caller
from gavel_server.rpc.interceptor import Interceptor
from gavel_server.rpc.service_descriptors import ARBITRATION
from gavel_server.services.arbitration import Arbitration

from tests.load.refusal_cost import requests

CALLS = 50
KINDS = {**requests(), "stream": ("StreamProposals", StreamProposalsRequest(envelope=Envelope(event_id="no uuid")).SerializeToString())}


@pytest.fixture
def collections() -> Iterator[None]:
    """The garbage collector runs only when the test calls it."""
    gc.collect()
    gc.freeze()  # what the tests before left need not be looked at again
    gc.disable()
    yield
    gc.enable()


async def _absent(_: str) -> Sequencer:
    raise AssertionError("a refused call opens no bus")


async def _exists(_: str) -> bool:
    return False


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.usefixtures("collections")
async def test_refused_calls_leave_no_garbage(kind: str) -> None:
    """The objects of a refused call are freed when it is answered."""
    name, message = KINDS[kind]
    method = Interceptor().intercept(ARBITRATION, Arbitration(BusRegistry(_absent, _exists), Compiler()).methods)[name]
    answers: list[bytes | ServiceError] = []

    def call() -> None:
        context = CallContext(f"{ARBITRATION.full_name}/{name}", lambda: Caller("native", "192.0.2.1:1", (), None))
        method(message, context, answers.append)

    call()
    gc.collect()
    for _ in range(CALLS):
        call()
    answers.clear()
    assert gc.collect() < CALLS
