"""Answers with GAVEL_ACK=replicas:1 on a real primary and its replica: nobody hears of an event that the replica does not have."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest
import redis.asyncio
from gavel.v1.arbitration_service_pb2 import WaitDecisionRequest
from gavel.v1.event_service_pb2 import GetEventRequest, GetEventResponse, ListEventsRequest
from gavel.v1.projection_service_pb2 import GetProjectionRequest, GetStatusRequest
from gavel_rules.commands import ActivateRuleSet, BeginExecution, Command, DeployRuleSet, EventAnswer, PublishEvent, SubmitProposal
from gavel_rules.events.proposal_view import ProposalView
from gavel_server.bus.checkpoint import Checkpoint
from gavel_server.bus.registry import BusRegistry
from gavel_server.bus.request import CommittedAnswer
from gavel_server.bus.sequencer import Sequencer
from gavel_server.errors import ServiceError
from gavel_server.fairness.quotas import QuotaLimits, Quotas
from gavel_server.intake.admission import admit
from gavel_server.intake.event_ids import new_event_id
from gavel_server.log import Record
from gavel_server.log.acknowledgement import Acknowledgement
from gavel_server.log.redis.log import RedisLog
from gavel_server.process.background import new_supervisor
from gavel_server.process.clock import GuardedClock
from gavel_server.services.event import EventServicer
from gavel_server.services.projection import ProjectionServicer
from gavel_server.services.waits.wait_decision import WaitDecision

from tests.support.calls import call_context
from tests.support.driver import ALL_PAYLOADS, EXECUTOR, WEEK_MS, compile_cached, document, fact_envelope, proposal_envelope
from tests.support.redis.tcp import RedisOnTcp, replicated_redis
from tests.support.simulation.servers import CROSS_CHECK, execute, reason, repeat_command

TIMEOUT_MS: Final = 300
TEXT: Final = document(contest_window_ms=1_000)
TEXT_AT_ONCE: Final = document()
CONTEXT: Final[Any] = call_context("test")

pytestmark = pytest.mark.usefixtures("redis_program")


@asynccontextmanager
async def serve(
    primary: RedisOnTcp, bus: str, checkpoint: Checkpoint | None = None, log_type: type[RedisLog] = RedisLog
) -> AsyncIterator[Sequencer]:
    """Run a server of the bus that waits for one replica."""
    log = await log_type.connect(primary.url, bus, acknowledgement=Acknowledgement(1), timeout_ms=TIMEOUT_MS)
    sequencer = Sequencer(log, GuardedClock(), cross_check=CROSS_CHECK, idempotency_window_ms=WEEK_MS, checkpoint=checkpoint)
    await sequencer.start()
    try:
        yield sequencer
    finally:
        await sequencer.stop()
        await log.close()


class PausingLog(RedisLog):
    """A log that stops after the next read of single events, if `pauses`, until `go_on`."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.pauses = False
        self.is_paused = asyncio.Event()
        self.go_on = asyncio.Event()

    async def read_many(self, sequence_numbers: Sequence[int]) -> dict[int, Record]:
        """See EventLog."""
        records = await super().read_many(sequence_numbers)
        if self.pauses:
            self.pauses = False
            self.is_paused.set()
            await self.go_on.wait()
        return records


def registry(sequencer: Sequencer) -> BusRegistry:
    """Return a registry with one bus."""

    async def opener(name: str) -> Sequencer:
        return sequencer

    async def exists(name: str) -> bool:
        return True

    return BusRegistry(opener, exists)


def fact(bus: str, value: object = "delivered") -> PublishEvent:
    """Return the command to publish a fact."""
    envelope = fact_envelope("order.status", value)
    envelope.event_id = new_event_id()
    admit(envelope, bus, ALL_PAYLOADS)
    return PublishEvent(envelope)


async def retry(sequencer: Sequencer, command: Command) -> CommittedAnswer:
    """Repeat a request until it is answered: the replica may be slow, or may have to connect again."""
    while isinstance(result := await execute(sequencer, repeat_command(command)), ServiceError):
        assert "LOG_UNAVAILABLE" == reason(result)
    return result


