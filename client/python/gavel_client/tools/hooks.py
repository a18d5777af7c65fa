"""Hooks around the calls of a runtime (constitution 004 §10)."""

from __future__ import annotations

from gavel_client.tools.invocation import Json, ToolData, ToolFailure, ToolInvocation


class ToolHook:
    """Override what you need; a hook may patch arguments and data, and nothing else.

    The runtime checks patched arguments and data against the contract again. A hook that raises ToolError fails the call with its code. The
    arguments of a call that carries out a decision are the decision's params: a patch of them fails the call.
    """

    async def before_call(self, invocation: ToolInvocation) -> Json | None:
        """Return the arguments to call the tool with; None leaves them as they are."""
        return None

    async def after_result(self, invocation: ToolInvocation, result: ToolData | ToolFailure) -> Json | None:
        """Return the data to answer with; None leaves it as it is. A failure stays a failure, whatever the hook returns."""
        return None
