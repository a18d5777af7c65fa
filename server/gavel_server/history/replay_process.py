"""Replays and simulations for callers of a server, each in a child process (`replay_worker`, ADR 0068).

In the server's own process a replay would take turns with decisions, and the memory of its state would stay fragmented after it.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, closing, suppress
from typing import Final

from gavel.v1 import decision_pb2, error_pb2
from gavel.v1.decision_pb2 import Engine
from gavel.v1.replay_service_pb2 import Divergence, VerifyReplayResponse
from gavel.v1.rule_set_service_pb2 import SimulateRuleSetResponse
from gavel_rules.language.rule_set import CompiledRuleSet
from gavel_rules.replay import DamagedError, DivergedError, VersionNotImplementedError

from gavel_server.errors import GavelServerError, ServiceError
from gavel_server.fairness.work_slots import REPLAY_RETRY_AFTER_MS
from gavel_server.history.replay import ReplayRangeError, verdict_of
from gavel_server.history.replay_worker import HEADER, MessageKind
from gavel_server.history.snapshot_files import SnapshotFiles
from gavel_server.log import EventLog, LogCorruptError, LogUnavailableError
from gavel_server.process.children import log_reader_environment

_COMMAND: Final = (sys.executable, "-P", "-m", "gavel_server.history.replay_worker")


class ReplayDiedError(GavelServerError):
    """The process of a replay failed. What it printed is in the server's standard error."""


class ReplayProcesses:
    """Replays logs of the store at a URL."""

    def __init__(self, store_url: str, archive: str = "") -> None:
        """`archive` is where the logs' old events are; "": in the logs."""
        self._store_url = store_url
        self._archive = archive

    async def verify(
        self,
        log: EventLog,
        *,
        engine: Engine.ValueType = decision_pb2.ENGINE_UNSPECIFIED,
        from_sequence_number: int = 0,
        to_sequence_number: int = 0,
        snapshots: SnapshotFiles | None = None,
    ) -> AsyncGenerator[VerifyReplayResponse, None]:
        """Replay the log of a bus as `replay.verify` does.

        Raises ReplayRangeError, LogUnavailableError, ReplayDiedError, and ServiceError QUEUE_FULL if the machine lacks what it needs.
        """
        data = "" if snapshots is None else str(snapshots.data)
        order = {"engine": engine, "from": from_sequence_number, "to": to_sequence_number, "data": data, "document": ""}
        try:
            async with aclosing(self._run(log.bus, order)) as responses:
                async for response in responses:
                    yield VerifyReplayResponse.FromString(response)
        except LogCorruptError as error:  # found when the process opened the log
            yield VerifyReplayResponse(verdict=verdict_of(error))

    async def impact(
        self, log: EventLog, candidate: CompiledRuleSet, *, from_sequence_number: int = 0, to_sequence_number: int = 0
    ) -> AsyncGenerator[SimulateRuleSetResponse, None]:
        """Decide the proposals of a bus under a candidate as `replay.impact` does. Raises its errors, and those of `verify`."""
        order = {"from": from_sequence_number, "to": to_sequence_number, "document": candidate.document}
        async with aclosing(self._run(log.bus, order)) as responses:
            async for response in responses:
                yield SimulateRuleSetResponse.FromString(response)

    async def _run(self, bus: str, order: Mapping[str, object]) -> AsyncGenerator[bytes, None]:
        """Yield the responses of a process, which ends with this generator. Raises the error that it reports."""
        line = json.dumps({**order, "bus": bus, "store": self._store_url, "archive": self._archive}).encode() + b"\n"
        output = asyncio.StreamReader()
        # `subprocess` starts a child by vfork. uvloop forks, which holds the event loop for 30 ms for each GiB of this process (ADR 0047).
        # A session of its own: Ctrl-C at a terminal reaches the server, which ends its children.
        try:
            process = subprocess.Popen(  # noqa: ASYNC220, S603 - vfork is short; no shell, our own arguments
                _COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True, env=log_reader_environment()
            )
        except OSError as error:
            raise _lack(f"the process of a replay cannot be started: {error.strerror}") from error
        try:
            transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(output), process.stdout)
            # Closed here, since a transport whose reader is full does not see the end of the process.
            with closing(transport):
                await asyncio.to_thread(_send, process, line)
                while message := await _read(output):
                    kind, content = message
                    if kind == MessageKind.END:
                        return
                    if kind != MessageKind.RESPONSE:
                        raise _error(kind, content)
                    yield content
            status = await asyncio.to_thread(process.wait)
            if status < 0:  # a signal, such as that of a kernel without memory
                raise _lack(f"the process of the replay was ended by signal {-status}")
            raise ReplayDiedError(f"the replay of bus {bus} ended with status {status}")
        finally:
            process.kill()
            await asyncio.to_thread(process.wait)


def _lack(problem: str) -> ServiceError:
    """Return the caller's error if the machine lacks what a replay needs."""
    message = f"{problem}; try again, or replay offline with gavel replay"
    return ServiceError(error_pb2.ERROR_REASON_QUEUE_FULL, message, retry_after_ms=REPLAY_RETRY_AFTER_MS)


def _send(process: subprocess.Popen[bytes], line: bytes) -> None:
    """Send a process its only line of input."""
    if process.stdin is not None:
        with suppress(BrokenPipeError), process.stdin as pipe:  # it has died; the end of its output tells
            pipe.write(line)


async def _read(output: asyncio.StreamReader) -> tuple[int, bytes] | None:
    """Return the next message of a process, as its kind and content; None: there is no more."""
    try:
        kind, size = HEADER.unpack(await output.readexactly(HEADER.size))
        return kind, await output.readexactly(size)
    except asyncio.IncompleteReadError:
        return None


def _error(kind: int, content: bytes) -> Exception:
    """Return the error that a process reports."""
    match kind:
        case MessageKind.OUT_OF_RANGE:
            return ReplayRangeError(content.decode())
        case MessageKind.UNAVAILABLE:
            return LogUnavailableError(content.decode())
        case MessageKind.CORRUPT:
            return LogCorruptError(content.decode())
        case MessageKind.DAMAGED:
            return DamagedError(Divergence.FromString(content))
        case MessageKind.DIVERGED:
            return DivergedError(Divergence.FromString(content))
        case MessageKind.NOT_IMPLEMENTED:
            sequence_number, arbiter_version = content.split()
            return VersionNotImplementedError(int(sequence_number), int(arbiter_version))
    return ReplayDiedError(f"the replay reports a message of kind {kind}")
