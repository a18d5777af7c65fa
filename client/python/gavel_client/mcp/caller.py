"""The caller of a request: the agent, its trace, and what it says about repetitions.

A client may say more in the `_meta` of a call, under keys with the prefix `dev.gavel/`:

- `dev.gavel/idempotency-key`: calls with the same key are one call, for ever;
- `dev.gavel/turn`: the model's answer that has the call; equal calls of one turn are one call;
- `dev.gavel/trace-id`: the trace. Without it the trace of a W3C `traceparent` is used, else that of the session.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.context import ServerRequestContext

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
    """Who calls, in which trace."""

    agent: str
    """The agent's id in the log."""
    trace_id: str
    idempotency_key: str = ""
    turn: str = ""
    has_tasks: bool = False
    """Whether the client has declared the Tasks extension."""


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
        trace_id=_text(meta, TRACE_ID) or _traced(meta) or _session(context) or f"mcp-{process}-{agent}"[:128],
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
    found = _TRACEPARENT.fullmatch(parent) if isinstance(parent, str) else None
    return found[1] if found else ""


def _session(context: ServerRequestContext[Any, Any]) -> str:
    session = context.request.headers.get(_SESSION_HEADER, "") if context.request is not None else ""
    return f"mcp-{session}" if _TEXT.fullmatch(session) and len(session) <= 120 else ""
