"""Processes of command tools: a program in a directory of the workspace, with a time, a bounded output and a group of its own.

The whole process group is killed at the timeout, and after the program has ended, so that no child outlives the call. A process that leaves
its group (setsid) is not reached.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final

from gavel_client.tools.errors import PERMISSION, TOOL, ToolError

OUTPUT_BYTES_MAX: Final = 1024 * 1024
_CHUNK_BYTES: Final = 64 * 1024
_DRAIN_SECONDS: Final = 0.5
# As shells report the end of a process by a signal.
_SIGNAL_OFFSET: Final = 128

# Takes "stdout" or "stderr", and a part of the text.
Emit = Callable[[str, str], None]


class Output:
    """The output of a process on one stream, up to a limit."""

    def __init__(self, name: str, bytes_max: int, emit: Emit) -> None:
        self._name: Final = name
        self._bytes_max: Final = bytes_max
        self._emit: Final = emit
        self._content = bytearray()
        self.truncated = False
        # asyncio's own pipes would make the end of the process wait for that of every child that holds them.
        self._read_end, self.write_end = os.pipe()

    async def read(self) -> None:
        """Read until every process has closed the stream; beyond the limit nothing is kept."""
        stream = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        pipe = os.fdopen(self._read_end, "rb", buffering=0)
        transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stream), pipe)
        try:
            while chunk := await stream.read(_CHUNK_BYTES):
                room = self._bytes_max - len(self._content)
                part = chunk[:room]
                self.truncated = self.truncated or len(part) < len(chunk)
                if part:
                    self._content += part
                    self._emit(self._name, part.decode(errors="replace"))
        finally:
            transport.close()

    @property
    def text(self) -> str:
        """The text; bytes that are not UTF-8 are replaced."""
        return self._content.decode(errors="replace")


async def run_process(
    program: Sequence[str],
    directory: int,
    *,
    environment: Mapping[str, str],
    timeout_ms: int,
    output_bytes_max: int,
    emit: Emit,
) -> dict[str, object]:
    """Run a program in the directory of a file descriptor; return exitCode, stdout, stderr, truncated and timeoutHit. Raises ToolError.

    If a signal ended the process, exitCode is 128 plus the number of the signal.
    """
    outputs = [Output(name, output_bytes_max, emit) for name in ("stdout", "stderr")]
    reading = asyncio.gather(*(output.read() for output in outputs))
    try:
        try:
            process = await _start(program, directory, environment, *(output.write_end for output in outputs))
        finally:
            for output in outputs:
                os.close(output.write_end)
    except BaseException:
        await reading
        raise
    timeout_hit = False
    try:
        await asyncio.wait_for(asyncio.shield(process.wait()), timeout_ms / 1000)
    except asyncio.TimeoutError:
        timeout_hit = True
    finally:
        with suppress(ProcessLookupError):  # no process is left
            os.killpg(process.pid, signal.SIGKILL)
        exit_code = await process.wait()
        # A process that left the group may hold the output open.
        _, unfinished = await asyncio.wait({reading}, timeout=_DRAIN_SECONDS)
        reading.cancel()
    return {
        "exitCode": exit_code if exit_code >= 0 else _SIGNAL_OFFSET - exit_code,
        "stdout": outputs[0].text,
        "stderr": outputs[1].text,
        "truncated": bool(unfinished) or any(output.truncated for output in outputs),
        "timeoutHit": timeout_hit,
    }


async def _start(
    program: Sequence[str], directory: int, environment: Mapping[str, str], stdout: int, stderr: int
) -> asyncio.subprocess.Process:
    """Start a program in a group of its own. Raises ToolError."""
    try:
        return await asyncio.create_subprocess_exec(
            *program,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            # The directory cannot be exchanged between its check and its use.
            cwd=f"/proc/self/fd/{directory}",
            env=dict(environment),
            start_new_session=True,
        )
    except FileNotFoundError:
        raise ToolError(TOOL, "the program of the command does not exist") from None
    except PermissionError:
        raise ToolError(PERMISSION, "the program of the command is not executable for the runtime's user") from None
    except (OSError, ValueError) as error:
        raise ToolError(TOOL, f"the program of the command cannot be run: {type(error).__name__}") from None
