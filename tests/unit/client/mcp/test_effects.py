"""Calls with effects and reads when Gavel fails between the steps, and open calls that belong to other decisions.

tests/e2e/mcp has the rest.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import grpc
import pytest
from gavel.v1.arbitration_service_pb2 import WaitDecisionResponse
from gavel.v1.common_pb2 import PRODUCER_TYPE_AGENT, Producer
from gavel.v1.decision_pb2 import OUTCOME_APPROVED, OUTCOME_REJECTED, Decision
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.event_service_pb2 import GetEventResponse
from gavel.v1.execution_pb2 import EXECUTION_STATUS_ABORTED, EXECUTION_STATUS_PARTIAL
from gavel.v1.execution_service_pb2 import BeginExecutionResponse, ExecutionStarted
from gavel.v1.tool_service_pb2 import ResolveToolResponse
from gavel_client import GavelError, proposal_envelope
from gavel_client.agents.run_ids import first_event_id, next_event_id
from gavel_client.envelopes import new_event_id
from gavel_client.evidence.store import EvidenceStore
from gavel_client.executor.lease import STOP_FRACTION
from gavel_client.gate import Action, Call, Pending, Refused
from gavel_client.gate.gate import run_key
from gavel_client.mcp import effects as effects_module
from gavel_client.mcp import observation as observation_module
from gavel_client.mcp import witness as witness_module
from gavel_client.mcp.caller import Caller
from gavel_client.mcp.configuration import ToolSettings
from gavel_client.mcp.effects import CANCELLED, LEASE_MARGIN_MS, NOT_RECORDED, EffectCall, Effects
from gavel_client.mcp.open_calls import OpenCalls, Turn
from gavel_client.mcp.tasks import Tasks
from gavel_client.mcp.upstreams.definitions import ToolDefinition
from gavel_client.mcp.witness import MARGIN_MS, Agent, Witness
from gavel_client.rpc.errors import Violation
from gavel_client.tools import ToolOutcome
from gavel_client.values import to_struct
from gavel_rules.limits import LEASE_MS_MAX
from mcp_types import CallToolResult, Tool

AGENT = "coding-agent"
ARGUMENTS = {"text": "one"}
TOOL = ToolDefinition("ledger", Tool(name="append", input_schema={"type": "object"}), "ledger.append", "sha256:0")
SUBJECT = "mcp-server/ledger"
AWAY = GavelError(grpc.StatusCode.UNAVAILABLE, "", "away")


class Gavel:
    """A client with the events of a log. While `is_away` every call fails."""

    def __init__(self) -> None:
        self.log: dict[str, Envelope] = {}
        self.reports: list[Envelope] = []
        self.leases_ms: list[int] = []
        self.is_away = False

    def add(self, envelope: Envelope) -> Envelope:
        """Add an event."""
        self.log[envelope.event_id] = envelope
        return envelope

    async def get_event(self, *, event_id: str, timeout_ms: int = 0) -> GetEventResponse:
        """Read an event."""
        self._check()
        return GetEventResponse(envelope=self.log[event_id])

    async def get_projection(self, *_: object, **__: object) -> None:
        """Refuse the subject."""
        raise GavelError(grpc.StatusCode.INVALID_ARGUMENT, "INVALID_ENVELOPE", "invalid", (Violation("subject", "is too long"),))

    async def begin_execution(self, decision_id: str, *, lease_ms: int, **_: object) -> BeginExecutionResponse:
        """Start an attempt."""
        self._check()
        self.leases_ms.append(lease_ms)
        started = ExecutionStarted(decision=self.log[decision_id], attempt=1, execution_id="exec_000000000001", lease_ms=lease_ms)
        return BeginExecutionResponse(started=started)

    async def report_execution(self, envelope: Envelope, *, timeout_ms: int) -> None:
        """Take a report."""
        self._check()
        self.reports.append(envelope)

    async def publish_event(self, envelope: Envelope) -> None:
        """Fail: no observation is taken."""
        raise AWAY

    def _check(self) -> None:
        if self.is_away:
            raise AWAY


class Runtime:
    """A runtime whose calls end with `end`."""

    def __init__(self, end: Any) -> None:
        self._end = end

    async def invoke(self, *_: object) -> Any:
        """End a call."""
        if isinstance(self._end, Exception):
            raise self._end
        return self._end


def agent(gavel: Gavel) -> Agent:
    """Return the agent, whose client is `gavel`."""
    client: Any = gavel
    return Agent(AGENT, client)


def effects(folder: Path, end: Any = None) -> tuple[Effects, OpenCalls]:
    """Return the effects of a proxy, and its open calls."""
    runtime: Any = Runtime(end)
    open_calls = OpenCalls(folder / "open-calls")
    return Effects(runtime, Witness(runtime), open_calls, EvidenceStore(str(folder)), "mcp-proxy", 60_000), open_calls


def call(gavel: Gavel, timeout_ms: int = 1_000) -> EffectCall:
    """Return the call of the ledger."""
    return EffectCall(TOOL, ToolSettings(), ARGUMENTS, agent(gavel), timeout_ms=timeout_ms)


def approve(gavel: Gavel, key: str, *, rejections: int = 0) -> Envelope:
    """Add a run with a key to the log: its proposals, rejections and approval; return the approval."""
    producer = Producer(type=PRODUCER_TYPE_AGENT, id=AGENT)
    proposal_id, cause = first_event_id(producer, key), ""
    while True:
        proposal = proposal_envelope(
            SUBJECT, producer, action_type=TOOL.name, params=ARGUMENTS, max_fact_age_ms=1, event_id=proposal_id, causation_id=cause
        )
        gavel.add(proposal)
        outcome = OUTCOME_REJECTED if rejections else OUTCOME_APPROVED
        content = Decision(
            outcome=outcome,
            action_type=TOOL.name,
            params=to_struct(ARGUMENTS, "params"),
            proposal_id=proposal_id,
            decision_id=new_event_id(),
        )
        decision = gavel.add(Envelope(event_id=content.decision_id, subject=SUBJECT, decision=content))
        if not rejections:
            return decision
        rejections -= 1
        proposal_id, cause = next_event_id(decision.event_id), decision.event_id


def key_of(turn: Turn, idempotency_key: str = "") -> str:
    """Return the run key of a call of the ledger."""
    return run_key(Call(TOOL.name, ARGUMENTS, turn.task, turn.turn, idempotency_key), Action(TOOL.name, SUBJECT, ARGUMENTS))


async def test_a_task_goes_on_after_gavel_was_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A poll at which Gavel cannot be reached ends no approved task, and leaves its call open; a later poll makes the call."""
    monkeypatch.setattr(effects_module, "DECISION_MS_MAX", 1)
    gavel = Gavel()
    made, open_calls = effects(tmp_path, AWAY)
    turn = open_calls.open(AGENT, TOOL.name, ARGUMENTS, "task")
    decision = approve(gavel, key_of(turn))
    tasks, state = Tasks(tmp_path / "cancelled"), WaitDecisionResponse(decision=decision)

    async def resume(_: WaitDecisionResponse, __: asyncio.Event) -> CallToolResult | Pending | Refused:
        return await made.resume(decision, call(gavel))

    gavel.is_away = True
    assert "working" == (await tasks.get(AGENT, decision.event_id, state, resume))["status"]
    assert turn == open_calls.find(AGENT, TOOL.name, ARGUMENTS)
    gavel.is_away = False
    assert "completed" == (await tasks.get(AGENT, decision.event_id, state, resume))["status"]
    assert 1 == len(gavel.reports)


