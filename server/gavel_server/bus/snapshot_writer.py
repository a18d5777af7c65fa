"""The background task that takes the snapshots of all buses of a server when they are due, one at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from gavel_server.bus.sequencer import Sequencer

ROUND_SECONDS: Final = 1.0


async def write_forever(sequencers: Callable[[], Iterable[Sequencer]]) -> None:
    """Write the snapshots that are due, for ever."""
    while True:
        await asyncio.sleep(ROUND_SECONDS)
        for sequencer in list(sequencers()):
            await write_if_due(sequencer)


async def write_if_due(sequencer: Sequencer) -> None:
    """Write a snapshot of a bus if it is due."""
    replica = sequencer.replica
    snapshots = replica.snapshots
    if snapshots is None or not snapshots.is_due(replica.head):
        return
    state = await sequencer.settled_state()
    # Nothing is awaited from here to the fork.
    if replica.is_settled:
        await snapshots.write_in_child(state, replica.head, replica.incarnation, replica.trace_owners)
