"""The tools of an agent: reads through the runtime of tools, effects as proposals, and the final answer.

An agent has no other way to act. `runtime_tool` refuses tools with effects on the outside world; `ActionTool` turns a call into a proposal,
and the model is told what was decided.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import rfc8785
from gavel.v1.common_pb2 import Producer
from gavel.v1.tool_pb2 import ToolContract

from gavel_client.agents.citations import Citations
from gavel_client.agents.evidence_collection import time_of_call
from gavel_client.agents.loop_results import LoopResult
from gavel_client.agents.proposal_loop import ProposalLoop
from gavel_client.envelopes import observation_envelope, proposal_envelope
from gavel_client.llm.agent_results import ToolExecutionResult
from gavel_client.llm.models import LLMToolCall
from gavel_client.llm.requests import LLMTool
from gavel_client.rpc.client import GavelClient
from gavel_client.rpc.errors import GavelError, describe_error
from gavel_client.tools.errors import ARGS
from gavel_client.tools.invocation import TIMEOUT_MS_DEFAULT, ToolContext, ToolOutcome
from gavel_client.tools.redaction import redact
from gavel_client.tools.runtime import ToolRuntime
from gavel_client.tools.schemas import Schemas
from gavel_client.values import escape_surrogates, from_struct, to_struct

FINAL_ANSWER: Final = "final_answer"
NAME_LENGTH_MAX: Final = 64
OUTPUT_LENGTH_MAX: Final = 50_000

Arguments = Mapping[str, Any]
# Returns the subject, "type/id", that a call is about.
SubjectOf = Callable[[Arguments], str]
# Returns the values of facts, by key, that a result tells about the call's subject.
Observe = Callable[[Mapping[str, Any]], Mapping[str, object]]


@dataclass
class AgentRun:
    """The state of one run, for its tools."""

    client: GavelClient
    producer: Producer
    subject: str
    """Subject of the event that caused the run."""
    trace_id: str
    run_key: str
    """Names the run among those of the producer."""
    session_id: str = ""
    """Session of the agent, whose bindings of tools apply."""
    invocation_id: str = ""
    """The event of the model's call that the tools are called for: the cause of what they do."""
    evidence: Citations = field(default_factory=Citations)
    """The events that a proposal cites: the cause of the run, and the latest observations of its tools."""


class AgentTool(Protocol):
    """A tool that a model may call."""

    @property
    def definition(self) -> LLMTool:
        """The description of the tool for the model."""
        ...

    async def run(self, call: LLMToolCall, arguments: Arguments, run: AgentRun) -> ToolExecutionResult:
        """Carry a call out. A failure is a result, which the model reads. Raises GavelError if Gavel cannot be reached."""
        ...


