"""The agent layer: turns of a model and its tools, until an answer or a limit.

    agent = Agent(service, client, AGENT, [status, refund], instructions="Handle the complaint.")
    async for turn in agent.run("…", cause=complaint):
        print(turn.llm_response.text, turn.tool_results)

Each turn has the model's response as the service returned it, and the results of its tools. Every call of the model is an event in the
trace of the cause, and it is the cause of the calls and proposals of the turn's tools. An auditor reads which answer led to which proposal.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Sequence
from typing import Any, Final

import grpc
from gavel.v1.common_pb2 import EventCategory, Producer
from gavel.v1.envelope_pb2 import Envelope

from gavel_client.agents.citations import Citations
from gavel_client.envelopes import reference
from gavel_client.llm.agent_results import AgentResponse, AgentStoppedError, AgentTurn, ToolExecutionResult
from gavel_client.llm.agent_tools import FINAL_ANSWER, AgentRun, AgentTool, FinalAnswer, failure
from gavel_client.llm.invocations import INVOCATION, LLMContext
from gavel_client.llm.models import LLMResponse, LLMToolCall
from gavel_client.llm.requests import AssistantMessage, LLMMessage, LLMRequest, LLMSettings, SystemMessage, ToolMessage, UserMessage
from gavel_client.llm.service import LLMService
from gavel_client.rpc.client import GavelClient
from gavel_client.rpc.errors import GavelError
from gavel_client.tools.errors import ARGS

TURNS_MAX_DEFAULT: Final = 16
_EVIDENCE: Final = (EventCategory.EVENT_CATEGORY_FACT_EVENT, EventCategory.EVENT_CATEGORY_OBSERVATION_EVENT)


class Agent:
    """A model with tools. One agent may make any number of runs, also concurrently.

    `service` must have a recorder of the same `producer`. `final_answer` replaces the tool with which the model ends a run. A run makes
    at most `turns_max` calls of the model.
    """

    def __init__(
        self,
        service: LLMService,
        client: GavelClient,
        producer: Producer,
        tools: Sequence[AgentTool],
        *,
        instructions: str = "",
        final_answer: FinalAnswer | None = None,
        settings: LLMSettings | None = None,
        turns_max: int = TURNS_MAX_DEFAULT,
    ) -> None:
        if not service.is_recorded:
            raise ValueError("the service has no recorder; an agent's calls of models are recorded: pass an InvocationRecorder")
        if turns_max < 1:
            raise ValueError(f"turns_max is {turns_max}; a run has at least one turn")
        self._service = service
        self._client = client
        self._producer = producer
        self._instructions = instructions
        self._settings = settings or LLMSettings()
        self._turns_max = turns_max
        self._tools: Final[dict[str, AgentTool]] = {}
        for tool in (*tools, final_answer or FinalAnswer()):
            if tool.definition.name in self._tools:
                raise ValueError(f"two tools have the name {tool.definition.name} for the model")
            self._tools[tool.definition.name] = tool

    async def respond(self, task: str, *, cause: Envelope, run_key: str = "", session_id: str = "") -> AgentResponse:
        """Run to the end; return all turns and the final output. Raises what `run` raises."""
        turns = [turn async for turn in self.run(task, cause=cause, run_key=run_key, session_id=session_id)]
        answers = [result for result in turns[-1].tool_results if result.call.name == FINAL_ANSWER and result.error is None]
        return AgentResponse(tuple(turns), answers[0].output if answers else turns[-1].llm_response.text)

    async def run(self, task: str, *, cause: Envelope, run_key: str = "", session_id: str = "") -> AsyncGenerator[AgentTurn, None]:
        """Yield the turns of one run, each when its tools have ended.

        `cause` is the recorded event that begins the work, e.g. a complaint; the run belongs to its subject and trace. `run_key` names
        the run among those of the producer; default: the cause's event_id. A run that is repeated asks the model again, and equal
        proposals are made once. The bindings of tools of `session_id` apply. Raises AgentStoppedError for a run without an answer, and
        what LLMService.complete raises.
        """
        evidence = Citations([reference(cause)] if cause.event_category in _EVIDENCE else [])
        run = AgentRun(
            self._client, self._producer, cause.subject, cause.trace_id, run_key or cause.event_id, session_id, evidence=evidence
        )
        messages: list[LLMMessage] = [SystemMessage(self._instructions)] if self._instructions else []
        messages.append(UserMessage(task))
        causation_id = cause.event_id
        turns: list[AgentTurn] = []
        while len(turns) < self._turns_max:
            request = LLMRequest(tuple(messages), [tool.definition for tool in self._tools.values()], settings=self._settings)
            response = await self._service.complete(request, context=LLMContext(run.subject, run.trace_id, causation_id))
            run.invocation_id = causation_id = response.extras[INVOCATION]["event_id"]
            annotations = {"turn": len(turns) + 1, "invocation_event_id": run.invocation_id}
            if response.finish_reason in ("length", "content_filter", "refusal"):
                # Calls of an answer that was cut may be cut themselves: none is carried out.
                turns.append(AgentTurn(response, (), annotations))
                yield turns[-1]
                raise AgentStoppedError(response.finish_reason, turns)
            results = [await self._call(call, run) for call in response.tool_calls]
            end = _end(response, results)
            turns.append(AgentTurn(response, tuple(results), annotations | ({"end": end} if end else {})))
            yield turns[-1]
            if end:
                return
            messages.append(AssistantMessage(response))
            messages += [message_of(one) for one in results]
            causation_id = next((one.event_ids[-1] for one in reversed(results) if one.event_ids), causation_id)
        raise AgentStoppedError("turns_max", turns)

    async def _call(self, call: LLMToolCall, run: AgentRun) -> ToolExecutionResult:
        tool = self._tools.get(call.name)
        if tool is None:
            return failure(call, ARGS, f"there is no tool {call.name!r}; the tools are {', '.join(self._tools)}")
        try:
            arguments: Any = json.loads(call.arguments or "{}")
        except (ValueError, RecursionError) as error:
            return failure(call, ARGS, f"the arguments are not JSON: {error}")
        if not isinstance(arguments, dict):
            return failure(call, ARGS, "the arguments are not a JSON object")
        try:
            return await tool.run(call, arguments, run)
        except GavelError as error:
            if error.code is not grpc.StatusCode.INVALID_ARGUMENT:
                raise
            return failure(call, ARGS, error.message)


def message_of(result: ToolExecutionResult) -> ToolMessage:
    """Return the message that tells the model the result of a call."""
    return ToolMessage(result.call.call_id, result.call.name, result.output, result.error is not None, result.recorded_output)


def _end(response: LLMResponse, results: Sequence[ToolExecutionResult]) -> str:
    """Return how the turn ends the run; "" if it does not."""
    if any(result.call.name == FINAL_ANSWER and result.error is None for result in results):
        return FINAL_ANSWER
    return "" if response.tool_calls or response.finish_reason == "pause" else "text"
