"""The gate for tools of agent frameworks: it proposes a call, begins its execution, and reports how the tool ended.

The adapters in `gavel_client.adapters` put it into frameworks.
"""

from gavel_client.gate.actions import Action, Call, ToolActions
from gavel_client.gate.allowed import Allowed, SyncAllowed
from gavel_client.gate.answers import Finished, Pending, Refused
from gavel_client.gate.gate import Answer, Gate, SyncAnswer, SyncGate

__all__ = [
    "Action",
    "Allowed",
    "Answer",
    "Call",
    "Finished",
    "Gate",
    "Pending",
    "Refused",
    "SyncAllowed",
    "SyncAnswer",
    "SyncGate",
    "ToolActions",
]
