"""A process that forks runtimes of tools and lets each be killed at one point of its work. It imports everything once.

Arguments: the server's address, the bus, a directory. Each line of standard input is "POINT DECISION": the number of the line of code at
whose execution the runtime is killed (0: never), and the ExecutionStarted of an attempt in hexadecimal. The runtime calls parcel.send for
the attempt, then parcel.note, which agents may call. Both tools append a line to the file `effects`. The answer is a line "POINT STATUS
LINES": the exit status of os.waitpid, and the lines that the runtime executed.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import fsspec.implementations.local  # noqa: F401  # for the forks
import jsonschema_rs  # noqa: F401  # for the forks
import rfc8785  # noqa: F401  # for the forks
from gavel.v1.execution_service_pb2 import ExecutionStarted
from gavel_client import GavelClient
from gavel_client.evidence import EvidenceStore
from gavel_client.handlers import ExecutionContext
from gavel_client.tools import FunctionProvider, ToolContext, ToolInvocation, ToolRuntime
from gavel_client.values import from_struct

RUNTIME = "tools-1"
TIMEOUT_MS = 1_000
# The code whose lines are points.
TRACED = ("gavel_client/tools/", "gavel_client/evidence/", "runtime_process.py")


class Lines:
    """Counts the lines that this process executes, and kills it at one of them."""

    def __init__(self, point: int) -> None:
        self.count = 0
        self._point = point

    def trace(self, frame: FrameType, event: str, _: object) -> Any:
        """Trace the code of the runtime."""
        if not any(part in frame.f_code.co_filename for part in TRACED):
            return None
        if event == "line":
            self.count += 1
            if self.count == self._point:
                os.kill(os.getpid(), signal.SIGKILL)
        return self.trace


async def call_tools(address: str, bus: str, directory: Path, started: ExecutionStarted) -> None:
    """Call both tools."""

    def act(invocation: ToolInvocation) -> dict[str, object]:
        descriptor = os.open(directory / "effects", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(descriptor, f"{invocation.canonical_tool} {invocation.execution_id}\n".encode())
        os.close(descriptor)
        return {"weight": invocation.arguments["weight"]}

    provider = FunctionProvider("parcels", {"parcel.send": act, "parcel.note": act})
    decision = started.decision
    execution = ExecutionContext(decision, from_struct(decision.decision.params), started.attempt, started.execution_id)
    async with GavelClient(address, bus=bus) as client:
        store = EvidenceStore(str(directory / "evidence"))
        runtime = ToolRuntime(client, RUNTIME, providers=[provider], evidence=store, lease_margin_ms=500)
        assert (await runtime.execute("parcel.send", execution, timeout_ms=TIMEOUT_MS)).ok
        context = ToolContext(decision.subject, trace_id=decision.trace_id, timeout_ms=TIMEOUT_MS)
        assert (await runtime.invoke("parcel.note", {"weight": 1}, context)).ok
        await runtime.close()


def run(point: int, started: ExecutionStarted, lines: int) -> None:
    """Be a runtime: call the tools, write the number of lines to a descriptor, and end."""
    counter = Lines(point)
    threading.settrace(counter.trace)
    sys.settrace(counter.trace)
    address, bus, directory = sys.argv[1:]
    asyncio.run(call_tools(address, bus, Path(directory), started))
    sys.settrace(None)
    os.write(lines, str(counter.count).encode())


def main() -> None:
    """Fork a runtime for each line of standard input."""
    for line in sys.stdin:
        point, decision = line.split()
        read_end, write_end = os.pipe()
        process_id = os.fork()
        if process_id == 0:
            try:
                run(int(point), ExecutionStarted.FromString(bytes.fromhex(decision)), write_end)
            except BaseException:  # noqa: BLE001  # a fork must not return into this loop
                sys.excepthook(*sys.exc_info())
                os._exit(1)
            os._exit(0)
        os.close(write_end)
        _, status = os.waitpid(process_id, 0)
        with os.fdopen(read_end) as lines:
            print(point, status, lines.read() or 0, flush=True)


if __name__ == "__main__":
    main()
