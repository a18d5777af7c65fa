"""Hashes of calls and results: those of the server, and no result without a record."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from gavel.v1.common_pb2 import PRODUCER_TYPE_TOOL_RUNTIME, Producer
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.tool_pb2 import ToolContract
from gavel_client.envelopes import content_hash
from gavel_client.tools import ToolContext, ToolInvocation, errors
from gavel_client.tools.invocation import ToolData
from gavel_client.tools.records import ToolRecorder
from gavel_client.values import from_struct, to_json, to_struct
from gavel_rules.language.document.canonical_form import compute_digest, to_canonical_json
from gavel_rules.values import struct_to_dict


@pytest.mark.parametrize("number", [2**53, -(2**53), 2.0**53, 2**53 - 1, 10, 0.5, 0, -0.0])
def test_hashes_of_numbers(number: float) -> None:
    """Every number that may be sent has the hash that the server computes for it, as a param and as an argument of a tool."""
    params = to_struct({"number": number})
    expected = compute_digest(to_canonical_json(struct_to_dict(params)))
    assert expected == content_hash(from_struct(params)) == content_hash(to_json({"number": number}))


class Log:
    """A client whose server records every event."""

    async def publish_event(self, envelope: Envelope, *, timeout_ms: int) -> Any:
        """Record an event."""
        return SimpleNamespace(envelope=envelope)


async def test_a_result_without_a_hash() -> None:
    """A result that has no canonical JSON is recorded as E_TOOL, because the tool may have acted."""
    client: Any = Log()
    recorder = ToolRecorder(client, Producer(type=PRODUCER_TYPE_TOOL_RUNTIME, id="tools-1"), None)
    invocation = ToolInvocation("a.tool", ToolContract(name="a.tool"), "functions", "exec_000000000000", {}, ToolContext("host/1"))
    call = await recorder.record_call(invocation, carries_out=False)

    outcome = await recorder.record_result(invocation, call, ToolData({"number": 2**60}), 1)

    assert outcome.error is not None
    assert (errors.TOOL, True) == (outcome.error.code, outcome.error.may_have_acted)
    assert errors.TOOL == outcome.result.tool_result.error_code