class RuntimeTool:
    """A tool of a runtime that has no effect on the outside world; made by `runtime_tool`."""

    def __init__(
        self,
        runtime: ToolRuntime,
        contract: ToolContract,
        description: str,
        *,
        observe: Observe | None = None,
        subject: SubjectOf | None = None,
        timeout_ms: int = TIMEOUT_MS_DEFAULT,
    ) -> None:
        if observe is not None and subject is None:
            raise ValueError(
                f"observe needs subject: give a function that returns what a call of {contract.name} is about, or the model chooses it"
            )
        self._runtime = runtime
        self._tool_name: Final = contract.name
        self._observe = observe
        self._subject = subject
        self._timeout_ms = timeout_ms
        parameters = _object_schema(from_struct(contract.argument_schema))
        self.definition: Final = LLMTool(model_name(contract.name), description, parameters, tuple(contract.redactions))

    async def run(self, call: LLMToolCall, arguments: Arguments, run: AgentRun) -> ToolExecutionResult:
        """Call the tool; record the observed values of its result as an observation.

        The tool has acted by then: an observation that cannot be recorded is a note in the output, not a failure of the call.
        """
        try:
            subject = self._subject(arguments) if self._subject else run.subject
        except Exception as error:  # noqa: BLE001  # the model chose the arguments
            return failure(call, ARGS, f"the arguments do not name what the call is about: {describe_error(error)}")
        context = ToolContext(
            subject,
            run.trace_id,
            run.invocation_id,
            call_id=call.call_id,
            agent_id=run.producer.id,
            session_id=run.session_id,
            timeout_ms=self._timeout_ms,
        )
        outcome = await self._runtime.invoke(self._tool_name, arguments, context)
        event_ids: tuple[str, ...] = (outcome.call.event_id, outcome.result.event_id)
        if outcome.error is not None:
            output = _json({"error": {"code": outcome.error.code, "message": outcome.error.message, "details": outcome.error.details}})
            return ToolExecutionResult(call, output, outcome.error.code, event_ids, outcome)
        note = ""
        try:
            event_ids += await self._record_observation(subject, outcome, run)
        except GavelError as error:
            note = f"\n[the observation of this result is not recorded, and no proposal can cite it: {describe_error(error)}]"
        recorded = _json(redact(outcome.data, "result", outcome.redactions)) + note if outcome.redactions else None
        return ToolExecutionResult(call, _json(outcome.data) + note, None, event_ids, outcome, recorded)

    async def _record_observation(self, subject: str, outcome: ToolOutcome, run: AgentRun) -> tuple[str, ...]:
        fields = self._observe(outcome.data or {}) if self._observe else {}
        if not fields:
            return ()
        observation = observation_envelope(
            subject,
            run.producer,
            source_tool=outcome.canonical_tool,
            extracted_fields=fields,
            evidence=outcome.result,
            observed_at=time_of_call(outcome.call),
            trace_id=run.trace_id,
            causation_id=outcome.result.event_id,
        )
        recorded = (await run.client.publish_event(observation)).envelope
        run.evidence.add_event(recorded)
        return (recorded.event_id,)


async def runtime_tool(
    client: GavelClient,
    runtime: ToolRuntime,
    name: str,
    description: str,
    *,
    observe: Observe | None = None,
    subject: SubjectOf | None = None,
    timeout_ms: int = TIMEOUT_MS_DEFAULT,
) -> RuntimeTool:
    """Return a registered tool for an agent; its arguments are those of its contract.

    `observe` returns the values of facts that a result tells; they become an OBSERVATION with the result as evidence (tier 2), which the
    proposals of the run cite. `subject` returns the subject that a call with such arguments is about, by default that of the run;
    `observe` requires it. Raises ValueError for a tool with effects on the outside world, which takes an ActionTool; GavelError if no tool
    has the name.
    """
    resolution = await client.resolve_tool(name)
    if not resolution.guard.agents_may_call:
        raise ValueError(f"the tool {name} is not for agents: {resolution.guard.reason}; offer the model an ActionTool, which proposes")
    return RuntimeTool(runtime, resolution.contract, description, observe=observe, subject=subject, timeout_ms=timeout_ms)


