"""Encodes commands for Redis (RESP 2), and entries as arguments of `append.lua`; reads the entries in replies.

Compiled, because every event passes through here. hiredis packs commands too, with several times the instructions: it prints every length
and copies every argument three times.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from gavel_server.log.entries import Entry, Record

Argument = bytes | str | int
Command = tuple[Argument, ...]

_FLAG_OF_WORK: Final = {"": "-", "decisions": "d", "executions": "x", "requests": "r"}
# An event with grants enters no work queue.
_GRANTS: Final = "g"
_LOSS: Final = "l"
_END: Final = b"\r\n"
# The header of a bulk string by its length, with the end of the part before it. Few events are longer.
_HEADERS: Final = [b"\r\n$%d\r\n" % length for length in range(2048)]


def pack(command: Command) -> bytes:
    """Return a command in RESP 2: an array of bulk strings."""
    parts: list[bytes] = [b"*%d" % len(command)]
    for argument in command:
        if isinstance(argument, bytes):
            content = argument
        elif isinstance(argument, str):
            content = argument.encode()
        else:
            content = str(argument).encode()
        length = len(content)
        parts.append(_HEADERS[length] if length < len(_HEADERS) else b"\r\n$%d\r\n" % length)
        parts.append(content)
    parts.append(_END)
    return b"".join(parts)


def flags_and_arguments(entries: Sequence[Entry]) -> tuple[str, bytes, list[Argument]]:
    """Return a letter per entry, the chain hashes, and a list: all envelopes, then event_id and value of each entry.

    The letter names the work queue of the entry, or says that it holds grants or accepts a loss.
    """
    flags: list[str] = []
    hashes: list[bytes] = []
    envelopes: list[Argument] = []
    ids: list[Argument] = []
    for entry in entries:
        number = entry.sequence_number
        decision_number = entry.decision_sequence_number
        flags.append(_GRANTS if entry.deploys_grants else _LOSS if entry.accepts_loss else _FLAG_OF_WORK[entry.work])
        hashes.append(entry.chain_hash)
        envelopes.append(entry.envelope)
        ids.append(entry.event_id)
        ids.append(f"{number}:{decision_number}" if decision_number else number)
    envelopes += ids
    return "".join(flags), b"".join(hashes), envelopes


def record_of(row: Any) -> Record | None:
    """Return an entry of XRANGE's reply as a record; None if it is not <number>-0 with fields e and h."""
    try:
        number, rest = row[0].split(b"-")
        name_e, envelope, name_h, chain_hash = row[1]
        if rest == b"0" and name_e == b"e" and name_h == b"h":
            return Record(int(number), envelope, chain_hash)
    except (TypeError, ValueError, IndexError, AttributeError):
        pass  # the caller reports it, with the entry
    return None
