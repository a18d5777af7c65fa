"""The runtime of tools against a real server: the steps of a call, and what each leaves in the log (constitution 004)."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.event_service_pb2 import TOOL_PAIR_STATE_PAIRED
from gavel.v1.execution_pb2 import EXECUTION_STATUS_TIMEOUT
from gavel.v1.tool_pb2 import ToolBinding, ToolContract, ToolProvider
from gavel_client import GavelClient, GavelError, content_hash
from gavel_client.evidence import EvidenceStore
from gavel_client.tools import (
    FunctionProvider,
    ToolContext,
    ToolData,
    ToolError,
    ToolFailure,
    ToolHook,
    ToolInvocation,
    ToolRuntime,
    errors,
    records,
)
from gavel_client.tools.contracts import shipped_contracts, shipped_providers
from gavel_client.tools.providers.bridge_local import BridgeLocal
from gavel_client.tools.providers.workspace import Workspace
from gavel_client.values import to_struct
from google.protobuf.json_format import MessageToDict

from tests.integration.services.world import World

TRACE = "trace-1"
Function = Callable[[ToolInvocation], Any]
DEEP: Any = 1
for _ in range(2_000):
    DEEP = [DEEP]
NUMBER = {"type": "object", "required": ["n"], "additionalProperties": False, "properties": {"n": {"type": "integer"}}}
RESULT = {**NUMBER, "additionalProperties": True}


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
        result_schema=to_struct(RESULT),
        **fields,
    )
    await client.register_contract(contract)
    await client.register_provider(ToolProvider(provider_id="numbers", version="1", tools=["num.double"]))
    return ToolRuntime(client, "tools-1", providers=[FunctionProvider("numbers", {"num.double": function})], evidence=store, hooks=hooks)


def double(invocation: ToolInvocation) -> Mapping[str, object]:
    """Return twice the number."""
    return {"n": invocation.arguments["n"] * 2}


def fail(code: str, message: str, details: dict[str, object]) -> None:
    """Fail as a provider does."""
    raise ToolError(code, message, details)


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
    caller = {"agent_id": "agent-1", "session_id": "s", "parent_session_id": "p", "call_id": "c", "caller_role": "planner"}
    outcome = await runtime.invoke("double", {"n": 4}, context(**caller))
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
    assert caller == {name: getattr(sent, name) for name in caller}
    assert (content_hash({"n": 4}), content_hash(NUMBER)) == (sent.arguments_hash, sent.request_schema_hash)
    assert re.fullmatch(r"exec_[0-9a-f]{12}", outcome.execution_id)
    answer = result.tool_result
    assert [outcome.execution_id] * 2 == [sent.execution_id, answer.execution_id]
    assert [content_hash(RESULT)] * 2 == [answer.response_schema_hash, outcome.response_schema_hash]
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
        ({"n": DEEP}, double, errors.ARGS),
        ({"n": 2**60}, double, errors.ARGS),
        ({"n": "\ud800"}, double, errors.ARGS),
        ({"n": 4}, lambda _: {"n": 8, "text": "\ud800"}, errors.TOOL),
        ({"n": 4}, lambda _: {"n": 8, "more": DEEP}, errors.TOOL),
        ({"n": 4}, lambda _: {"n": "eight"}, errors.TOOL),
        ({"n": 4}, lambda _: {"n": object()}, errors.TOOL),
        ({"n": 4}, lambda _: [1], errors.TOOL),
        ({"n": 4}, lambda _: {"n": 8, "text": "x" * 17_000_000}, errors.QUOTA),
        ({"n": 4}, lambda call: call.require_effect("network"), errors.PERMISSION),
        ({"n": 4}, lambda _: 1 / 0, errors.TOOL),
        ({"n": 4}, lambda _: fail("E_OTHER", "\ud800\0" * 9_000, {"of": object()}), errors.TOOL),
        ({"n": 4}, lambda _: fail(errors.QUOTA, "full", {"bytes": 2**60}), errors.QUOTA),
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


async def test_a_tool_that_takes_too_long_is_stopped(client: GavelClient, store: EvidenceStore) -> None:
    """At its timeout a tool is cancelled, and the call ends as E_TIMEOUT."""
    stopped = asyncio.Event()

    async def wait(_: ToolInvocation) -> ToolData:
        try:
            await asyncio.sleep(3600)
        finally:
            stopped.set()
        return ToolData({})

    runtime = await runtime_of(client, store, wait)
    outcome = await runtime.invoke("num.double", {"n": 4}, context(timeout_ms=50))
    _, result = await recorded(client)
    assert (errors.TIMEOUT, True) == (result.tool_result.error_code, stopped.is_set())
    assert not outcome.ok


async def test_a_cancelled_call_stops_the_tool_and_is_recorded(client: GavelClient, store: EvidenceStore) -> None:
    """A caller that is cancelled while the tool runs stops it; the result says so, and the caller is cancelled."""
    began, stopped = asyncio.Event(), asyncio.Event()

    async def wait(_: ToolInvocation) -> ToolData:
        began.set()
        try:
            await asyncio.sleep(3600)
        finally:
            stopped.set()
        return ToolData({})

    runtime = await runtime_of(client, store, wait)
    calling = asyncio.create_task(runtime.invoke("num.double", {"n": 4}, context()))
    await began.wait()
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling
    _, result = await recorded(client)
    assert (errors.TIMEOUT, True) == (result.tool_result.error_code, stopped.is_set())


async def test_a_runtime_that_closes_records_its_calls(client: GavelClient, store: EvidenceStore) -> None:
    """A runtime that closes stops the calls under way, and their results are in the log when it has closed."""
    began = asyncio.Event()

    async def wait(_: ToolInvocation) -> ToolData:
        began.set()
        await asyncio.sleep(3600)
        return ToolData({})

    runtime = await runtime_of(client, store, wait)
    calling = asyncio.create_task(runtime.invoke("num.double", {"n": 4}, context()))
    await began.wait()
    await runtime.close()
    _, result = await recorded(client)
    assert errors.TIMEOUT == result.tool_result.error_code
    outcome = await calling
    assert outcome.error is not None
    assert errors.TIMEOUT == outcome.error.code


async def test_a_call_that_is_cancelled_in_a_hook(client: GavelClient, store: EvidenceStore) -> None:
    """Cancelled after the tool has returned, the call is recorded as cancelled; cancelled before it, nothing has happened."""
    began = asyncio.Event()

    class Slow(ToolHook):
        def __init__(self, is_first: bool) -> None:
            self.is_first = is_first

        async def before_call(self, invocation: ToolInvocation) -> dict[str, Any] | None:
            if self.is_first:
                await self._wait()
            return None

        async def after_result(self, invocation: ToolInvocation, result: ToolData | ToolFailure) -> dict[str, Any] | None:
            await self._wait()
            return None

        async def _wait(self) -> None:
            began.set()
            await asyncio.sleep(3600)

    for is_first, events in ((True, 0), (False, 2)):
        began.clear()
        runtime = await runtime_of(client, store, double, Slow(is_first))
        calling = asyncio.create_task(runtime.invoke("num.double", {"n": 4}, context()))
        await began.wait()
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
        assert events == len((await client.get_trace(TRACE)).envelopes)
    _, result = await recorded(client)
    assert errors.TIMEOUT == result.tool_result.error_code


class Patch(ToolHook):
    """A hook that patches arguments and data."""

    def __init__(self, arguments: dict[str, Any] | None = None, data: dict[str, Any] | None = None) -> None:
        self.arguments = arguments
        self.data = data
        self.results: list[ToolData | ToolFailure] = []

    async def before_call(self, invocation: ToolInvocation) -> dict[str, Any] | None:
        """Return the patch of the arguments."""
        return self.arguments

    async def after_result(self, invocation: ToolInvocation, result: ToolData | ToolFailure) -> dict[str, Any] | None:
        """Note the result, and return the patch of the data."""
        self.results.append(result)
        return self.data


async def test_hooks_patch_arguments_and_data(client: GavelClient, store: EvidenceStore) -> None:
    """The provider gets patched arguments, the caller patched data, and the log has the hashes of both."""
    runtime = await runtime_of(client, store, double, Patch(arguments={"n": 5}), Patch(data={"n": 0}))
    outcome = await runtime.invoke("num.double", {"n": 4}, context())
    call, result = await recorded(client)
    assert {"n": 0} == outcome.data
    assert (content_hash({"n": 5}), content_hash({"n": 0})) == (call.tool_call.arguments_hash, result.tool_result.content_hash)


async def test_a_hook_cannot_make_a_failure_a_success(client: GavelClient, store: EvidenceStore) -> None:
    """A hook that returns data for a failure changes nothing, and sees no success in place of the failure."""

    def taken(_: ToolInvocation) -> None:
        fail(errors.CONFLICT, "taken", {"by": "another"})

    hook = Patch(data={"n": 8})
    outcome = await (await runtime_of(client, store, taken, hook)).invoke("num.double", {"n": 4}, context())
    _, result = await recorded(client)
    assert ToolFailure(errors.CONFLICT, "taken", {"by": "another"}) == outcome.error == hook.results[0]
    assert (True, errors.CONFLICT) == (result.tool_result.is_error, result.tool_result.error_code)


async def test_a_failed_check_is_no_success(client: GavelClient, store: EvidenceStore) -> None:
    """A result that fails the check of its schema is a failure for hooks, caller, log and report, although a hook returns valid data."""
    hook = Patch(data={"n": 8})
    outcome = await (await runtime_of(client, store, lambda _: {"n": "eight"}, hook)).invoke("num.double", {"n": 4}, context())
    _, result = await recorded(client)
    assert (False, None, [outcome.error]) == (outcome.ok, outcome.data, hook.results)
    assert (True, errors.TOOL) == (result.tool_result.is_error, result.tool_result.error_code)
    assert EXECUTION_STATUS_TIMEOUT == outcome.handler_result().status


@pytest.mark.parametrize(("hook", "code"), [(Patch(arguments={"m": 1}), errors.ARGS), (Patch(data={"m": 1}), errors.TOOL)])
async def test_patches_obey_the_contract(client: GavelClient, store: EvidenceStore, hook: Patch, code: str) -> None:
    """A patch that does not match the contract fails the call."""
    outcome = await (await runtime_of(client, store, double, hook)).invoke("num.double", {"n": 4}, context())
    assert outcome.error is not None
    assert code == outcome.error.code


async def test_a_hook_that_raises_fails_the_call(client: GavelClient, store: EvidenceStore) -> None:
    """An exception of a hook before the call keeps the tool from running; its text is not recorded."""

    class Broken(ToolHook):
        async def before_call(self, invocation: ToolInvocation) -> dict[str, Any] | None:
            raise RuntimeError("the secret")

    called: list[ToolInvocation] = []
    outcome = await (await runtime_of(client, store, called.append, Broken())).invoke("num.double", {"n": 4}, context())
    _, result = await recorded(client)
    assert (errors.TOOL, []) == (result.tool_result.error_code, called)
    assert "secret" not in f"{outcome.error}{result}"


async def test_redactions_reach_neither_log_nor_evidence(client: GavelClient, store: EvidenceStore) -> None:
    """Declared secrets are removed before anything is hashed or kept; the caller gets the whole result."""

    def sign_in(_: ToolInvocation) -> dict[str, object]:
        return {"n": 1, "token": "s3cret", "users": [{"key": "k1"}, {"key": "k2"}]}

    runtime = await runtime_of(
        client, store, sign_in, redactions=["/arguments/n", "/result/token", "/result/users/*/key", "/result/none/0"]
    )
    outcome = await runtime.invoke("num.double", {"n": 4}, context())
    call, result = await recorded(client)
    content = {"n": 1, "token": "[redacted]", "users": [{"key": "[redacted]"}, {"key": "[redacted]"}]}
    assert sign_in(None) == outcome.data  # type: ignore[arg-type]  # it reads no arguments
    assert content == json.loads(store.get(result.tool_result.evidence_hash))
    assert [content_hash(content)] * 2 == [result.tool_result.content_hash, result.tool_result.evidence_hash]
    assert content_hash({"n": "[redacted]"}) == call.tool_call.arguments_hash


async def test_no_result_without_its_evidence(client: GavelClient, tmp_path: Path) -> None:
    """A result whose evidence cannot be kept is not given out, and the log says so."""
    (tmp_path / "evidence").write_text("not a directory")
    runtime = await runtime_of(client, EvidenceStore(str(tmp_path / "evidence")), double)
    outcome = await runtime.invoke("num.double", {"n": 4}, context())
    _, result = await recorded(client)
    assert (None, errors.TOOL, "") == (outcome.data, result.tool_result.error_code, result.tool_result.evidence_uri)


async def test_aliases_can_be_switched_off(client: GavelClient, store: EvidenceStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """With GAVEL_TOOL_ALIASES=false an alias is an unknown name, and the canonical name is not; other values are refused."""
    monkeypatch.setenv("GAVEL_TOOL_ALIASES", "false")
    runtime = await runtime_of(client, store, double)
    with pytest.raises(GavelError) as failure:
        await runtime.invoke("double", {"n": 4}, context())
    assert "TOOL_NOT_FOUND" == failure.value.reason
    assert (await runtime.invoke("num.double", {"n": 4}, context())).ok
    monkeypatch.setenv("GAVEL_TOOL_ALIASES", "off")
    with pytest.raises(ValueError, match="set it to true or false"):
        await runtime_of(client, store, double)


async def test_every_shipped_name_reaches_its_tool(client: GavelClient) -> None:
    """On a bus with the shipped contracts each canonical name and each old name resolves to its tool and its default provider."""
    for contract in shipped_contracts():
        await client.register_contract(contract)
    for provider in shipped_providers():
        await client.register_provider(provider)
    for contract in shipped_contracts():
        for name in (contract.name, *contract.aliases):
            answer = await client.resolve_tool(name)
            assert (contract.name, contract.default_provider) == (answer.contract.name, answer.provider.provider_id)


async def test_a_server_that_is_away_means_no_effect(
    world: World, client: GavelClient, store: EvidenceStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tool is not called unless its TOOL_CALL is in the log."""
    monkeypatch.setattr(records, "WRITE_TIMEOUT_MS", 500)
    called: list[ToolInvocation] = []

    class Away(ToolHook):
        async def before_call(self, invocation: ToolInvocation) -> dict[str, Any] | None:
            await world.buses.stop()
            return None

    runtime = await runtime_of(client, store, called.append, Away())
    with pytest.raises(GavelError):
        await runtime.invoke("num.double", {"n": 4}, context())
    assert [] == called


