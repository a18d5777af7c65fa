"""A process that forks writers of a file and lets each be killed at one line of the workspace's code.

The argument is a directory, and each line of standard input a call, as JSON: [TOOL, ARGUMENTS]. For the points 1, 2, … a writer makes the
call and is killed with SIGKILL at that line, until a point is beyond the end of the call. Before each call the file `a.txt` has the content
BEFORE, and no file `new.txt` exists. The answer is a line of JSON: the contents of both files after each point, null for a file that does
not exist, and the exit status of the last writer.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any, Final

from gavel_client.tools.providers.workspace import Workspace

BEFORE: Final = "one two " * 4_000
# The code whose lines are points.
TRACED: Final = "gavel_client/tools/providers/"


class Killer:
    """Kills this process at one of the lines that it executes."""

    def __init__(self, point: int) -> None:
        self._left = point

    def trace(self, frame: FrameType, event: str, _: object) -> Any:
        """Trace the code of the workspace."""
        if TRACED not in frame.f_code.co_filename:
            return None
        if event == "line":
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return self.trace


def call(directory: Path, tool: str, arguments: dict[str, Any], point: int) -> int:
    """Make the call in a fork that is killed at a point; return its status of os.waitpid."""
    process_id = os.fork()
    if process_id == 0:
        try:
            workspace = Workspace(directory)
            sys.settrace(Killer(point).trace)
            workspace.tools[tool](arguments)
            sys.settrace(None)
        except BaseException:  # noqa: BLE001  # a fork must not return into the loop of its parent
            sys.excepthook(*sys.exc_info())
            os._exit(1)
        os._exit(0)
    return os.waitpid(process_id, 0)[1]


def main() -> None:
    """Make each call until it is not killed any more."""
    directory = Path(sys.argv[1])
    files = directory / "a.txt", directory / "new.txt"
    for line in sys.stdin:
        tool, arguments = json.loads(line)
        contents: list[list[str | None]] = []
        status = int(signal.SIGKILL)
        while status == signal.SIGKILL:
            for leftover in directory.iterdir():
                leftover.unlink()
            files[0].write_text(BEFORE)
            status = call(directory, tool, arguments, len(contents) + 1)
            contents.append([file.read_text() if file.exists() else None for file in files])
        print(json.dumps([contents, status]), flush=True)


if __name__ == "__main__":
    main()
