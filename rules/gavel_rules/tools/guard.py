"""The policy guard: which tools an agent may call (constitution §5.3).

A contract names the effects of its tool. An effect that is not known to stay inside counts as a write to the outside world; a tool with
one is reached only through a proposal, its decision and the execution.
"""

from __future__ import annotations

from typing import Final

from gavel.v1.tool_pb2 import ToolContract
from gavel.v1.tool_service_pb2 import ToolGuard

# Effects inside the agent's own workspace, and processes that its provider lists one by one.
_WORKSPACE_PREFIX: Final = "workspace."
_PROCESS: Final = "process"
_READ: Final = ".read"


def stays_inside(effect: str) -> bool:
    """Return whether an effect is a read, or stays in the agent's workspace."""
    return effect.startswith(_WORKSPACE_PREFIX) or effect.endswith(_READ) or effect == _PROCESS


def guard(contract: ToolContract) -> ToolGuard:
    """Return whether agents may call a tool directly."""
    outside = sorted({effect for effect in contract.side_effects if not stays_inside(effect)})
    if not outside:
        return ToolGuard(agents_may_call=True)
    reason = (
        f"{contract.name} has effects outside of the workspace ({', '.join(outside)}): propose the action, and let the executor of the "
        "approved decision call the tool"
    )
    return ToolGuard(outside_effects=outside, reason=reason)
