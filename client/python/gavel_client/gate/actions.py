"""The action that each tool of an agent proposes, by the tool's name.

A tool that is in no table may not run: an agent framework must not gain an effect because somebody has added a tool to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from gavel.v1.common_pb2 import EventReference

from gavel_client.envelopes import content_hash

MAX_FACT_AGE_MS_DEFAULT: Final = 60 * 60 * 1000
# The contract's limit on trace_id.
TRACE_ID_LENGTH_MAX: Final = 128


@dataclass(frozen=True)
class Call:
    """One call of a tool, as a framework is about to make it.

    `task` names the conversation or the piece of work, for instance a thread. It must be the same when the work is repeated or resumed, and
    different for other work. `turn` names the model's answer that contains the call. Calls of one task and turn that propose the
    same action are one call. So are all calls with one `idempotency_key`, whatever their task; the gate raises RunKeyError if they propose
    different actions.
    """

    tool: str
    arguments: Mapping[str, Any]
    task: str
    turn: str = ""
    idempotency_key: str = ""

    def __post_init__(self) -> None:
        """Check the arguments. Raises ValueError."""
        if not self.task:
            raise ValueError(f"the call of {self.tool} has an empty task; name the conversation or the piece of work that it belongs to")


@dataclass(frozen=True)
class Action:
    """The action that a call proposes; see `proposal_envelope`.

    `params` must contain everything that the effect depends on, since an approval covers nothing else. Without `based_on_events` the
    proposal cites what the projection has of `subject`.
    """

    action_type: str
    subject: str
    params: Mapping[str, Any]
    max_fact_age_ms: int = MAX_FACT_AGE_MS_DEFAULT
    based_on_events: Sequence[EventReference] = ()
    cost: float = 0.0
    risk: float = 0.0
    confidence: float = 0.0


ActionOf = Callable[[Mapping[str, Any]], Action]
_ActionOf = TypeVar("_ActionOf", bound=ActionOf)


class ToolActions:
    """The functions that return the action of a call from its arguments. `reads` names the tools that have no effect and run freely."""

    def __init__(self, *, reads: Iterable[str] = ()) -> None:
        self._reads = frozenset(reads)
        self._functions: dict[str, ActionOf] = {}

    def tool(self, name: str) -> Callable[[_ActionOf], _ActionOf]:
        """Register the decorated function for the tool `name`. Raises ValueError if the tool has one or is one of `reads`."""

        def register(function: _ActionOf) -> _ActionOf:
            if name in self._functions or name in self._reads:
                raise ValueError(f"the tool {name} is registered already; register a tool once, as a read or with its action")
            self._functions[name] = function
            return function

        return register

    def reads(self, tool: str) -> bool:
        """Report whether a tool has no effect."""
        return tool in self._reads

    def __contains__(self, tool: str) -> bool:
        return tool in self._functions

    def action(self, call: Call) -> Action:
        """Return the action of a call. Raises KeyError for a tool without one, and what the tool's function raises.

        The function gets a copy of the arguments: it cannot change those with which the tool runs.
        """
        return self._functions[call.tool](deepcopy(call.arguments))


def trace_id(task: str) -> str:
    """Return the trace of a task: its name if the contract allows that, otherwise its hash."""
    is_allowed = task.isascii() and task.isprintable() and len(task) <= TRACE_ID_LENGTH_MAX
    return task if is_allowed else content_hash(task)
