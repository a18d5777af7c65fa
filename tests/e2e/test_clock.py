"""Clocks that are off: who may write then, and who may not.

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
from gavel_rules.language.ruleset import compile_rule_set
from gavel_server.clock import GuardedClock, wall_clock_ms
from gavel_server.errors import ServiceError

from tests.e2e.in_process import sequencer_on
from tests.e2e.ledger import Ledger
from tests.e2e.world import DEPOT, Server, rule_set

# How often a test that has to be quick begins anew.
TRIES_MAX = 20


class HostAhead(GuardedClock):
    """The clock of a host that is `ahead_ms` ahead and has not noticed."""

    def __init__(self, ahead_ms: int) -> None:
        super().__init__(lambda: wall_clock_ms() + ahead_ms)

    def observe(self, store_ms: int, sent_ms: int, received_ms: int) -> None:
        """Take no notice."""


def clock_off_by(off_ms: int) -> GuardedClock:
    """Return the clock of a host that is off and finds out."""
    return GuardedClock(lambda: wall_clock_ms() + off_ms)


def deployment() -> DeployRuleSet:
    """Return a command that writes."""
    return DeployRuleSet(new_event_id(), compile_rule_set(rule_set()), rule_set())


def some_fact() -> Envelope:
    """Return something to publish."""
    return fact_envelope("parcel/1", DEPOT, key="parcel.status", value="ready")


@pytest.mark.usefixtures("one_try")
async def test_a_log_from_the_future_is_not_written_to(pair: tuple[Server, Server], redis_url: str, bus: str) -> None:
    """After a host whose clock is an hour ahead has written, servers whose clock is right refuse writes with CLOCK_SKEW, and read."""
    async with sequencer_on(redis_url, bus, HostAhead(3_600_000)) as ahead:
        await ahead.execute(deployment())
    async with pair[0].client(bus) as client:
        with pytest.raises(GavelError) as refused:
            await client.publish_event(some_fact())
        assert (grpc.StatusCode.UNAVAILABLE, "CLOCK_SKEW") == (refused.value.code, refused.value.reason)
        assert refused.value.retry_after_ms
        status = await client.get_status()
        assert (2, False) == (status.head_sequence_number, status.writable)
        assert "behind the log's last event" in status.unwritable_reason
        assert 2 == len((await client.list_events()).envelopes)
    assert 2 == (await Ledger.read(redis_url, bus)).head[0]


async def test_time_never_goes_back(pair: tuple[Server, Server], redis_url: str, bus: str) -> None:
    """A server whose clock is a little behind the log's last event writes, and records no earlier time than that event's."""
    for number in range(TRIES_MAX):
        name = f"{bus}-{number}"
        async with sequencer_on(redis_url, name, HostAhead(4_000)) as ahead:
            await ahead.execute(deployment())
        async with pair[0].client(name) as client:
            published = (await client.publish_event(some_fact())).envelope
        last = (await Ledger.read(redis_url, name)).events[1]
        if wall_clock_ms() < last.recorded_at.ToMilliseconds():
            break  # it was published before that moment had come; a busy machine may take longer
    assert (3, last.recorded_at) == (published.sequence_number, published.recorded_at)


@pytest.mark.parametrize("off_ms", [-60_000, 60_000], ids=["behind", "ahead"])
async def test_a_clock_that_differs_from_the_stores_does_not_write(redis_url: str, bus: str, off_ms: int) -> None:
    """A host more than a second off its Redis's clock notices at its start, and refuses to write to a bus that it serves."""
    async with sequencer_on(redis_url, bus, GuardedClock()):
        pass
    async with sequencer_on(redis_url, bus, clock_off_by(off_ms)) as off:
        with pytest.raises(ServiceError) as refused:
            await off.execute(deployment())
        assert error_pb2.ERROR_REASON_CLOCK_SKEW == refused.value.reason
        assert "off the log store's" in refused.value.message
    assert 1 == (await Ledger.read(redis_url, bus)).head[0]


async def test_a_clock_that_differs_from_the_stores_opens_no_bus(redis_url: str, bus: str) -> None:
    """The first event of a bus is one like any other: a host whose clock is off must not write it, or it would lock out all others."""
    with pytest.raises(ServiceError) as refused:
        async with sequencer_on(redis_url, bus, clock_off_by(60_000)):
            pass
    assert error_pb2.ERROR_REASON_CLOCK_SKEW == refused.value.reason
    async with redis.asyncio.Redis.from_url(redis_url) as connection:
        assert 0 == await connection.xlen(f"gavel:{{{bus}}}:log")