async def test_a_task_that_is_cancelled_while_its_call_begins(tmp_path: Path) -> None:
    """A task that is cancelled while BeginExecution is under way makes no call, and its attempt ends as ABORTED."""
    gavel = Gavel()
    made, _ = effects(tmp_path, AssertionError("the tool is called"))
    decision = approve(gavel, "other")
    tasks, state = Tasks(tmp_path / "cancelled"), WaitDecisionResponse(decision=decision)
    begin = gavel.begin_execution

    async def find(_: str) -> WaitDecisionResponse:
        return state

    async def cancel_and_begin(*arguments: Any, **options: Any) -> BeginExecutionResponse:
        await tasks.cancel(AGENT, decision.event_id, find)
        return await begin(*arguments, **options)

    async def resume(_: WaitDecisionResponse, cancelled: asyncio.Event) -> CallToolResult | Pending | Refused:
        return await made.resume(decision, replace(call(gavel), cancelled=cancelled))

    gavel.begin_execution = cancel_and_begin  # type: ignore[method-assign]
    assert "cancelled" == (await tasks.get(AGENT, decision.event_id, state, resume))["status"]
    (report,) = gavel.reports
    assert (EXECUTION_STATUS_ABORTED, CANCELLED) == (report.execution.status, report.execution.reason_code)