async def refused(call: Any) -> str:
    """Await a call that must fail; return the reason."""
    with pytest.raises(ServiceError) as error_info:
        await call
    return reason(error_info.value)


async def test_repeat_is_answered_once_the_replica_has_the_event(tmp_path: Path, bus: str) -> None:
    """While the replica is silent, the first try and each repeat is UNAVAILABLE, at any server. An answer survives a failover."""
    async with replicated_redis(tmp_path) as (primary, replica), serve(primary, bus) as one, serve(primary, bus) as other:
        command = fact(bus)
        replica.pause()
        for server in (one, one, other, other):
            result = await execute(server, repeat_command(command))
            assert "LOG_UNAVAILABLE" == reason(result), result
            assert "retry with the same event_id" in str(result)
        assert 2 == one.head.sequence_number
        replica.proceed()
        result = await retry(other, command)
        assert result.record is not None
        primary.process.kill()
        plain: Any = redis.asyncio.Redis(port=replica.port)
        async with plain:
            await plain.execute_command("REPLICAOF", "NO", "ONE")
        promoted = await RedisLog.connect(replica.url, bus)
        assert {2: result.record} == await promoted.read_many([2])
        await promoted.close()


async def test_reads_show_what_the_replica_has(tmp_path: Path, bus: str) -> None:
    """Reads of events and of the state are UNAVAILABLE while they would show an event that the replica lacks; the status is not."""
    async with replicated_redis(tmp_path) as (primary, replica), serve(primary, bus) as one, serve(primary, bus) as other:
        command = fact(bus)
        replica.pause()
        await execute(one, repeat_command(command))
        await other.wait_for(2, 10_000)
        for server in (one, other):
            events, projections = (
                EventServicer(registry(server)),
                ProjectionServicer(registry(server), new_supervisor(), Quotas(QuotaLimits())),
            )
            event_id = command.envelope.event_id
            assert "LOG_UNAVAILABLE" == await refused(events.GetEvent(GetEventRequest(event_id=event_id), CONTEXT))
            assert "LOG_UNAVAILABLE" == await refused(events.GetEvent(GetEventRequest(sequence_number=2), CONTEXT))
            assert "LOG_UNAVAILABLE" == await refused(events.ListEvents(ListEventsRequest(), CONTEXT))
            assert "LOG_UNAVAILABLE" == await refused(projections.GetProjection(GetProjectionRequest(subject="order/1"), CONTEXT))
            assert 2 == (await projections.GetStatus(GetStatusRequest(), CONTEXT)).head_sequence_number
        replica.proceed()
        events = EventServicer(registry(other))
        assert isinstance(await retry(other, command), CommittedAnswer)
        response = await events.GetEvent(GetEventRequest(event_id=command.envelope.event_id), CONTEXT)
        assert 2 == GetEventResponse.FromString(response.content).envelope.sequence_number


async def test_callers_of_a_contest_wait_for_the_replica(tmp_path: Path, bus: str) -> None:
    """A caller that waits for a contest hears no decision that the replica lacks, whichever server closed the contest."""
    async with replicated_redis(tmp_path) as (primary, replica), serve(primary, bus) as one, serve(primary, bus) as other:
        await retry(one, DeployRuleSet(new_event_id(), compile_cached(TEXT), TEXT))
        await retry(one, ActivateRuleSet(new_event_id(), "refunds", 1, None))
        cited = (await retry(one, fact(bus))).answer
        assert isinstance(cited, EventAnswer)
        envelope = proposal_envelope([cited.envelope])
        envelope.event_id = new_event_id()
        admit(envelope, bus, ALL_PAYLOADS)
        proposal = SubmitProposal(ProposalView(envelope))
        replica.pause()
        assert "LOG_UNAVAILABLE" == reason(await execute(one, repeat_command(proposal)))
        results = await asyncio.gather(*(execute(server, repeat_command(proposal)) for server in (one, other)))
        assert ["LOG_UNAVAILABLE"] * 2 == [reason(result) for result in results]
        replica.proceed()
        result = await retry(other, proposal)
        assert isinstance(result.answer, EventAnswer)
        assert proposal.envelope.event_id == result.answer.envelope.decision.proposal_id


