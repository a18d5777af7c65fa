"""The failures of tools, by code. A code means the same in every provider of a contract."""

from __future__ import annotations

from typing import Final

from gavel_client.rpc.errors import GavelClientError

PATH: Final = "E_PATH"  # no such file, or not a path of the workspace
CONFLICT: Final = "E_CONFLICT"  # the file is not as the call expects it
QUOTA: Final = "E_QUOTA"  # too large, or no room
PERMISSION: Final = "E_PERMISSION"  # the provider may not, or must not, do this
TIMEOUT: Final = "E_TIMEOUT"  # the time of the call is over
TOOL: Final = "E_TOOL"  # the tool failed for another reason
ARGS: Final = "E_ARGS"  # the arguments are not valid
LOST: Final = "E_LOST"  # the runtime ended before the tool did, or its result could not be recorded

# After these, whether the call took effect is unknown.
UNKNOWN_EFFECT: Final = frozenset({TIMEOUT, LOST, TOOL})

CODES: Final = frozenset({PATH, CONFLICT, QUOTA, PERMISSION, TIMEOUT, TOOL, ARGS, LOST})


class ToolError(GavelClientError):
    """The failure of a tool: its code, a message for people and models without secrets, and details."""

    def __init__(self, code: str, message: str, details: dict[str, object] | None = None) -> None:
        super().__init__(f"{code}: {message}")
        self.code: Final = code
        self.message: Final = message
        self.details: Final = details or {}
