"""Open calls: the calls with effects that have not been answered for good, in files that outlive the proxy.

A client may send the same call again because it wants it twice, or because the first answer never came, for example after the proxy was
killed or while a person decides. The proxy tells them apart by a *turn*. A call without an idempotency key gets a new turn, unless the
same call is open: then it gets the turn of that one, so that it leads to the same proposal. The turn is on the disk before the proposal is
sent, and is forgotten when the call has its final answer.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gavel_client.directories import make_directory
from gavel_client.envelopes import content_hash, new_event_id

# Open calls of one agent, so that no agent can fill the disk or hold up another one.
OPEN_CALLS_MAX: Final = 10_000


@dataclass(frozen=True)
class Turn:
    """The turn of an open call, in the task (the trace) in which it was first made."""

    task: str
    turn: str


class OpenCalls:
    """The open calls of a proxy in a folder; proxies that share it share their open calls."""

    def __init__(self, folder: Path) -> None:
        self._folder: Final = folder

    def open(self, agent: str, tool: str, arguments: Mapping[str, Any], task: str) -> Turn:
        """Open a call in `task` and return its turn. If an equal call is open, return the turn of that one.

        Raises OSError, EDQUOT if the agent has OPEN_CALLS_MAX of them, and ValueError.
        """
        path = self._path(agent, tool, arguments)
        while True:
            if (found := self.find(agent, tool, arguments)) is not None:
                return found
            turn = Turn(task, new_event_id())
            with suppress(FileExistsError):
                self._write(path, turn)
                return turn

    def find(self, agent: str, tool: str, arguments: Mapping[str, Any]) -> Turn | None:
        """Return the turn of an open call; None if no equal call is open. Raises OSError."""
        with suppress(FileNotFoundError):
            return Turn(**json.loads(self._path(agent, tool, arguments).read_text(encoding="utf-8")))
        return None

    def close(self, agent: str, tool: str, arguments: Mapping[str, Any], turn: Turn) -> None:
        """Forget a call that has its final answer, if its turn is `turn`. Raises OSError."""
        if self.find(agent, tool, arguments) == turn:
            self._path(agent, tool, arguments).unlink(missing_ok=True)

    def _path(self, agent: str, tool: str, arguments: Mapping[str, Any]) -> Path:
        name = content_hash([agent, tool, dict(arguments)]).removeprefix("sha256:")
        return agent_folder(self._folder, agent) / f"{name}.json"

    def _write(self, path: Path, turn: Turn) -> None:
        """Put a whole file in place, durably. Raises FileExistsError if there is one."""
        folder = path.parent
        make_directory(folder)
        if sum(1 for _ in folder.iterdir()) >= OPEN_CALLS_MAX:
            raise OSError(errno.EDQUOT, f"the agent has {OPEN_CALLS_MAX} open calls; persons have to decide about them", str(folder))
        temporary = path.with_name(f"{path.name}.{os.urandom(6).hex()}.tmp")
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                json.dump({"task": turn.task, "turn": turn.turn}, file)
                file.flush()
                os.fsync(file.fileno())
            os.link(temporary, path)
        finally:
            with suppress(FileNotFoundError):
                temporary.unlink()
        sync_folder(folder)


def agent_folder(root: Path, agent: str) -> Path:
    """Return the folder of an agent's files below `root`."""
    return root / content_hash(agent).removeprefix("sha256:")


def sync_folder(path: Path) -> None:
    """Write the entries of a folder to disk. Raises OSError."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