async def test_a_lost_decision_is_not_answered(tmp_path: Path, bus: str) -> None:
    """A caller that waits for a decision hears none that a failover has lost, although the event in its place is confirmed."""
    async with replicated_redis(tmp_path) as (primary, replica), serve(primary, bus, log_type=PausingLog) as one:
        log = one.log
        assert isinstance(log, PausingLog)
        await retry(one, DeployRuleSet(new_event_id(), compile_cached(TEXT_AT_ONCE), TEXT_AT_ONCE))
        await retry(one, ActivateRuleSet(new_event_id(), "refunds", 1, None))
        cited = (await retry(one, fact(bus))).answer
        assert isinstance(cited, EventAnswer)
        await replica.stand_alone()
        envelope = proposal_envelope([cited.envelope])
        envelope.event_id = new_event_id()
        admit(envelope, bus, ALL_PAYLOADS)
        assert "LOG_UNAVAILABLE" == reason(await execute(one, SubmitProposal(ProposalView(envelope))))
        (decision_id,) = one.replica.state.decisions
        lost = one.head.sequence_number

        log.pauses = True
        request = WaitDecisionRequest(decision_id=decision_id).SerializeToString()
        waiting = asyncio.ensure_future(WaitDecision(registry(one)).wait_decision(request, CONTEXT))
        await log.is_paused.wait()
        await primary.take_contents_of(replica)
        await replica.follow(primary)
        async with serve(primary, bus) as other:
            while other.head.sequence_number <= lost:
                await retry(other, fact(bus))
        await one.read_on()
        log.go_on.set()
        with pytest.raises(ServiceError, match="a failover has lost events that were not confirmed, and the answer may rest on them"):
            await waiting


async def test_refusals_rest_on_what_the_replica_has(tmp_path: Path, bus: str) -> None:
    """An answer that appends nothing is UNAVAILABLE, too, while the replica lacks events that it rests on."""
    async with replicated_redis(tmp_path) as (primary, replica), serve(primary, bus) as one:
        begin = BeginExecution(new_event_id(), EXECUTOR, 1_000)
        await retry(one, fact(bus))
        assert "DECISION_NOT_FOUND" == reason(await execute(one, begin))
        replica.pause()
        assert "LOG_UNAVAILABLE" == reason(await execute(one, fact(bus)))
        assert "LOG_UNAVAILABLE" == reason(await execute(one, begin))


async def test_checkpoint_notes_a_late_confirmation(tmp_path: Path, bus: str) -> None:
    """An event that the replica confirms only for a repeated request is in the checkpoint when that request is answered."""
    async with replicated_redis(tmp_path) as (primary, replica):
        checkpoint = Checkpoint(tmp_path / "checkpoint.json")
        async with serve(primary, bus, checkpoint) as one:
            command = fact(bus)
            replica.pause()
            assert "LOG_UNAVAILABLE" == reason(await execute(one, repeat_command(command)))
            assert one.head != Checkpoint(checkpoint.path).head_of(bus)
            replica.proceed()
            await retry(one, command)
            assert one.head == Checkpoint(checkpoint.path).head_of(bus)


async def test_checkpoint_holds_what_was_acknowledged(tmp_path: Path, bus: str) -> None:
    """An event that the replica does not have is not in the checkpoint: its loss is no loss of an acknowledged event."""
    async with replicated_redis(tmp_path) as (primary, replica):
        async with serve(primary, bus, Checkpoint(tmp_path / "checkpoint.json")) as one:
            await retry(one, fact(bus))
            acknowledged = one.head
            replica.pause()
            assert "LOG_UNAVAILABLE" == reason(await execute(one, fact(bus)))
            assert acknowledged.sequence_number + 1 == one.head.sequence_number
        assert acknowledged == Checkpoint(tmp_path / "checkpoint.json").head_of(bus)
        replica.proceed()
