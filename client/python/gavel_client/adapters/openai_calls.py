"""Calls of tools in the OpenAI Agents SDK: their arguments and their turns.

The turn of a call is the number of requests when it is first asked about: runs of agents as tools count for the same run, so the number
changes while a call waits. An equal call of a later answer has the turn of one that still waits, so that it waits for the same decision.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import MutableMapping
from typing import Any, Final

from gavel_client.adapters.extras import extra
from gavel_client.gate import Call, Pending, Refused

with extra("openai-agents"):
    from agents import RunContextWrapper

Run = RunContextWrapper[Any]
# The key in a run's context under which the turns of its calls are kept.
TURNS: Final = "gavel_turns"
# Turns that the process remembers for runs with another context.
TURNS_MAX: Final = 10_000


class Turns:
    """The turns of the calls of one tool. They are kept in the run's context if that is a mapping, else in the process."""

    def __init__(self, tool: str) -> None:
        self._tool: Final = tool
        self._turns: Final[dict[str, str]] = {}

    def call(self, run: Run, task: str, arguments: dict[str, Any], call_id: str) -> Call:
        """Return a call with its turn."""
        turns = self._turns_of(run)
        waiting = turns.get(self._key(task, arguments))
        return Call(self._tool, arguments, task, turns.setdefault(f"{task}/{call_id}", waiting or str(run.usage.requests)))

    def note(self, run: Run, call: Call, answer: object) -> None:
        """Note from the gate's answer whether a call waits. A refusal without a decision leaves that open."""
        turns, key = self._turns_of(run), self._key(call.task, dict(call.arguments))
        if isinstance(answer, Pending):
            turns[key] = call.turn
        elif turns.get(key) == call.turn and not (isinstance(answer, Refused) and answer.decision is None):
            del turns[key]
        while len(self._turns) > TURNS_MAX:
            self._turns.pop(next(iter(self._turns)))

    def _turns_of(self, run: Run) -> MutableMapping[str, str]:
        if isinstance(run.context, MutableMapping):
            turns: MutableMapping[str, str] = run.context.setdefault(TURNS, {})
            return turns
        return self._turns

    def _key(self, task: str, arguments: dict[str, Any]) -> str:
        # Arguments are what a model has written: `content_hash` refuses some of them.
        return hashlib.sha256(json.dumps([task, self._tool, arguments], sort_keys=True).encode()).hexdigest()


def arguments_text(text: str) -> str:
    """Return the text of a call's arguments, `{}` if the model left it blank."""
    return text if text.strip() else "{}"


def parse_arguments(text: str) -> dict[str, Any]:
    """Return the arguments in a call. Raises ValueError."""
    arguments = json.loads(text)
    if not isinstance(arguments, dict):
        raise ValueError("the arguments of the call are not a JSON object")
    return arguments
