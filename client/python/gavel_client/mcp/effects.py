"""Calls with effects: each becomes a proposal, and is made once if it is approved.

The gate proposes the call, begins its execution and reports how it ended. The runtime of tools makes the call within the lease, with the
params of the decision. A call that its client cancels, or whose client goes away, is not made if it has not begun. If it has, it runs to
its end, because only its result tells whether it took effect.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final
from weakref import WeakValueDictionary

import grpc
from gavel.v1.arbitration_service_pb2 import DECISION_PHASE_CLOSED
from gavel.v1.decision_pb2 import OUTCOME_REJECTED
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.execution_pb2 import Execution
from mcp_types import CallToolResult

from gavel_client.agents.deadline import Deadline
from gavel_client.agents.run_ids import first_event_id
from gavel_client.envelopes import content_hash
from gavel_client.evidence.store import EvidenceError, EvidenceStore
from gavel_client.executor.lease import STOP_FRACTION
from gavel_client.gate import Action, Allowed, Answer, Call, Finished, Gate, Pending, Refused, ToolActions
from gavel_client.gate.gate import CALL_INVALID, run_key
from gavel_client.handlers import HandlerResult
from gavel_client.mcp import answers
from gavel_client.mcp.caller import Caller
from gavel_client.mcp.configuration import ToolSettings
from gavel_client.mcp.open_calls import OpenCalls, Turn
from gavel_client.mcp.upstreams.definitions import ToolDefinition
from gavel_client.mcp.upstreams.provider import MAY_HAVE_ACTED, REPORTED, result_of
from gavel_client.mcp.witness import MARGIN_MS, Agent, Witness, failure_result, read_fields, subject_of
from gavel_client.rpc.backoff import Backoff
from gavel_client.rpc.errors import GavelError, HandlerError
from gavel_client.timeouts import timeout
from gavel_client.tools import ToolContext, ToolOutcome, ToolRuntime
from gavel_client.tools.errors import ARGS, PERMISSION
from gavel_client.values import from_struct

# Time from a call to the start of its tool. Clients wait for about a minute for an answer, which includes the tool's own time.
DECISION_MS_MAX: Final = 20_000
# The part of it that a call keeps for its decision while it waits for earlier calls on its subject.
_DECISION_MS_MIN: Final = 5_000
# Time that an attempt has beyond that of its call, to record the call and its result.
LEASE_MARGIN_MS: Final = 15_000
# Time for the facts of a call to come into the log, before its answer is given.
FACTS_MS_MAX: Final = 2_000
# Proposals of one call, if the evidence of an approval changes before the start.
PROPOSALS_MAX: Final = 3
_SUPERSEDED: Final = frozenset({"FACT_SUPERSEDED", "STALE_FACT"})
TOOL_ERROR: Final = "TOOL_ERROR"
CANCELLED: Final = "CANCELLED"
# The reason of a call that was not made because it could not be recorded before.
NOT_RECORDED: Final = "CALL_NOT_RECORDED"
# Refusals without a decision that stay as they are.
_FINAL_REFUSALS: Final = frozenset({CALL_INVALID, "CALL_DIFFERS", "UNKNOWN_TOOL"})

CallAnswer = CallToolResult | Pending | Refused


@dataclass(frozen=True)
class EffectCall:
    """One call with effects."""

    definition: ToolDefinition
    settings: ToolSettings
    arguments: Mapping[str, Any]
    agent: Agent
    timeout_ms: int
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the client no longer wants the call."""

    @property
    def action(self) -> Action:
        """The action that the call proposes. Raises ExpressionError for a call without a subject."""
        return Action(self.definition.name, subject_of(self.definition, self.settings, self.arguments), self.arguments)


# What equal calls have in common: turn, agent, tool, arguments and idempotency key.
_Key = tuple[Turn, str, str, str, str]


def _key(call: EffectCall, caller: Caller, turn: Turn) -> _Key:
    return turn, call.agent.id, call.definition.name, content_hash(dict(call.arguments)), caller.idempotency_key