async def test_a_server_that_goes_while_a_tool_acts(
    world: World, client: GavelClient, store: EvidenceStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A result that cannot be recorded is not given out, and the outcome says that the effect is unknown."""
    monkeypatch.setattr(records, "WRITE_TIMEOUT_MS", 500)

    async def act(_: ToolInvocation) -> dict[str, object]:
        await world.buses.stop()
        return {"n": 8}

    outcome = await (await runtime_of(client, store, act)).invoke("num.double", {"n": 4}, context())
    assert outcome.error is not None
    assert (None, errors.LOST, 0) == (outcome.data, outcome.error.code, outcome.result.sequence_number)


async def test_every_provider_leaves_the_same_records(client: GavelClient, store: EvidenceStore, tmp_path: Path) -> None:
    """With a bridge and without one a call has the same result and the same fields in the log, but for the provider's name."""
    (tmp_path / "a.txt").write_text("hello")
    for contract in shipped_contracts():
        await client.register_contract(contract)
    for provider in shipped_providers():
        await client.register_provider(provider)
    await client.bind_tool(ToolBinding(tool_name="fs.read_text", provider_id="bridge-local", session_id="bridged"))
    runtime = ToolRuntime(client, "tools-1", providers=[Workspace(tmp_path), BridgeLocal(tmp_path)], evidence=store)
    records = []
    for session_id in ("", "bridged"):
        paths = ("/workspace/a.txt", "/workspace/b")
        calls = [runtime.invoke("read_file", {"path": path}, context(session_id=session_id)) for path in paths]
        outcomes = [await call for call in calls]
        assert [{"": "workspace"}.get(session_id, "bridge-local")] * 2 == [outcome.provider_id for outcome in outcomes]
        records.append([(outcome.data, outcome.error, *map(_comparable, (outcome.call, outcome.result))) for outcome in outcomes])
    await runtime.close()
    assert records[0] == records[1]


def _comparable(event: Envelope) -> dict[str, Any]:
    """Return the fields of a tool event that do not depend on provider, session and time."""
    payload = MessageToDict(getattr(event, str(event.WhichOneof("payload"))))
    times = {"startedAt", "finishedAt", "leaseUntil", "durationMs"}
    return {name: value for name, value in payload.items() if name not in {"providerId", "sessionId", "executionId", *times}}
