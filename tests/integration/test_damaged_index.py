"""The index of event_ids in Redis is a hint: edited entries give no wrong answer and do not stop the bus. Lost events are noticed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import redis.asyncio
from gavel_rules.commands import ActivateRuleSet, Command, DeployRuleSet, PublishEvent, SubmitProposal
from gavel_rules.events.proposal_view import ProposalView
from gavel_server.bus.request import CommittedAnswer
from gavel_server.bus.sequencer import Sequencer
from gavel_server.intake.admission import admit
from gavel_server.intake.event_ids import new_event_id
from gavel_server.log.redis.log import RedisLog
from gavel_server.process.clock import GuardedClock

from tests.support.driver import ALL_PAYLOADS, WEEK_MS, compile_cached, document, fact_envelope, proposal_envelope
from tests.support.entries import DAY_MS
from tests.support.simulation.servers import CROSS_CHECK, execute, reason, record_event, repeat_command

TEXT = document()


@pytest.fixture
async def client(redis_url: str) -> AsyncIterator[Any]:
    """A plain client of the shared Redis."""
    async with redis.asyncio.Redis.from_url(redis_url, protocol=2) as plain:
        yield plain


@pytest.fixture
async def sequencer(redis_url: str, bus: str) -> AsyncIterator[Sequencer]:
    """A server of a bus with rules in force."""
    log = await RedisLog.connect(redis_url, bus)
    started = Sequencer(log, GuardedClock(), cross_check=CROSS_CHECK, idempotency_window_ms=WEEK_MS)
    await started.start()
    await started.execute(DeployRuleSet(new_event_id(), compile_cached(TEXT), TEXT))
    await started.execute(ActivateRuleSet(new_event_id(), "refunds", 1, None))
    yield started
    await started.stop()
    await log.close()


def fact(bus: str, value: object = "delivered") -> PublishEvent:
    """Return the command to publish a fact."""
    envelope = fact_envelope("order.status", value)
    envelope.event_id = new_event_id()
    admit(envelope, bus, ALL_PAYLOADS)
    return PublishEvent(envelope)


async def decide(sequencer: Sequencer, subject: str) -> SubmitProposal:
    """Submit a proposal, and return the command."""
    evidence = fact_envelope("order.status", "delivered", subject=subject)
    evidence.event_id = new_event_id()
    admit(evidence, sequencer.bus, ALL_PAYLOADS)
    envelope = proposal_envelope([await record_event(sequencer, PublishEvent(evidence))], subject=subject, trace_id=subject)
    envelope.event_id = new_event_id()
    admit(envelope, sequencer.bus, ALL_PAYLOADS)
    proposal = SubmitProposal(ProposalView(envelope))
    await record_event(sequencer, repeat_command(proposal))
    return proposal


def forget(sequencer: Sequencer) -> None:
    """Let the server forget all event_ids."""
    sequencer.recent_events._locations.clear()
    sequencer.recent_events._older_locations.clear()


async def edit_index(client: Any, sequencer: Sequencer, command: Command, value: str) -> None:
    """Write an entry of the index for the event_id of a command."""
    assert isinstance(command, PublishEvent | SubmitProposal)
    await client.hset(f"gavel:{{{sequencer.bus}}}:ids:{sequencer.now_ms() // DAY_MS}", command.envelope.event_id, value)


@pytest.mark.parametrize("value", ["999999", "999999:1000000", "0", "-1", "text", ""])
async def test_entry_beyond_the_log(client: Any, sequencer: Sequencer, value: str) -> None:
    """An entry that names no event of the log refuses its event_id alone; the bus stays writable."""
    command = fact(sequencer.bus)
    await edit_index(client, sequencer, command, value)
    for _ in range(2):
        assert "LOG_UNAVAILABLE" == reason(result := await execute(sequencer, repeat_command(command)))
        assert "the index of bus" in str(result)
        await record_event(sequencer, fact(sequencer.bus))
    assert sequencer.write_error() is None


async def test_entry_of_another_proposal(client: Any, sequencer: Sequencer) -> None:
    """An entry that was changed to another proposal never gives the answer to that one."""
    one, other = await decide(sequencer, "order/1"), await decide(sequencer, "order/2")
    location = sequencer.recent_events.location(other.envelope.event_id)
    assert location is not None
    await edit_index(client, sequencer, one, f"{location.sequence_number}:{location.decision_sequence_number}")
    forget(sequencer)
    assert "LOG_UNAVAILABLE" == reason(await execute(sequencer, repeat_command(one)))
    assert isinstance(await execute(sequencer, repeat_command(other)), CommittedAnswer)


async def test_entry_with_another_decision(client: Any, sequencer: Sequencer) -> None:
    """An entry that names another decision for a proposal does not matter: the decision on a proposal is the next event."""
    one, other = await decide(sequencer, "order/1"), await decide(sequencer, "order/2")
    first = await execute(sequencer, repeat_command(one))
    locations = [sequencer.recent_events.location(command.envelope.event_id) for command in (one, other)]
    mine, others = (location for location in locations if location is not None)
    await edit_index(client, sequencer, one, f"{mine.sequence_number}:{others.decision_sequence_number}")
    forget(sequencer)
    again = await execute(sequencer, repeat_command(one))
    assert isinstance(first, CommittedAnswer)
    assert isinstance(again, CommittedAnswer)
    assert first.record == again.record


@pytest.mark.parametrize("forgotten", [False, True])
async def test_removed_decision_is_noticed(client: Any, sequencer: Sequencer, forgotten: bool) -> None:
    """A repeat never gets the PROPOSAL for the decision that somebody removed; the bus is blocked."""
    proposal = await decide(sequencer, "order/1")
    location = sequencer.recent_events.location(proposal.envelope.event_id)
    assert location is not None
    await record_event(sequencer, fact(sequencer.bus))
    prefix = f"gavel:{{{sequencer.bus}}}:"
    async with client.pipeline(transaction=True) as transaction:  # the server looks at the log now and then
        transaction.xdel(f"{prefix}log", f"{location.sequence_number + 1}-0")
        transaction.hincrby(f"{prefix}head", "count", -1)
        await transaction.execute()
    if forgotten:
        forget(sequencer)
    assert "LOG_UNAVAILABLE" == reason(await execute(sequencer, repeat_command(proposal)))
    assert "LOG_UNAVAILABLE" == reason(result := await execute(sequencer, fact(sequencer.bus)))
    assert "missing" in str(result)
