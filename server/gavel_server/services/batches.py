"""Batches: each item is admitted, queued and answered by itself, in order, without a task of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple

from gavel.v1.envelope_pb2 import Envelope
from gavel_rules.commands import Command
from gavel_rules.limits import BATCH_BYTES_MAX, BATCH_ITEMS_MAX

from gavel_server.bus.planning import Completed
from gavel_server.bus.sequencer import Sequencer
from gavel_server.errors import ServiceError, invalid


class Admitted(NamedTuple):
    """A command ready for the sequencer; `check_id` is its event_id where the producer chose it, else ""."""

    command: Command
    check_id: str


def check_batch(items: int, size_bytes: int) -> None:
    """Refuse a batch that is empty, too long or too large. Raises ServiceError INVALID_ARGUMENT."""
    violations = []
    if not 1 <= items <= BATCH_ITEMS_MAX:
        violations.append(("envelopes", f"are {items}, not 1 to {BATCH_ITEMS_MAX}"))
    if size_bytes > BATCH_BYTES_MAX:
        violations.append(("request", f"is larger than {BATCH_BYTES_MAX} bytes"))
    if violations:
        raise invalid(violations)


async def execute_all(
    sequencer: Sequencer, envelopes: Sequence[Envelope], admit: Callable[[Envelope], Admitted]
) -> list[Completed | ServiceError]:
    """Carry out one command per envelope, in order, and return what each came to, in that order.

    `admit` makes a command of an envelope or raises ServiceError, which is then that item's answer.
    """
    results: dict[int, Completed | ServiceError] = {}
    complete = asyncio.get_running_loop().create_future()

    def answer(index: int, result: Completed | ServiceError) -> None:
        results[index] = result
        if len(results) == len(envelopes) and not complete.done():
            complete.set_result(None)

    def submit(index: int, envelope: Envelope) -> None:
        try:
            command, check_id = admit(envelope)
            sequencer.submit(command, lambda result: answer(index, result), check_id, envelope.ByteSize())
        except ServiceError as error:
            answer(index, error)

    for index, envelope in enumerate(envelopes):
        submit(index, envelope)
    await complete
    return [results[index] for index in range(len(envelopes))]
