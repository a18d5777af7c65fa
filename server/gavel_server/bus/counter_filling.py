"""Gives the counters of a rule set their past before the rule set is activated.

The counters are opened first and count from there on. Then the log before that is counted in short slices between decisions, and its
entries are recorded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from functools import partial
from typing import Final

import structlog
from gavel.v1.envelope_pb2 import Envelope
from gavel_rules.commands import EventAnswer, FillCounter, OpenCounters
from gavel_rules.counter_backlog import CounterBacklog
from gavel_rules.events.timestamps import milliseconds
from gavel_rules.language.rule_set import CompiledRuleSet

from gavel_server.bus.sequencer import Sequencer
from gavel_server.compile.precompiler import Precompiler
from gavel_server.fairness.callers import INTERNAL
from gavel_server.fairness.turns import call_slice
from gavel_server.history.disposal import temporary_states
from gavel_server.history.replay import pages
from gavel_server.intake.event_ids import new_event_id
from gavel_server.log import Record

# Events counted before other tasks run: half a millisecond. A decision waits for several slices.
SLICE_EVENTS: Final = 16

_LOG: Final = structlog.get_logger(__name__)
_Version = tuple[str, str, int]  # bus, policy_id, version


class CounterFilling:
    """The fills under way in this server.

    A fill of a long log may outlast the call that began it. It goes on without the call, and later calls that activate the same version
    wait for it.
    """

    def __init__(self) -> None:
        self._fills: Final[dict[_Version, asyncio.Task[None]]] = {}

    async def fill(self, sequencer: Sequencer, rule_set: CompiledRuleSet) -> None:
        """Fill the counters of a deployed rule set that lack their past. Raises ServiceError and LogError."""
        version = sequencer.bus, rule_set.policy_id, rule_set.version
        fill = self._fills.get(version)
        if fill is None:
            fill = self._fills[version] = asyncio.create_task(fill_counters(sequencer, rule_set))
            fill.add_done_callback(partial(self._end, version))
        await asyncio.shield(fill)

    def _end(self, version: _Version, fill: asyncio.Task[None]) -> None:
        del self._fills[version]
        if not fill.cancelled() and (error := fill.exception()) is not None:
            bus, policy_id, number = version
            _LOG.warning("counters.fill_failed", bus=bus, policy_id=policy_id, version=number, problem=str(error))


async def fill_counters(sequencer: Sequencer, rule_set: CompiledRuleSet) -> None:
    """Open the counters of a deployed rule set that lack their past, and fill them. Raises ServiceError and LogError."""
    opened = (await sequencer.execute(OpenCounters(new_event_id(), rule_set.policy_id, rule_set.version))).answer
    if not isinstance(opened, EventAnswer):
        raise TypeError(f"OpenCounters was answered with {type(opened).__name__}")
    opened_at = opened.envelope.sequence_number
    digests = opened.envelope.fact.counters_opened.digests
    counters = [counter for counter in rule_set.counters.values() if counter.digest in digests]
    backlog = CounterBacklog(sequencer.bus, counters, opened_at)
    precompiler = Precompiler()
    time_slice = call_slice(1, INTERNAL)

    def before(record: Record) -> Awaitable[None] | None:
        return precompiler.before(backlog.state, record.envelope)

    def feed(record: Record) -> None:
        backlog.feed(Envelope.FromString(record.envelope))

    async with temporary_states() as states:
        states.append(backlog.state)
        async for _ in pages(sequencer.log, opened_at - 1, feed, before, slice_events=SLICE_EVENTS):
            pass
        # A late report may still raise an entry that lapses meanwhile.
        for filled in backlog.fill_steps(milliseconds(opened.envelope.recorded_at)):
            if filled is None:
                await time_slice.spend(1)
            else:
                await sequencer.execute(FillCounter(new_event_id(), filled))