class ActionTool:
    """An action on the world that a model may ask for. Each call becomes a proposal, which `loop` takes to its final decision.

    `parameters` is the JSON Schema of the arguments, which are the action's params; they are checked before the proposal. Within a run,
    equal calls are one proposal: a model that repeats itself, and a run that is repeated, do no work twice.
    """

    def __init__(
        self,
        name: str,
        description: str,
        parameters: Mapping[str, Any],
        *,
        action_type: str,
        loop: ProposalLoop,
        max_fact_age_ms: int,
        subject: SubjectOf | None = None,
        risk: float = 0.0,
        confidence: float = 0.0,
    ) -> None:
        self.definition: Final = LLMTool(name, description, _object_schema(parameters))
        self._action_type = action_type
        self._loop = loop
        self._max_fact_age_ms = max_fact_age_ms
        self._subject = subject
        self._risk = risk
        self._confidence = confidence
        self._schema = to_struct(parameters, "parameters")
        self._schemas = Schemas()

    async def run(self, call: LLMToolCall, arguments: Arguments, run: AgentRun) -> ToolExecutionResult:
        """Propose the action; tell the model the decision and the reasons."""
        problem = self._schemas.problem(self._schema, arguments, "arguments")
        if problem:
            return failure(call, ARGS, problem)
        try:
            subject = self._subject(arguments) if self._subject else run.subject
            proposal = proposal_envelope(
                subject,
                run.producer,
                action_type=self._action_type,
                params=arguments,
                max_fact_age_ms=self._max_fact_age_ms,
                based_on_events=run.evidence.references,
                risk=self._risk,
                confidence=self._confidence,
                trace_id=run.trace_id,
                causation_id=run.invocation_id,
            )
        except Exception as error:  # noqa: BLE001  # the model chose the arguments
            return failure(call, ARGS, f"the arguments cannot be proposed: {describe_error(error)}")
        work: dict[str, Any] = {
            "run": run.run_key,
            "action_type": self._action_type,
            "subject": subject,
            "params": from_struct(proposal.proposal.params),
        }
        result = await self._loop.run(proposal, run_key=hashlib.sha256(rfc8785.dumps(work)).hexdigest())
        return ToolExecutionResult(call, _cut(result.explain()), _refusal(result), _event_ids(result), result)


class FinalAnswer:
    """The tool with which a model ends the run; its result is recorded like any other.

    The answer is a text. With a `schema` of an object it is that object, checked; the output of the run is its JSON.
    """

    def __init__(self, schema: Mapping[str, Any] | None = None) -> None:
        text = {"type": "object", "required": ["answer"], "additionalProperties": False, "properties": {"answer": {"type": "string"}}}
        self._is_text = schema is None
        parameters = text if schema is None else schema
        self.definition: Final = LLMTool(FINAL_ANSWER, "Ends the work with the answer.", _object_schema(parameters))
        self._schema = to_struct(parameters, "schema")
        self._schemas = Schemas()

    async def run(self, call: LLMToolCall, arguments: Arguments, run: AgentRun) -> ToolExecutionResult:
        """Return the answer as the result, or a failure if it does not match the schema."""
        problem = self._schemas.problem(self._schema, arguments, "arguments")
        if problem:
            return failure(call, ARGS, problem)
        output = arguments["answer"] if self._is_text else json.dumps(arguments, ensure_ascii=False)
        return ToolExecutionResult(call, output, details=arguments)


def model_name(name: str) -> str:
    """Return a tool's name in the alphabet that the APIs of models allow: "fs.read_text" becomes "fs_read_text"."""
    return re.sub(r"[^a-zA-Z0-9_-]", "_", name)[:NAME_LENGTH_MAX]


def failure(call: LLMToolCall, code: str, message: str) -> ToolExecutionResult:
    """Return the result of a call that was not carried out."""
    return ToolExecutionResult(call, _json({"error": {"code": code, "message": message}}), code)


def _refusal(result: LoopResult) -> str | None:
    return None if result.approved else result.reason.name


def _event_ids(result: LoopResult) -> tuple[str, ...]:
    ids: list[str] = []
    for item in result.rounds:
        decision = () if item.decision is None else (item.decision.event_id,)
        ids += [item.proposal.event_id, *decision, *(event.event_id for event in item.published)]
    return tuple(ids)


def _object_schema(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a schema of an object, which the APIs require, also for a tool without one."""
    return schema if schema.get("type") == "object" else {"type": "object", **schema}


def _json(value: object) -> str:
    # A message about arguments may repeat a lone surrogate of the model's.
    return _cut(escape_surrogates(json.dumps(value, ensure_ascii=False)))


def _cut(text: str) -> str:
    if len(text) <= OUTPUT_LENGTH_MAX:
        return text
    return f"{text[:OUTPUT_LENGTH_MAX]}\n[cut: the output has {len(text)} characters; ask for less]"
