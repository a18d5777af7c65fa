"""The background task that takes the snapshots of all buses of a server when they are due, one at a time.

Once a snapshot is written, the rows of paged tables leave the memory: the state reads them from the file when they are needed again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from gavel_rules.state.paged_table import StatePages
from gavel_rules.state.state import State

from gavel_server.bus.sequencer import Sequencer
from gavel_server.process.time_slice import TimeSlice

ROUND_SECONDS: Final = 1.0
# Rows that leave the memory before other tasks run: about a millisecond.
ROWS_AT_ONCE: Final = 256


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
        pages = await snapshots.write_in_child(state, replica.head, replica.incarnation, replica.trace_owners)
        if pages is not None:
            await _page_out(sequencer, state, pages)


async def _page_out(sequencer: Sequencer, state: State, pages: StatePages) -> None:
    """Leave the rows of paged tables that are in a snapshot of this state to its file, unless the bus closes or starts over."""
    if await sequencer.settled_state() is not state or sequencer.replica.closing:
        return  # a thread may read the tables for the last snapshot
    state.store.use_pages(pages)
    time_slice = TimeSlice(ROWS_AT_ONCE)  # the row of a subject with many keys takes milliseconds
    for table in state.store.paged_tables:
        for key in list(table.changes):
            table.page_out([key])
            if time_slice.is_over(1):
                await time_slice.end()
                if await sequencer.settled_state() is not state or sequencer.replica.closing:
                    return
