"""Servers with a wrong clock: which of them may write.

Redis's clock cannot be set, and a process's clock not without help. So a sequencer in this process stands for a server on another
host: `HostAhead` is a clock that runs ahead and that has not been compared with Redis's.
"""

from __future__ import annotations

import grpc
import pytest
import redis.asyncio
from gavel.v1 import error_pb2
from gavel.v1.envelope_pb2 import Envelope
from gavel_client import GavelError, fact_envelope, new_event_id
from gavel_rules.commands import DeployRuleSet
from gavel_rules.language.rule_set import compile_rule_set
from gavel_server.errors import ServiceError
from gavel_server.process.clock import GuardedClock, wall_clock_ms

from tests.e2e.in_process import run_sequencer
from tests.e2e.ledger import Ledger
from tests.e2e.world import DEPOT, Server, rule_set

# How often a test with a time limit is retried.
TRIES_MAX = 20


class HostAhead(GuardedClock):
    """The clock of a host that is `ahead_ms` ahead, unnoticed."""

    def __init__(self, ahead_ms: int) -> None:
        super().__init__(lambda: wall_clock_ms() + ahead_ms)

    def observe(self, store_ms: int, sent_ms: int, received_ms: int) -> None:
        """Take no notice."""


def clock_off_by(off_ms: int) -> GuardedClock:
    """Return the clock of a host that is off and detects it."""
    return GuardedClock(lambda: wall_clock_ms() + off_ms)


def deployment() -> DeployRuleSet:
    """Return a command that writes."""
    return DeployRuleSet(new_event_id(), compile_rule_set(rule_set()), rule_set())


def some_fact() -> Envelope:
    """Return an event to publish."""
    return fact_envelope("parcel/1", DEPOT, key="parcel.status", value="ready")


async def test_log_ahead_of_the_clock_is_not_written_to(pair: tuple[Server, Server], redis_url: str, bus: str) -> None:
    """After a host whose clock is an hour ahead has written, servers with a right clock serve reads and refuse writes with CLOCK_SKEW."""
    async with run_sequencer(redis_url, bus, HostAhead(3_600_000)) as ahead:
        await ahead.execute(deployment())
    async with pair[0].client(bus, tries_max=1) as client:
        with pytest.raises(GavelError) as refusal:
            await client.publish_event(some_fact())
        assert (grpc.StatusCode.UNAVAILABLE, "CLOCK_SKEW") == (refusal.value.code, refusal.value.reason)
        assert refusal.value.retry_after_ms
        status = await client.get_status()
        assert (2, False) == (status.head_sequence_number, status.writable)
        assert "behind the log's last event" in status.unwritable_reason
        assert 2 == len((await client.list_events()).envelopes)
    assert 2 == (await Ledger.read(redis_url, bus)).head[0]


async def test_time_of_the_log_never_decreases(pair: tuple[Server, Server], redis_url: str, bus: str) -> None:
    """A server whose clock is slightly behind the last event writes, and records no time before that event's."""
    for number in range(TRIES_MAX):
        name = f"{bus}-{number}"
        async with run_sequencer(redis_url, name, HostAhead(4_000)) as ahead:
            await ahead.execute(deployment())
        async with pair[0].client(name) as client:
            event = (await client.publish_event(some_fact())).envelope
        last = (await Ledger.read(redis_url, name)).events[1]
        if wall_clock_ms() < last.recorded_at.ToMilliseconds():
            break  # it was published before that moment had come; a busy machine may take longer
    assert (3, last.recorded_at) == (event.sequence_number, event.recorded_at)


@pytest.mark.parametrize("off_ms", [-60_000, 60_000], ids=["behind", "ahead"])
async def test_clock_skew_refuses_writes(redis_url: str, bus: str, off_ms: int) -> None:
    """A host whose clock differs from Redis's by more than a second refuses writes from its start on."""
    async with run_sequencer(redis_url, bus, GuardedClock()):
        pass
    async with run_sequencer(redis_url, bus, clock_off_by(off_ms)) as off:
        with pytest.raises(ServiceError) as refusal:
            await off.execute(deployment())
        assert error_pb2.ERROR_REASON_CLOCK_SKEW == refusal.value.reason
        assert "off the log store's" in refusal.value.message
    assert 1 == (await Ledger.read(redis_url, bus)).head[0]


async def test_clock_skew_opens_no_bus(redis_url: str, bus: str) -> None:
    """A host whose clock is off does not write a bus's first event either, which would lock out all others."""
    with pytest.raises(ServiceError) as refusal:
        async with run_sequencer(redis_url, bus, clock_off_by(60_000)):
            pass
    assert error_pb2.ERROR_REASON_CLOCK_SKEW == refusal.value.reason
    async with redis.asyncio.Redis.from_url(redis_url) as connection:
        assert 0 == await connection.xlen(f"gavel:{{{bus}}}:log")
