"""The process that replays a log, or simulates a rule set on it, for one call to a server.

    python -m gavel_server.history.replay_worker

It is started by `replay_process`. The only line of its input says what to replay, in JSON. Each message of its output has a `HEADER`: its
kind and its size in bytes. It ends after the last message, or when its server is gone.
"""

from __future__ import annotations

import asyncio
import json
import os
import struct
import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing
from enum import IntEnum
from pathlib import Path
from typing import Any, Final

from gavel_rules.language.rule_set import compile_rule_set
from gavel_rules.replay import DamagedError, DivergedError, VersionNotImplementedError
from google.protobuf.message import Message

from gavel_server.archive.archives import join_archive
from gavel_server.history.replay import ReplayRangeError, impact, verify
from gavel_server.history.snapshot_files import SnapshotFiles
from gavel_server.log import EventLog, LogCorruptError, LogError
from gavel_server.log.stores import connect_log
from gavel_server.process.children import be_killed_first, lower_priority
from gavel_server.process.garbage_collection import collect_less
from gavel_server.process.logging import log_to_stderr

HEADER: Final = struct.Struct(">BI")
# Decisions go first. At a lower priority a replay beside a busy server would not end.
_NICENESS: Final = 5


class MessageKind(IntEnum):
    """The kinds of messages. Every message but a response is the last."""

    RESPONSE = 0  # a VerifyReplayResponse, or a SimulateRuleSetResponse if the order has the document of a candidate
    END = 1  # of the responses
    OUT_OF_RANGE = 2  # the text of a ReplayRangeError
    UNAVAILABLE = 3  # the text of a LogError that is not a LogCorruptError
    CORRUPT = 4  # the text of a LogCorruptError
    DAMAGED = 5  # the Divergence of a DamagedError
    DIVERGED = 6  # the Divergence of a DivergedError
    NOT_IMPLEMENTED = 7  # sequence number and arbiter version of a VersionNotImplementedError


async def _replay(order: dict[str, Any]) -> None:
    try:
        stored = await connect_log(order["store"], order["bus"])
        try:
            log = await join_archive(stored, order["archive"])
            async with aclosing(_responses(log, order)) as responses:
                async for response in responses:
                    await _write(MessageKind.RESPONSE, response.SerializeToString())
            await _write(MessageKind.END)
        finally:
            await stored.close()
    except ReplayRangeError as error:
        await _write(MessageKind.OUT_OF_RANGE, str(error).encode())
    except LogCorruptError as error:
        await _write(MessageKind.CORRUPT, str(error).encode())
    except LogError as error:
        await _write(MessageKind.UNAVAILABLE, str(error).encode())
    except DamagedError as error:
        await _write(MessageKind.DAMAGED, error.divergence.SerializeToString())
    except DivergedError as error:
        await _write(MessageKind.DIVERGED, error.divergence.SerializeToString())
    except VersionNotImplementedError as error:
        await _write(MessageKind.NOT_IMPLEMENTED, f"{error.sequence_number} {error.arbiter_version}".encode())


def _responses(log: EventLog, order: dict[str, Any]) -> AsyncGenerator[Message, None]:
    first, last = order["from"], order["to"]
    if order["document"]:
        return impact(log, compile_rule_set(order["document"]), from_sequence_number=first, to_sequence_number=last)
    files = SnapshotFiles(Path(order["data"]), log.bus) if order["data"] else None
    return verify(log, engine=order["engine"], from_sequence_number=first, to_sequence_number=last, snapshots=files)


async def _write(kind: MessageKind, content: bytes = b"") -> None:
    """Write a message, in a thread: while the caller does not read, replies of the log's store still arrive before their timeouts."""
    await asyncio.to_thread(_write_now, HEADER.pack(kind, len(content)) + content)


def _write_now(message: bytes) -> None:
    try:
        sys.stdout.buffer.write(message)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        os._exit(0)  # the server was killed


def main() -> None:
    """Replay what the input says."""
    log_to_stderr()
    lower_priority(_NICENESS)
    be_killed_first()
    collect_less()
    order = sys.stdin.readline()
    if order:  # otherwise the server was killed
        asyncio.run(_replay(json.loads(order)))


if __name__ == "__main__":
    main()
