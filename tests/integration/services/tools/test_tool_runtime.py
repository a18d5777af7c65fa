"""The runtime of tools against a real server: the steps of a call, and what each leaves in the log (constitution 004)."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.event_service_pb2 import TOOL_PAIR_STATE_PAIRED
from gavel.v1.tool_pb2 import ToolContract, ToolProvider
from gavel_client import GavelClient, content_hash
from gavel_client.evidence import EvidenceStore
from gavel_client.tools import ToolContext, ToolHook, ToolInvocation, ToolRuntime, errors
from gavel_client.tools.provider import FunctionProvider
from gavel_client.values import to_struct

from tests.integration.services.world import World

TRACE = "trace-1"
Function = Callable[[ToolInvocation], Any]
NUMBER = {"type": "object", "required": ["n"], "additionalProperties": False, "properties": {"n": {"type": "integer"}}}


@pytest.fixture
def client(world: World) -> GavelClient:
    """A client of the server."""
    return GavelClient(world.channel)


@pytest.fixture
def store(tmp_path: Path) -> EvidenceStore:
    """An evidence store in a directory."""
    return EvidenceStore(str(tmp_path / "evidence"))


async def runtime_of(
    client: GavelClient, store: EvidenceStore, function: Function, *hooks: ToolHook, effects: tuple[str, ...] = (), **fields: Any
) -> ToolRuntime:
    """Register the tool num.double with the alias double, and return a runtime whose provider calls `function`."""
    contract = ToolContract(
        name="num.double",
        version="1",
        aliases=["double"],
        side_effects=effects,
        default_provider="numbers",
        argument_schema=to_struct(NUMBER),
        result_schema=to_struct({**NUMBER, "additionalProperties": True}),
        **fields,
    )
    await client.register_contract(contract)
    await client.register_provider(ToolProvider(provider_id="numbers", version="1", tools=["num.double"]))
    return ToolRuntime(client, "tools-1", providers=[FunctionProvider("numbers", {"num.double": function})], evidence=store, hooks=hooks)


def double(invocation: ToolInvocation) -> Mapping[str, object]:
    """Return twice the number."""
    return {"n": invocation.arguments["n"] * 2}


def context(**fields: Any) -> ToolContext:
    """Return a context in the trace of the tests."""
    return ToolContext("number/1", trace_id=TRACE, **fields)


async def recorded(client: GavelClient) -> tuple[Envelope, Envelope]:
    """Return the only call of the trace, and its result, which must be paired."""
    trace = await client.get_trace(TRACE)
    assert [TOOL_PAIR_STATE_PAIRED] == [pair.state for pair in trace.pairs]
    call, result = trace.envelopes
    return call, result


async def test_a_call_leaves_call_result_and_evidence(client: GavelClient, store: EvidenceStore) -> None:
    """A call by alias has one execution_id, both events with all of the design's fields, and evidence with the result's hash."""
    runtime = await runtime_of(client, store, double)
    outcome = await runtime.invoke("double", {"n": 4}, context(agent_id="agent-1", session_id="s", call_id="c", caller_role="planner"))
    call, result = await recorded(client)
    assert ({"n": 8}, True, None) == (outcome.data, outcome.ok, outcome.error)
    assert ("double", "num.double", "1", "numbers") == (
        outcome.requested_tool,
        outcome.canonical_tool,
        outcome.tool_version,
        outcome.provider_id,
    )
    sent = call.tool_call
    assert ("double", "num.double", "1", "numbers") == (sent.requested_tool, sent.tool_name, sent.tool_version, sent.provider_id)
    assert ("agent-1", "s", "c", "planner") == (sent.agent_id, sent.session_id, sent.call_id, sent.caller_role)
    assert (content_hash({"n": 4}), content_hash(NUMBER)) == (sent.arguments_hash, sent.request_schema_hash)
    assert re.fullmatch(r"exec_[0-9a-f]{12}", outcome.execution_id)
    answer = result.tool_result
    assert [outcome.execution_id] * 2 == [sent.execution_id, answer.execution_id]
    assert [content_hash({"n": 8})] * 3 == [answer.content_hash, answer.evidence_hash, outcome.result_hash]
    assert (b'{"n":8}', "application/json") == (store.get(answer.evidence_hash), answer.evidence_media_type)
    assert answer.evidence_uri.endswith(answer.evidence_hash[len("sha256:") + 2 :])
    assert sent.started_at.ToNanoseconds() <= answer.finished_at.ToNanoseconds() < sent.lease_until.ToNanoseconds()
    assert (call, result) == (outcome.call, outcome.result)


@pytest.mark.parametrize(
    ("arguments", "function", "code"),
    [
        ({"n": "four"}, double, errors.ARGS),
        ({"n": float("nan")}, double, errors.ARGS),
        ({"n": 1, "m": 1}, double, errors.ARGS),
        ({"n": 4}, lambda _: {"n": "eight"}, errors.TOOL),
        ({"n": 4}, lambda _: {"n": object()}, errors.TOOL),
        ({"n": 4}, lambda _: [1], errors.TOOL),
        ({"n": 4}, lambda _: {"n": 8, "text": "x" * 17_000_000}, errors.QUOTA),
        ({"n": 4}, lambda call: call.require_effect("network"), errors.PERMISSION),
        ({"n": 4}, lambda _: 1 / 0, errors.TOOL),
    ],
)
async def test_failures_leave_both_events(
    client: GavelClient, store: EvidenceStore, arguments: dict[str, Any], function: Function, code: str
) -> None:
    """Invalid arguments, invalid results and exceptions are outcomes with a code, and leave a call and its result."""
    runtime = await runtime_of(client, store, function)
    outcome = await runtime.invoke("num.double", arguments, context())
    _, result = await recorded(client)
    assert outcome.error is not None
    assert (False, None, code, code) == (outcome.ok, outcome.data, outcome.error.code, result.tool_result.error_code)
    assert code == json.loads(store.get(result.tool_result.evidence_hash))["code"]
    assert "four" not in result.tool_result.error_message