class Effects:
    """Proposes calls, makes approved calls, and records open calls on disk."""

    def __init__(
        self, runtime: ToolRuntime, witness: Witness, open_calls: OpenCalls, evidence: EvidenceStore, executor: str, max_fact_age_ms: int
    ) -> None:
        self._runtime: Final = runtime
        self._witness: Final = witness
        self._open_calls: Final = open_calls
        self._evidence: Final = evidence
        self._executor: Final = executor
        self._max_fact_age_ms: Final = max_fact_age_ms
        self._running: Final[set[asyncio.Task[Any]]] = set()
        self._equal: Final[dict[_Key, list[EffectCall]]] = {}  # the calls under way
        self._subjects: Final[WeakValueDictionary[str, asyncio.Lock]] = WeakValueDictionary()

    async def call(self, call: EffectCall, caller: Caller) -> CallAnswer:
        """Propose a call and make it if it is approved. A Refused without a decision means that Gavel could not decide in time.

        Raises GavelError if Gavel cannot be reached, ExpressionError for a call without a subject, OSError if the state cannot be written.
        """
        deadline = Deadline(DECISION_MS_MAX, Backoff())
        for _ in range(PROPOSALS_MAX):
            turn = self._turn(call, caller)
            self._equal.setdefault(_key(call, caller, turn), []).append(call)
            answer = await self._to_its_end(self._play(call, caller, turn, deadline), call)
            # The evidence changed between the decision and the start: nothing was made, and a new proposal cites what is there now.
            is_superseded = isinstance(answer, Refused) and answer.reason in _SUPERSEDED
            if caller.idempotency_key or caller.turn or not is_superseded or deadline.ms_left() <= 0:
                break
        return answer

    async def resume(self, decision: Envelope, call: EffectCall) -> CallAnswer:
        """Make the call that a decision has approved meanwhile, or return its result if it was made. Raises GavelError."""
        return await self._to_its_end(self._begin_and_make(decision, call), call)

    async def forget(self, decision: Envelope, agent: Agent) -> None:
        """Forget the open call about which a decision was made, so that the next equal call is another one.

        An equal call that has led to another decision stays open: a call with an idempotency key, for instance, is in no file. Raises
        GavelError and OSError.
        """
        content = decision.decision
        tool, arguments = content.action_type, from_struct(content.params)
        turn = self._open_calls.find(agent.id, tool, arguments)
        if turn is None:
            return
        key = run_key(Call(tool, arguments, turn.task, turn.turn), Action(tool, decision.subject, arguments))
        if await _first_proposal_id(agent, content.proposal_id) == first_event_id(agent.producer, key):
            self._open_calls.close(agent.id, tool, arguments, turn)

    async def close(self, grace_ms: int) -> None:
        """Wait for the calls under way. Stop and report calls that take longer than `grace_ms`."""
        if self._running:
            _, late = await asyncio.wait(self._running, timeout=grace_ms / 1000)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)

    def _turn(self, call: EffectCall, caller: Caller) -> Turn:
        trace = caller.trace_of(call.action.subject)
        if caller.idempotency_key or caller.turn:
            return Turn(trace, caller.turn)
        return self._open_calls.open(call.agent.id, call.definition.name, call.arguments, trace)

    async def _to_its_end(self, call_coroutine: Coroutine[Any, Any, CallAnswer], call: EffectCall) -> CallAnswer:
        """Await a call in a task of its own. If the client cancels it, the task learns of that, and goes on."""
        task = asyncio.create_task(call_coroutine)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            call.cancelled.set()
            raise

    async def _play(self, call: EffectCall, caller: Caller, turn: Turn, deadline: Deadline) -> CallAnswer:
        """Propose and make a call when the calls before it on its subject have ended, and close it if its answer is final."""
        with self._leaving(call, caller, turn):
            return await self._play_in_order(call, caller, turn, deadline)

    @contextmanager
    def _leaving(self, call: EffectCall, caller: Caller, turn: Turn) -> Iterator[None]:
        """Afterwards the call is no longer under way."""
        key = _key(call, caller, turn)
        try:
            yield
        finally:
            self._equal[key] = [other for other in self._equal[key] if other is not call]
            if not self._equal[key]:
                del self._equal[key]

    async def _play_in_order(self, call: EffectCall, caller: Caller, turn: Turn, deadline: Deadline) -> CallAnswer:
        async with self._in_order(call.action.subject, deadline):
            try:
                answer = await self._decide_and_make(call, caller, turn, deadline)
            except GavelError as error:
                # Gavel takes no such proposal, so there is nothing to come back to.
                if error.code is grpc.StatusCode.INVALID_ARGUMENT and not caller.idempotency_key:
                    self._open_calls.close(call.agent.id, call.definition.name, call.arguments, turn)
                raise
        is_final = not isinstance(answer, Pending) and not _may_be_decided(answer)
        # A client that has cancelled a call does not get its result; it gets it if it makes the same call again.
        is_owed = call.cancelled.is_set() and isinstance(answer, CallToolResult)
        if is_final and not is_owed and not caller.idempotency_key:
            self._open_calls.close(call.agent.id, call.definition.name, call.arguments, turn)
        return answer

    @asynccontextmanager
    async def _in_order(self, subject: str, deadline: Deadline) -> AsyncIterator[None]:
        """Let one call at a time propose on a subject; one that has waited too long lets the rules decide.

        The proposal of a call beside another one would be refused for a conflict, and such refusals in a row request a person.
        """
        lock = self._subjects.setdefault(subject, asyncio.Lock())
        is_held = False
        try:
            with suppress(asyncio.TimeoutError):
                async with timeout(max(deadline.ms_left() - _DECISION_MS_MIN, 0) / 1000):
                    is_held = await lock.acquire()
            yield
        finally:
            if is_held:
                lock.release()

    async def _begin_and_make(self, decision: Envelope, call: EffectCall) -> CallAnswer:
        gate_call = Call(call.definition.name, call.arguments, decision.event_id)
        begun = await self._gate(call, Deadline(DECISION_MS_MAX, Backoff())).begin(decision.event_id, gate_call)
        if isinstance(begun, Refused) and _may_be_decided(begun):
            return Pending(decision.event_id, begun.reason)  # Gavel has not answered: the call may still be made
        if isinstance(begun, Allowed) and call.cancelled.is_set():
            await begun.report(HandlerResult.aborted(CANCELLED))
            answer: CallAnswer = answers.CANCELLED
        else:
            answer = await self._make(begun, call)
        # After a call that has ended before, an equal one may be open, which is another call.
        if not isinstance(answer, Pending) and not isinstance(begun, Finished):
            with suppress(GavelError):  # the call has its answer; if it stays open, the next equal call gets the same one
                await self.forget(decision, call.agent)
        return answer

    async def _decide_and_make(self, call: EffectCall, caller: Caller, turn: Turn, deadline: Deadline) -> CallAnswer:
        if call.cancelled.is_set():
            self._give_up(call, caller, turn)
            return answers.CANCELLED
        action = call.action
        try:
            async with timeout(max(deadline.ms_left(), 0) / 1000):
                problem = await self._witness.state_digest(call.definition, action.subject, turn.task, call.agent, call.timeout_ms)
        except asyncio.TimeoutError:
            problem = f"the server {call.definition.server} did not list its tools in time"
        if problem:
            return answers.closed(problem)
        gate_call = Call(call.definition.name, call.arguments, turn.task, turn.turn, caller.idempotency_key)
        answer = await self._gate(call, deadline)(gate_call)
        if isinstance(answer, Allowed) and self._is_unwanted(call, caller, turn):
            await answer.report(HandlerResult.aborted(CANCELLED))
            self._give_up(call, caller, turn)
            return answers.CANCELLED
        return await self._make(answer, call)

    def _is_unwanted(self, call: EffectCall, caller: Caller, turn: Turn) -> bool:
        """Return whether no client wants a call: it and all equal ones under way, which share its decision, were cancelled."""
        return all(equal.cancelled.is_set() for equal in (call, *self._equal[_key(call, caller, turn)]))

    def _give_up(self, call: EffectCall, caller: Caller, turn: Turn) -> None:
        """Close a cancelled call, unless an equal call is under way. A person may still decide on that one."""
        if self._is_unwanted(call, caller, turn) and not caller.idempotency_key:
            self._open_calls.close(call.agent.id, call.definition.name, call.arguments, turn)

    def _gate(self, call: EffectCall, deadline: Deadline) -> Gate:
        actions = ToolActions()
        actions.tool(call.definition.name)(lambda _: self._with_age(call.action))
        return Gate(
            call.agent.client,
            actions,
            agent=call.agent.id,
            executor=self._executor,
            lease_ms=math.ceil((call.timeout_ms + MARGIN_MS + LEASE_MARGIN_MS) / (1 - STOP_FRACTION)),
            deadline_ms=max(int(deadline.ms_left()), 1),
        )

    def _with_age(self, action: Action) -> Action:
        return Action(action.action_type, action.subject, action.params, max_fact_age_ms=self._max_fact_age_ms)

    async def _make(self, answer: Answer, call: EffectCall) -> CallAnswer:
        match answer:
            case Allowed():
                return await self._carry_out(answer, call)
            case Finished(report) if report.execution.reason_code == CANCELLED:
                return answers.CANCELLED
            case Finished():
                return await self._recorded(answer)
            case Pending(_, reason, decision) if decision is not None and decision.decision.outcome == OUTCOME_REJECTED:
                # Another call of the trace waits for a person; this one has been refused for good.
                return Refused(reason, f"another call on {decision.subject} waits for a person", decision)
        return answer

    async def _carry_out(self, allowed: Allowed, call: EffectCall) -> CallToolResult:
        """Make an approved call within its lease, and report it."""
        execution = allowed.execution
        context = ToolContext(
            execution.decision.subject,
            trace_id=execution.decision.trace_id,
            causation_id=execution.decision.event_id,
            agent_id=call.agent.id,
            timeout_ms=call.timeout_ms + MARGIN_MS,
            execution=execution,
        )

        async def invoke() -> ToolOutcome | GavelError:
            try:
                return await self._runtime.invoke(call.definition.name, execution.params, context)
            except GavelError as error:
                return error  # the runtime raises it only before anything is carried out

        try:
            outcome = await allowed.run(invoke, lambda result: _report(result, call))
        except HandlerError as error:
            return answers.closed(error.message)
        except asyncio.TimeoutError:
            return answers.failed("The call did not end within its lease; whether it took effect is unknown. A person has to look at it.")
        if isinstance(outcome, GavelError):
            return answers.unreachable(outcome)
        # Until then the decision holds its conflict key, and the agent may read what was true before the call.
        with suppress(GavelError):
            await call.agent.client.wait_decision(allowed.idempotency_key, phase=DECISION_PHASE_CLOSED, timeout_ms=FACTS_MS_MAX)
        return failure_result(outcome) if outcome.data is None else result_of(outcome.data)

    async def _recorded(self, finished: Finished) -> CallToolResult:
        """Return the result of a call that was made before, from the evidence."""
        data = await asyncio.to_thread(self._stored_result, finished.report.execution)
        if data is None:
            return answers.failed(finished.message())
        return result_of(data)

    def _stored_result(self, execution: Execution) -> dict[str, Any] | None:
        evidence_hash = from_struct(execution.result).get("evidence_hash")
        if not isinstance(evidence_hash, str) or not evidence_hash:
            return None
        with suppress(EvidenceError, ValueError):
            data = json.loads(self._evidence.get(evidence_hash))
            return data if isinstance(data, dict) and "content" in data else None
        return None


