"""Replays of a server's logs, each in a process of its own: the server goes on deciding meanwhile, and the memory goes back at the end.

In the server's own process, a replay would take turns with decisions, and leave its state's memory in pieces between objects that live on.
"""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator
from contextlib import suppress
from pathlib import Path
from typing import Final

from gavel.v1 import decision_pb2
from gavel.v1.decision_pb2 import Engine
from gavel.v1.replay_service_pb2 import VerifyReplayResponse

from gavel_server.errors import GavelServerError
from gavel_server.history.replay import ReplayRangeError
from gavel_server.history.replay_worker import HEADER, MessageKind
from gavel_server.history.snapshot_files import SnapshotFiles
from gavel_server.log import EventLog, LogUnavailableError
from gavel_server.process.children import log_reader_environment

_COMMAND: Final = (sys.executable, "-P", "-m", "gavel_server.history.replay_worker")


class ReplayDiedError(GavelServerError):
    """The process of a replay ended before its verdict; its errors are in the server's standard error."""


class ReplayProcesses:
    """Replays logs of the store at a URL, with the snapshots in a data directory."""

    def __init__(self, store_url: str, data: Path, archive: str = "") -> None:
        """`archive` is where the logs' old events are; "": in the logs."""
        self._store_url = store_url
        self._data = data
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
        """Replay the log of a bus as `replay.verify` does, and compare the snapshots of its data directory unless `snapshots` is None.

        The process ends with the generator. Raises ReplayRangeError, LogUnavailableError, ReplayDiedError.
        """
        order = {
            "store": self._store_url,
            "data": "" if snapshots is None else str(self._data),
            "archive": self._archive,
            "bus": log.bus,
            "engine": engine,
            "from": from_sequence_number,
            "to": to_sequence_number,
        }
        # A session of its own: Ctrl-C at a terminal reaches the server, which ends its children.
        process = await asyncio.create_subprocess_exec(
            *_COMMAND, stdin=PIPE, stdout=PIPE, start_new_session=True, env=log_reader_environment()
        )
        try:
            if process.stdin is not None:
                with suppress(ConnectionError):  # it has died; the end of its output tells
                    process.stdin.write(json.dumps(order).encode() + b"\n")
                    await process.stdin.drain()
            has_ended = False
            while message := await _read(process):
                kind, content = message
                if kind == MessageKind.OUT_OF_RANGE:
                    raise ReplayRangeError(content.decode())
                if kind == MessageKind.UNAVAILABLE:
                    raise LogUnavailableError(content.decode())
                response = VerifyReplayResponse.FromString(content)
                has_ended = response.HasField("verdict")
                yield response
            if not has_ended:
                raise ReplayDiedError(f"the replay of bus {log.bus} ended with status {await process.wait()} and no verdict")
        finally:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()


async def _read(process: Process) -> tuple[int, bytes] | None:
    """Return the next message of a process, as its kind and content; None: there is no more."""
    if process.stdout is None:
        return None
    try:
        kind, size = HEADER.unpack(await process.stdout.readexactly(HEADER.size))
        return kind, await process.stdout.readexactly(size)
    except asyncio.IncompleteReadError:
        return None