async def test_another_call_than_the_approved_one_ends_its_task(tmp_path: Path) -> None:
    """A refusal that a later poll cannot change is the end of a task."""
    gavel = Gavel()
    decision = approve(gavel, "other")
    decision.decision.params.update({"text": "another"})
    answer = await effects(tmp_path)[0].resume(decision, call(gavel))
    assert isinstance(answer, Refused)
    assert "CALL_DIFFERS" == answer.reason


@pytest.mark.parametrize("rejections", [0, 2])
async def test_a_decision_closes_its_own_open_call(tmp_path: Path, rejections: int) -> None:
    """Forgetting the call of a decision closes the open call that led to it, also by a later proposal of its run."""
    gavel = Gavel()
    made, open_calls = effects(tmp_path)
    turn = open_calls.open(AGENT, TOOL.name, ARGUMENTS, "task")
    await made.forget(approve(gavel, key_of(turn), rejections=rejections), agent(gavel))
    assert open_calls.find(AGENT, TOOL.name, ARGUMENTS) is None


async def test_a_call_with_a_key_leaves_an_equal_call_open(tmp_path: Path) -> None:
    """Forgetting the call of a decision that was asked for under an idempotency key leaves an equal call without a key open."""
    gavel = Gavel()
    made, open_calls = effects(tmp_path)
    turn = open_calls.open(AGENT, TOOL.name, ARGUMENTS, "task")
    await made.forget(approve(gavel, key_of(Turn("task", ""), "key-1")), agent(gavel))
    assert turn == open_calls.find(AGENT, TOOL.name, ARGUMENTS)


async def test_a_call_that_could_not_be_recorded_was_not_made(tmp_path: Path) -> None:
    """A call that ends before anything is carried out, because Gavel is away, is reported as ABORTED and answered so."""
    gavel = Gavel()
    made, open_calls = effects(tmp_path, AWAY)
    decision = approve(gavel, key_of(open_calls.open(AGENT, TOOL.name, ARGUMENTS, "task")))
    answer: Any = await made.resume(decision, call(gavel))
    assert "The call was not made: Gavel, which decides about it, cannot be reached" in answer.content[0].text
    (report,) = gavel.reports
    assert (EXECUTION_STATUS_ABORTED, NOT_RECORDED) == (report.execution.status, report.execution.reason_code)


