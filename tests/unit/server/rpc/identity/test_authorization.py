"""Calls whose rights are checked once their bus is open, and what is counted of calls that were refused."""

from __future__ import annotations

import asyncio
import gc
import weakref
from types import SimpleNamespace
from typing import Any

import pytest
from gavel.v1 import error_pb2
from gavel_rules.identity.principal import ANONYMOUS
from gavel_server.errors import ServiceError, invalid
from gavel_server.rpc.identity import authorization
from gavel_server.rpc.identity.access_refusals import AccessRefusals
from gavel_server.rpc.identity.authorization import call_if_authorized, note_refusal
from gavel_server.rpc.service_descriptors import ARBITRATION

from tests.support.calls import call_context

SUBMIT = f"{ARBITRATION.full_name}/SubmitProposal"


def test_only_requests_that_were_denied_access_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bytes of a request that was refused for another reason are not read again: a stranger sends four megabytes of them."""
    read: list[bytes] = []

    def last_text_field(data: bytes, _: int) -> str:
        read.append(data)
        return "nosuch"

    monkeypatch.setattr(authorization, "last_text_field", last_text_field)
    buses: Any = SimpleNamespace(peek=lambda _: None)
    access: Any = SimpleNamespace(refusals=AccessRefusals(buses))
    context: Any = SimpleNamespace(principal=ANONYMOUS)
    denial = ServiceError(error_pb2.ERROR_REASON_RIGHT_LACKING, "no right")
    for data, error in ((b"invalid", invalid([("envelopes", "has more than 500 items")])), (b"bug", ValueError()), (b"denied", denial)):
        note_refusal(access, SUBMIT, 2, error, data, context)
    assert [b"denied"] == read


@pytest.mark.parametrize("passes", [0, 3])
async def test_a_call_that_waits_for_its_bus_ends_with_its_caller(passes: int) -> None:
    """A call whose caller goes while its bus is opened for the check is forgotten at once, with its request, and never begins."""

    class Method:
        def __call__(self, *_: object) -> None:
            raise AssertionError

    access: Any = SimpleNamespace(check_now=lambda *_: asyncio.Event().wait)
    context, method = call_context(SUBMIT), Method()
    held = weakref.ref(method)
    call_if_authorized(access, SUBMIT, method, 2, b"", context, lambda _: None)
    del method
    for _ in range(passes):
        await asyncio.sleep(0)
    assert held() is not None
    context.cancellation.cancel()
    for _ in range(3):
        await asyncio.sleep(0)
    gc.collect()
    assert held() is None
