"""The process that runs crews, with the Python that has CrewAI: `python -m tests.e2e.adapters.crewai.program`.

Each line of its input and output is JSON. A request with "calls" runs a crew, one with "examples" the documentation's; each is answered by
a line with "result" or "error". A call of a tool writes a line with "act" and "parcel", and waits for a line with the same "act".
"""

from __future__ import annotations

import asyncio
import builtins
import json
import os
import sys
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from itertools import count
from typing import Any

from crewai import Agent, Crew, Task
from crewai.hooks import HookAborted, register_after_tool_call_hook
from crewai.llms.base_llm import BaseLLM
from crewai.tools import BaseTool, tool
from crewai.tools.tool_failure import ToolFailure
from gavel_client import HandlerError, SyncGavelClient
from gavel_client.adapters.crewai import gated_tool, stop_for_review
from gavel_client.gate import Action, SyncGate, ToolActions
from pydantic import BaseModel, Field

Message = dict[str, Any]
DAY_MS = 24 * 60 * 60 * 1000


class ScriptedModel(BaseLLM):
    """A model that makes calls once and then says that it is done; `texts` has what it got for the calls.

    A model without `native` calls writes them as text, one in an answer.
    """

    name: str
    calls: list[dict[str, Any]]
    native: bool = True
    texts: list[str] = Field(default_factory=list)

    def call(self, messages: Any, *arguments: Any, **options: Any) -> Any:
        """Return the calls to the first message, and the end to their outputs."""
        if not self.native:
            return self._write(messages)
        self.texts = [message["content"] for message in messages if message["role"] == "tool"]
        if self.texts:
            return "done"
        return [
            {"id": f"call-{number}", "type": "function", "function": {"name": self.name, "arguments": json.dumps(one)}}
            for number, one in enumerate(self.calls)
        ]

    def _write(self, messages: Any) -> str:
        written = [
            message["content"] for message in messages if "Action Input:" in str(message["content"]) and message["role"] == "assistant"
        ]
        self.texts = [text.partition("Observation:")[2].strip() for text in written]
        if len(written) == len(self.calls):
            return "Thought: I know the answer\nFinal Answer: done"
        return f"Thought: I call it\nAction: {self.name}\nAction Input: {json.dumps(self.calls[len(written)])}"

    def supports_function_calling(self) -> bool:
        """Report whether calls are native."""
        return self.native

    def get_context_window_size(self) -> int:
        """Return a size in which every output has room."""
        return 100_000


class Receipt(BaseModel):
    """The output of a tool that returns a model of pydantic."""

    text: str


# What a tool returns, by the name in a request.
OUTPUTS: dict[str, Callable[[str], Any]] = {
    "text": str,
    "model": lambda text: Receipt(text=text),
    "failure": lambda text: ToolFailure(message=text),
}


class Crews:
    """Runs the requests. `output` is the stream of messages."""

    def __init__(self, output: Any) -> None:
        self._output = output
        self._lock = threading.Lock()
        self._numbers = count()
        self._acts: dict[int, Future[str]] = {}

    def take(self, message: Message) -> None:
        """Begin a request, or end a call of a tool."""
        if "act" in message:
            _finish(self._acts.pop(message["act"]), message)
        else:
            threading.Thread(target=self._answer, args=[message], daemon=True).start()

    def _answer(self, request: Message) -> None:
        with SyncGavelClient(request["server"], bus=request["bus"]) as client:
            try:
                self._send({"result": run_examples(request, client) if "examples" in request else self._run(request, client)})
            except Exception:  # noqa: BLE001  # the test reads it
                self._send({"error": traceback.format_exc()})

    def _send(self, message: Message) -> None:
        with self._lock:
            print(json.dumps(message), file=self._output, flush=True)

    def _act(self, parcel: str) -> str:
        number, future = next(self._numbers), Future[str]()
        self._acts[number] = future
        self._send({"act": number, "parcel": parcel})
        return future.result()

    def _run(self, request: Message, client: SyncGavelClient) -> Message:
        """Run a new crew; return what its model got, and whether the crew has stopped for a review."""
        model = ScriptedModel(model="scripted", name=request["tool"], calls=request["calls"], native=request["native"])
        gate = SyncGate(client, actions(request), **request["gate"])

        @tool(str(request["tool"]))
        def act(parcel: str, weight: float) -> Any:
            """Act on a parcel."""
            return OUTPUTS[request["output"]](self._act(parcel))

        gated = gated_tool(act, gate, task=lambda: str(request["task"]))
        try:
            if request["way"] == "async":
                asyncio.run(crew(model, gated).akickoff())
            elif request["way"] == "delegated":
                delegating_crew(model, gated).kickoff()
            else:
                crew(model, gated).kickoff()
        except HookAborted as stop:
            return {"texts": [stop.reason], "paused": True}
        return {"texts": model.texts, "paused": False}