async def test_a_call_does_not_begin_after_its_lease(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call whose lease is over before it begins is not made, and its answer says so."""
    monkeypatch.setattr(effects_module, "LEASE_MARGIN_MS", -3_000)
    gavel = Gavel()
    answer: Any = await effects(tmp_path)[0].resume(approve(gavel, "other"), call(gavel))
    assert "The call was not made: " in answer.content[0].text


@pytest.mark.parametrize("timeout_ms", [1, 60_000, 3_600_000])
async def test_a_lease_leaves_a_call_its_whole_time(tmp_path: Path, timeout_ms: int) -> None:
    """The gate stops no call before its own time is over, and asks for no lease that the server refuses."""
    gavel = Gavel()
    await effects(tmp_path, AWAY)[0].resume(approve(gavel, "other"), call(gavel, timeout_ms))
    (lease_ms,) = gavel.leases_ms
    assert timeout_ms + MARGIN_MS + LEASE_MARGIN_MS <= lease_ms * (1 - STOP_FRACTION)
    assert lease_ms <= LEASE_MS_MAX


async def test_a_call_that_outlives_its_lease_is_over(tmp_path: Path) -> None:
    """A call that the gate stops is PARTIAL, and is closed: its answer says so, and the next equal call is another one."""
    gavel = Gavel()
    made, open_calls = effects(tmp_path, TimeoutError())
    decision = approve(gavel, key_of(open_calls.open(AGENT, TOOL.name, ARGUMENTS, "task")))
    answer: Any = await made.resume(decision, call(gavel))
    assert answer.is_error
    assert "whether it took effect is unknown" in answer.content[0].text
    assert [EXECUTION_STATUS_PARTIAL] == [report.execution.status for report in gavel.reports]
    assert open_calls.find(AGENT, TOOL.name, ARGUMENTS) is None


async def test_a_call_that_cannot_be_proposed_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call whose proposal Gavel does not take leaves no open call."""
    monkeypatch.setattr(Witness, "state_digest", AsyncMock(return_value=""))
    made, open_calls = effects(tmp_path)
    answer = await made.call(call(Gavel()), Caller(AGENT, "session"))
    assert isinstance(answer, Refused)
    assert "subject: is too long" in answer.message()
    assert open_calls.find(AGENT, TOOL.name, ARGUMENTS) is None


async def test_a_read_whose_observation_is_lost_was_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer to a read that was made, and whose observation Gavel did not take, does not say that it was not made."""
    monkeypatch.setattr(witness_module, "read_fields", lambda *_: {"ledger.text": "one"})
    outcome: Any = object.__new__(ToolOutcome)
    content = {"content": [{"type": "text", "text": "one"}]}
    for name, value in {"data": content, "call": Envelope(), "result": Envelope(), "canonical_tool": "ledger.peek"}.items():
        object.__setattr__(outcome, name, value)
    runtime: Any = Runtime(outcome)
    read = Witness(runtime).read(TOOL, ToolSettings(mode="read"), ARGUMENTS, Caller(AGENT, "session"), agent(Gavel()), 1_000)
    answer: Any = await read
    assert answer.is_error
    assert "The call was made, but the observation of its result could not be recorded" in answer.content[0].text


class Recorder:
    """A recorder of tool calls that Gavel leaves before the result."""

    def __init__(self, *_: object) -> None:
        """Nothing is recorded."""

    async def record_call(self, *_: object, carries_out: bool) -> Envelope:
        """Record a call."""
        return Envelope()

    async def record_result(self, *_: object) -> None:
        """Fail."""
        raise AWAY


async def test_an_observed_call_whose_result_is_lost_may_have_been_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer to a refused call that was made all the same, and whose result Gavel did not take, does not say that it was not made."""
    monkeypatch.setattr(observation_module, "ToolRecorder", Recorder)
    client: Any = AsyncMock()
    client.resolve_tool.return_value = ResolveToolResponse()
    providers: Any = {"ledger": AsyncMock()}
    observation = observation_module.Observation(client, "mcp-proxy", providers, EvidenceStore(str(tmp_path)))
    answer: Any = await observation.make(call(Gavel()), Refused("CAREFUL", "careful", Envelope()))
    assert "The call may have been made" in answer.content[0].text