def _may_be_decided(answer: Answer | CallToolResult) -> bool:
    """Return whether Gavel has not decided about a call, but may if it is asked again."""
    return isinstance(answer, Refused) and answer.decision is None and answer.reason not in _FINAL_REFUSALS


async def _first_proposal_id(agent: Agent, proposal_id: str) -> str:
    """Return the id of the proposal with which a run began: a later one of a run is caused by the rejection of the one before it."""
    while True:
        rejection_id = (await agent.client.get_event(event_id=proposal_id)).envelope.causation_id
        if not rejection_id:
            return proposal_id
        proposal_id = (await agent.client.get_event(event_id=rejection_id)).envelope.decision.proposal_id


def _report(outcome: ToolOutcome | GavelError, call: EffectCall) -> HandlerResult:
    """Return the report of a call: what the tool returned, by its hashes and the configured fields, or how it failed."""
    if isinstance(outcome, GavelError):
        return HandlerResult.aborted(NOT_RECORDED)
    if outcome.data is not None:
        fields = read_fields(call.definition, call.settings, call.arguments, outcome.data)
        return HandlerResult.success(
            {
                "content_hash": outcome.result_hash,
                "evidence_hash": outcome.evidence_hash,
                "evidence_uri": outcome.evidence_uri,
                **({"fields": fields} if fields else {}),
            }
        )
    error = outcome.error
    if error is None:
        return HandlerResult.partial((), TOOL_ERROR, "the call ended without result and without error")
    if REPORTED in error.details:
        if call.settings.on_error == "aborted":
            return HandlerResult.aborted(TOOL_ERROR)
        return HandlerResult.partial((), TOOL_ERROR, "the tool reports an error; its effect is unknown")
    if error.refused or not error.details.get(MAY_HAVE_ACTED, error.code not in (ARGS, PERMISSION)):
        return HandlerResult.aborted(f"TOOL_{error.code.removeprefix('E_')}")
    return HandlerResult.partial((), f"TOOL_{error.code.removeprefix('E_')}", f"{error.message}; the effect is unknown")
