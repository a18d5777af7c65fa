"""A process of `program.py`, for the process of the tests."""

from __future__ import annotations

import asyncio
import json
import subprocess
from pathlib import Path
from typing import Any

from gavel_client import HandlerError

from tests.e2e.adapters.agents.agent import Depot
from tests.e2e.adapters.crewai.environment import crewai_environment, crewai_python
from tests.support.paths import ROOT


class CrewProcess:
    """Runs one request at a time."""

    def __init__(self, home: Path) -> None:
        self._log = home / "crewai.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [crewai_python(), "-m", "tests.e2e.adapters.crewai.program"],
                cwd=ROOT,
                env=crewai_environment(home),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    async def run(self, request: dict[str, Any], depot: Depot | None = None) -> Any:
        """Return the result of a request, whose tools act on `depot`."""
        loop = asyncio.get_running_loop()
        return await asyncio.to_thread(self._run, request, depot, loop)

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()

    def _run(self, request: dict[str, Any], depot: Depot | None, loop: asyncio.AbstractEventLoop) -> Any:
        self._send(request)
        assert self._process.stdout is not None
        for line in self._process.stdout:
            message = json.loads(line)
            if "act" not in message:
                assert "error" not in message, message["error"]
                return message["result"]
            assert depot is not None
            asyncio.run_coroutine_threadsafe(self._act(message, depot), loop)
        raise AssertionError(f"the process of CrewAI has ended: {self._log.read_text()}")

    async def _act(self, message: dict[str, Any], depot: Depot) -> None:
        try:
            self._send({"act": message["act"], "output": await depot.act(message["parcel"])})
        except HandlerError as error:
            self._send({"act": message["act"], "problem": ["HandlerError", error.code, error.message]})
        except Exception as error:  # noqa: BLE001  # the tool raises it
            self._send({"act": message["act"], "problem": [type(error).__name__, *error.args]})

    def _send(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        print(json.dumps(message), file=self._process.stdin, flush=True)
