"""The caller of a request: the agent, its trace, and what it says about repetitions.

A client may say more in the `_meta` of a call, under keys with the prefix `dev.gavel/`:

- `dev.gavel/idempotency-key`: calls with the same key are one call, for ever;
- `dev.gavel/turn`: the model's answer that has the call; equal calls of one turn are one call;
- `dev.gavel/trace-id`: the trace. Without it the trace of a W3C `traceparent` is used.

A caller that names no trace has one for each subject of its session. A review holds the effects of its trace, so it holds those on its
subject and no others.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.context import ServerRequestContext

from gavel_client.gate.actions import trace_id

IDEMPOTENCY_KEY: Final = "dev.gavel/idempotency-key"
TURN: Final = "dev.gavel/turn"
TRACE_ID: Final = "dev.gavel/trace-id"
TASKS_EXTENSION: Final = "io.modelcontextprotocol/tasks"

_TEXT: Final = re.compile(r"[!-~]{1,128}")
_TRACEPARENT: Final = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")
_SESSION_HEADER: Final = "mcp-session-id"


class CallerError(ValueError):
    """The `_meta` of a request is unusable; the text says how."""


@dataclass(frozen=True)
class Caller:
    """The caller of a request: an agent, its session and its trace."""

    agent: str
    """The agent's id in the log."""
    session: str
    """The session that the calls belong to."""
    trace_id: str = ""
    """The trace that the caller names; "" if it names none."""
    idempotency_key: str = ""
    turn: str = ""
    has_tasks: bool = False
    """Whether the client has declared the Tasks extension."""

    def trace_of(self, subject: str) -> str:
        """Return the trace of a call on a subject. Without a named trace it is the agent's own, whatever session id the client sends."""
        return self.trace_id or trace_id(f"{self.agent}/{self.session}/{subject}")


def caller_of(context: ServerRequestContext[Any, Any], agent: str, process: str) -> Caller:
    """Return the caller of a request. `agent` is that of a connection without a token; `process` names this run of the proxy.

    Raises CallerError.
    """
    meta: Mapping[str, Any] = context.meta or {}
    capabilities = context.session.client_capabilities
    extensions = (capabilities.extensions if capabilities is not None else None) or {}
    user = context.request.scope.get("user") if context.request is not None else None
    if isinstance(user, AuthenticatedUser):
        agent = user.access_token.client_id
    return Caller(
        agent=agent,
        session=_session(context) or f"mcp-{process}-{agent}"[:128],
        trace_id=_text(meta, TRACE_ID) or _traced(meta),
        idempotency_key=_text(meta, IDEMPOTENCY_KEY),
        turn=_text(meta, TURN),
        has_tasks=TASKS_EXTENSION in extensions,
    )


def _text(meta: Mapping[str, Any], key: str) -> str:
    value = meta.get(key, "")
    if value and not (isinstance(value, str) and _TEXT.fullmatch(value)):
        raise CallerError(f"_meta has an unusable {key}: it must be 1 to 128 printable ASCII characters without spaces")
    return str(value)


def _traced(meta: Mapping[str, Any]) -> str:
    parent = meta.get("traceparent")
    match = _TRACEPARENT.fullmatch(parent) if isinstance(parent, str) else None
    return match[1] if match else ""


def _session(context: ServerRequestContext[Any, Any]) -> str:
    session = context.request.headers.get(_SESSION_HEADER, "") if context.request is not None else ""
    return f"mcp-{session}" if _TEXT.fullmatch(session) and len(session) <= 120 else ""
