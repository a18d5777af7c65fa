"""How people name an event on the command line: by its id, or by its sequence number, which every listing shows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gavel_server.cli.errors import CommandError, InvalidInputError
from gavel_server.cli.options import INT64_MAX

if TYPE_CHECKING:
    from gavel_client import SyncGavelClient


def read_sequence_number(text: str) -> int:
    """Return the sequence number that the text is, or 0 if it is an id. Raises InvalidInputError for a number outside int64."""
    if not (text.isascii() and text.isdigit()):
        return 0
    # int() refuses thousands of digits, so only as many are read as show that the number is too large.
    number = int(text[: len(str(INT64_MAX)) + 1])
    if not 0 < number <= INT64_MAX:
        raise InvalidInputError(f"{text[:40]} is not a sequence number; they go from 1 to 2^63 - 1")
    return number


def find_decision_id(client: SyncGavelClient, decision: str) -> str:
    """Return the id of a decision that is named by its id or its sequence number. Raises CommandError if the number is of another event."""
    number = read_sequence_number(decision)
    if not number:
        return decision
    envelope = client.get_event(sequence_number=number).envelope
    if not envelope.HasField("decision"):
        raise CommandError(f"event {number} is not a decision; gavel log search --category decision lists the decisions")
    return envelope.event_id
