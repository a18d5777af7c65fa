"""Batches: items are admitted, queued and answered one by one, in order, without a task for each."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from gavel.v1.envelope_pb2 import Envelope
from gavel_rules.commands import Command
from gavel_rules.identity.principal import ANONYMOUS, Principal
from gavel_rules.limits import BATCH_ITEMS_MAX

from gavel_server.bus.request import CommittedAnswer
from gavel_server.bus.sequencer import Sequencer
from gavel_server.errors import ServiceError, invalid
from gavel_server.fairness.turns import call_slice
from gavel_server.rpc.decoding import SLICE_ITEMS


class AdmittedCommand(NamedTuple):
    """A command for the sequencer. `idempotency_key` is its event_id if the producer chose it, else "".

    `size_bytes` counts against the limits of batch and queue.
    """

    command: Command
    idempotency_key: str
    size_bytes: int


def check_batch(items: int) -> None:
    """Raise ServiceError INVALID_REQUEST if a batch is empty or too long."""
    if not 1 <= items <= BATCH_ITEMS_MAX:
        raise invalid([("envelopes", f"has {items} items; 1 to {BATCH_ITEMS_MAX} are allowed")])


async def admit_all(
    envelopes: Sequence[Envelope], admit: Callable[[Envelope], AdmittedCommand], caller: str
) -> list[AdmittedCommand | ServiceError]:
    """Return the command of each envelope, or the error with which `admit` refuses it. Other tasks run in between."""
    admitted: list[AdmittedCommand | ServiceError] = []
    time_slice = call_slice(SLICE_ITEMS, caller)
    for envelope in envelopes:
        await time_slice.spend(1)
        try:
            admitted.append(admit(envelope))
        except ServiceError as error:
            admitted.append(error)
    return admitted


async def execute_all(
    open_bus: Callable[[], Awaitable[Sequencer]],
    commands: Sequence[AdmittedCommand | ServiceError],
    caller: str,
    principal: Principal = ANONYMOUS,
) -> list[CommittedAnswer | ServiceError]:
    """Execute the commands, in order, and return the answers in that order. An error is its own answer.

    The bus is opened only if there is a command. They use `caller`'s share of the queue.
    """
    refused = {index: item for index, item in enumerate(commands) if isinstance(item, ServiceError)}
    results: dict[int, CommittedAnswer | ServiceError] = {**refused}
    if len(results) < len(commands):
        sequencer = await open_bus()
        complete = asyncio.get_running_loop().create_future()

        def answer(index: int, result: CommittedAnswer | ServiceError) -> None:
            results[index] = result
            if len(results) == len(commands) and not complete.done():
                complete.set_result(None)

        def submit(index: int, item: AdmittedCommand) -> None:
            try:
                sequencer.submit(
                    item.command,
                    lambda result: answer(index, result),
                    item.idempotency_key,
                    item.size_bytes,
                    caller=caller,
                    principal=principal,
                )
            except ServiceError as error:
                answer(index, error)

        for index, item in enumerate(commands):
            if not isinstance(item, ServiceError):
                submit(index, item)
        await complete
    return [results[index] for index in range(len(commands))]
