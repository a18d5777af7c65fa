"""Servers with a wrong clock: which of them may write.

Redis's clock cannot be set, and a process's clock not without help. So a sequencer in this process stands for a server on another
host. `run_ahead` writes a log whose times are in the future, as with a Redis whose clock was wrong too.
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager

import grpc
import pytest
import redis.asyncio
from gavel.v1 import error_pb2
from gavel.v1.envelope_pb2 import Envelope
from gavel_client import GavelError, fact_envelope, new_event_id
from gavel_rules.commands import DeployRuleSet
from gavel_rules.language.rule_set import compile_rule_set
from gavel_server.bus.sequencer import Sequencer
from gavel_server.errors import ServiceError
from gavel_server.process.clock import SKEW_MS_MAX, GuardedClock, wall_clock_ms

from tests.e2e.cli.programs import gavel
from tests.e2e.in_process import UncheckedLog, run_sequencer
from tests.e2e.ledger import Ledger
from tests.e2e.world import DEPOT, Server, approve, open_bus, prove, rule_set

# How often a test with a time limit is retried.
TRIES_MAX = 20
HOUR_MS = 3_600_000


class HostAhead(GuardedClock):
    """The clock of a host that is `ahead_ms` ahead, unnoticed."""

    def __init__(self, ahead_ms: int) -> None:
        super().__init__(lambda: wall_clock_ms() + ahead_ms)

    def observe(self, store_ms: int, sent_ms: int, received_ms: int) -> None:
        """Take no notice."""


def run_ahead(redis_url: str, bus: str, ahead_ms: int) -> AbstractAsyncContextManager[Sequencer]:
    """Run a sequencer that dates events `ahead_ms` ahead."""
    return run_sequencer(redis_url, bus, HostAhead(ahead_ms), UncheckedLog)


def clock_off_by(off_ms: int) -> GuardedClock:
    """Return the clock of a host that is off and detects it."""
    return GuardedClock(lambda: wall_clock_ms() + off_ms)


def deployment(version: int = 1) -> DeployRuleSet:
    """Return a command that writes."""
    document = rule_set(version=version)
    return DeployRuleSet(new_event_id(), compile_rule_set(document), document)


def some_fact() -> Envelope:
    """Return an event to publish."""
    return fact_envelope("parcel/1", DEPOT, key="parcel.status", value="ready")


async def test_log_ahead_of_the_clock_is_not_written_to(pair: tuple[Server, Server], redis_url: str, bus: str) -> None:
    """After a host whose clock is an hour ahead has written, servers with a right clock serve reads and refuse writes with CLOCK_SKEW."""
    async with run_ahead(redis_url, bus, HOUR_MS) as ahead:
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


@pytest.mark.long
async def test_an_operator_accepts_a_log_that_is_ahead(pair: tuple[Server, Server], redis_url: str, bus: str) -> None:
    """`gavel accept-clock` is recorded, lets all servers write to a bus that is an hour ahead; a second is refused."""
    async with run_ahead(redis_url, bus, HOUR_MS) as ahead:
        await ahead.execute(deployment())
    command = ("accept-clock", "--reason", "set by hand", "--by", "ada", "--bus", bus)
    accepted = await asyncio.to_thread(gavel, *command, server=pair[0])
    assert 0 == accepted.returncode, accepted.stderr
    assert "half speed" in accepted.stdout
    again = await asyncio.to_thread(gavel, *command, server=pair[1])
    assert again.returncode
    assert "is not ahead" in again.stderr
    for server in pair:
        async with server.client(bus) as client:
            await client.publish_event(some_fact())
            await prove(client)
    events = (await Ledger.read(redis_url, bus)).events
    assert ["BusOpened", "RuleSetDeployed", "ClockAccepted", "FactRecorded", "FactRecorded"] == [event.event_name for event in events]


async def test_time_of_the_log_never_decreases(pair: tuple[Server, Server], redis_url: str, bus: str) -> None:
    """A server whose clock is slightly behind the last event writes, and records no time before that event's."""
    for number in range(TRIES_MAX):
        name = f"{bus}-{number}"
        async with run_ahead(redis_url, name, 4_000) as ahead:
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


async def test_a_wall_clock_that_jumps_changes_no_date(redis_url: str, bus: str, pair: tuple[Server, Server]) -> None:
    """Events of a host whose wall clock is an hour ahead for a while are dated rightly, no approval expires, and other servers write on."""
    off_ms = [0]
    clock = GuardedClock(lambda: wall_clock_ms() + off_ms[0])
    async with pair[0].client(bus, tries_max=1) as client, run_sequencer(redis_url, bus, clock) as jumping:
        await open_bus(client, rule_set(decision_ttl_ms=600_000))
        await approve(client, "parcel/1")
        for version, jump_ms in enumerate((HOUR_MS, -HOUR_MS, 0), 2):
            off_ms[0] = jump_ms
            await jumping.replica.observe_clock()
            await jumping.execute(deployment(version))
            await jumping.read_on()
            await client.publish_event(some_fact())
    events = (await Ledger.read(redis_url, bus)).events
    assert all(event.recorded_at.ToMilliseconds() <= wall_clock_ms() + SKEW_MS_MAX for event in events)
    assert "DecisionExpired" not in {event.event_name for event in events}


async def test_a_clock_that_is_ahead_unnoticed(redis_url: str, bus: str) -> None:
    """Redis itself refuses events that are dated ahead of its time, and the callers of that server hear CLOCK_SKEW."""
    async with run_sequencer(redis_url, bus, GuardedClock()):
        pass
    async with run_sequencer(redis_url, bus, HostAhead(HOUR_MS)) as ahead:
        with pytest.raises(ServiceError) as refusal:
            await ahead.execute(deployment())
    assert error_pb2.ERROR_REASON_CLOCK_SKEW == refusal.value.reason
    assert 1 == (await Ledger.read(redis_url, bus)).head[0]