def actions(request: Message) -> ToolActions:
    """Return the table of the tools."""
    table = ToolActions(reads=[request["read"]])

    @table.tool(request["write"])
    def send(arguments: Any) -> Action:
        return Action(request["action"], f"parcel/{arguments['parcel']}", {"weight": arguments["weight"]}, max_fact_age_ms=DAY_MS)

    return table


def crew(model: BaseLLM, *tools: BaseTool) -> Crew:
    """Return a crew of one agent with one task."""
    agent = Agent(role="sender", goal="send parcels", backstory="a depot", llm=model, tools=list(tools))
    return Crew(agents=[agent], tasks=[Task(description="send it", expected_output="done", agent=agent)], cache=True, tracing=False)


def delegating_crew(model: BaseLLM, *tools: BaseTool) -> Crew:
    """Return a crew whose boss hands the task on to the agent with the tools."""
    worker = Agent(role="sender", goal="send parcels", backstory="a depot", llm=model, tools=list(tools))
    order = {"task": "send it", "context": "a parcel", "coworker": "sender"}
    boss_model = ScriptedModel(model="scripted", name="delegate_work_to_coworker", calls=[order])
    boss = Agent(role="boss", goal="have parcels sent", backstory="a depot", llm=boss_model, allow_delegation=True)
    return Crew(agents=[boss, worker], tasks=[Task(description="send it", expected_output="done", agent=boss)], tracing=False)


def run_examples(request: Message, client: SyncGavelClient) -> str:
    """Execute blocks of the documentation; return the output of its crew."""
    names: dict[str, Any] = {}
    for block in request["examples"]:
        exec(block, names)  # noqa: S102  # the page's own examples
    gate = SyncGate(client, names["actions"], agent="support-agent", executor="support-tools")
    return str(names["ask_crew"](gate, ScriptedModel(model="scripted", name="refund", calls=request["refunds"]), "ticket-17"))


def _finish(future: Future[str], message: Message) -> None:
    if "output" in message:
        future.set_result(message["output"])
    else:
        kind, *arguments = message["problem"]
        future.set_exception(getattr(builtins, kind, HandlerError)(*arguments))


def _forbid_network(event: str, arguments: tuple[Any, ...]) -> None:
    """End the process if a library calls a machine other than this one."""
    host = arguments[1][0] if event == "socket.connect" else arguments[0] if event == "socket.getaddrinfo" else None
    if isinstance(host, str | bytes) and str(host) not in ("127.0.0.1", "localhost", "::1"):
        print(f"{event} {host!r}: the tests have no network", file=sys.stderr, flush=True)
        os._exit(1)


def main() -> None:
    """Take messages until the input ends."""
    output = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # CrewAI prints
    sys.addaudithook(_forbid_network)
    register_after_tool_call_hook(stop_for_review)
    crews = Crews(output)
    for line in sys.stdin:
        crews.take(json.loads(line))


if __name__ == "__main__":
    main()
