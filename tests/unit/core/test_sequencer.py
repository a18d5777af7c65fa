"""The sequencer: what callers hear, when, and what stands in the log afterwards. On a loop of virtual time: nothing here waits.

Concurrency, faults and races in the large are the simulation's; these are the promises one by one.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from gavel.v1 import decision_pb2, error_pb2, fact_pb2
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.execution_pb2 import Execution
from gavel.v1.fact_pb2 import CrossCheck
from gavel_rules import reasons
from gavel_rules.commands import (
    ActivateRuleSet,
    BeginExecution,
    Command,
    DeployRuleSet,
    NotStarted,
    PublishEvent,
    Recorded,
    ReportExecution,
    Started,
    SubmitProposal,
)
from gavel_server import sequencer as sequencer_module
from gavel_server.admission import admit
from gavel_server.checkpoint import Checkpoint
from gavel_server.clock import GuardedClock
from gavel_server.errors import ServiceError
from gavel_server.log import Entry, EventLog, Head, LogCorruptError, LogUnavailableError, OutcomeUnknownError, chain
from gavel_server.log.memory import MemoryLog
from gavel_server.planning import Completed
from gavel_server.sequencer import Sequencer

from tests.faults import FaultRates, FaultyLog
from tests.simulation.virtual import run_virtually
from tests.unit.core.driver import (
    ALL_PAYLOADS,
    BUS,
    EXECUTOR,
    OTHER_EXECUTOR,
    START_MS,
    SUCCESS,
    WEEK_MS,
    compiled,
    document,
    event_id,
    fact_envelope,
    observation_envelope,
    proposal_envelope,
    rechained,
    replayed,
)

CROSS_CHECK = CrossCheck(mode=fact_pb2.CROSS_CHECK_MODE_ALWAYS)
TEXT = document()


class Counting:
    """A log that counts appends and can be made to fail: `faults` are raised by the next appends, before or after applying."""

    def __init__(self, log: EventLog) -> None:
        self.bus = log.bus
        self.appended: list[int] = []
        self.before: list[Exception] = []
        self.after: list[Exception] = []
        self.broken: Exception | None = None
        self.pause_seconds = 0.0
        self._log = log

    async def append(self, expected: Head, entries: Sequence[Entry], recorded_at_ms: int, check_ids: Sequence[str]) -> None:
        """Append, or fail as told."""
        await asyncio.sleep(self.pause_seconds)
        if self.before:
            raise self.before.pop(0)
        await self._log.append(expected, entries, recorded_at_ms, check_ids)
        self.appended.append(len(entries))
        if self.after:
            raise self.after.pop(0)

    async def head(self) -> Head:
        """The head, or the error that was told."""
        if self.broken is not None:
            raise self.broken
        return await self._log.head()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)


class Servers:
    """Servers on one log in memory, on one clock."""

    def __init__(self) -> None:
        self.offset_ms = 0
        self.log = MemoryLog(BUS, self.now_ms, WEEK_MS)
        self._ids = 0

    def now_ms(self) -> int:
        """The time of log and servers."""
        return START_MS + self.offset_ms + int(asyncio.get_running_loop().time() * 1000)

    async def start(
        self, *, skew_ms: int = 0, checkpoint: Checkpoint | None = None, log: EventLog | None = None
    ) -> tuple[Sequencer, Counting]:
        """Start a server."""
        counting = Counting(log or self.log)
        clock = GuardedClock(lambda: self.now_ms() + skew_ms)
        sequencer = Sequencer(counting, clock, cross_check=CROSS_CHECK, idempotency_window_ms=WEEK_MS, checkpoint=checkpoint)
        await sequencer.start()
        return sequencer, counting

    async def governed(self) -> tuple[Sequencer, Counting]:
        """Start a server and put the default rules in force."""
        sequencer, counting = await self.start()
        await sequencer.execute(DeployRuleSet(self.new_id(), compiled(TEXT), TEXT))
        await sequencer.execute(ActivateRuleSet(self.new_id(), "refunds", 1, None))
        return sequencer, counting

    def new_id(self) -> str:
        """A fresh event_id."""
        self._ids += 1
        return event_id(self._ids)

    def admitted(self, envelope: Envelope) -> Envelope:
        """As admission hands it on, with a counted id where it has none."""
        envelope.event_id = envelope.event_id or self.new_id()
        admit(envelope, BUS, ALL_PAYLOADS)
        return envelope

    def fact(self, value: object = "delivered", **changes: Any) -> PublishEvent:
        """A fact to publish."""
        return PublishEvent(self.admitted(fact_envelope("order.status", value, **changes)))

    def caused(self, cause: str, **changes: Any) -> PublishEvent:
        """A fact with a cause and no trace of its own."""
        envelope = fact_envelope("order.note", "x", trace_id="", **changes)
        envelope.causation_id = cause
        return PublishEvent(self.admitted(envelope))

    async def events(self) -> list[Envelope]:
        """The log."""
        return [Envelope.FromString(record.envelope) for record in await self.log.read(1, 10_000, 10_000)]

    async def prove(self) -> None:
        """The log must replay."""
        replayed(BUS, await self.log.read(1, 10_000, 10_000))


Scene = Callable[[Servers], Awaitable[None]]


def scene(test: Scene) -> Callable[[], None]:
    """Run a test on servers of its own in virtual time."""

    def run() -> None:
        async def main() -> None:
            servers = Servers()
            await test(servers)

        run_virtually(main())

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


def again(command: Any) -> Any:
    """The same command, as a caller sends it again."""
    return type(command)(Envelope.FromString(command.envelope.SerializeToString()))


async def tell(sequencer: Sequencer, command: Command) -> Completed | ServiceError:
    """Have a command carried out under its event_id as idempotency key; return the answer or the error."""
    check_id = command.envelope.event_id if isinstance(command, PublishEvent | SubmitProposal | ReportExecution) else ""
    try:
        return await asyncio.wait_for(sequencer.execute(command, check_id), 60)
    except ServiceError as error:
        return error


async def recorded(sequencer: Sequencer, command: Command) -> Envelope:
    """Have a command carried out that must be recorded; return the event that answers it."""
    result = await tell(sequencer, command)
    assert isinstance(result, Completed), result
    assert isinstance(result.answer, Recorded)
    assert result.record is not None
    assert result.answer.envelope == Envelope.FromString(result.record.envelope)
    return result.answer.envelope


def reason(result: Completed | ServiceError) -> str:
    """Why a command failed."""
    assert isinstance(result, ServiceError), result
    return error_pb2.ErrorReason.Name(result.reason).removeprefix("ERROR_REASON_")


# Opening, batches, time


@scene
async def test_a_new_bus_is_opened_once(servers: Servers) -> None:
    """Servers that meet an empty log at the same time open the bus once, with what they were told."""
    started = await asyncio.gather(*(servers.start() for _ in range(3)))
    (opened,) = await servers.events()
    assert (CROSS_CHECK, WEEK_MS) == (opened.fact.bus_opened.cross_check, opened.fact.bus_opened.idempotency_window_ms)
    assert {1} == {sequencer.head.sequence_number for sequencer, _ in started}


@scene
async def test_commands_that_wait_together_are_appended_together(servers: Servers) -> None:
    """Batching comes from load: what comes while an append is under way goes into the next one, in the order in which it came."""
    sequencer, log = await servers.start()
    log.pause_seconds = 0.01
    first = asyncio.create_task(tell(sequencer, servers.fact()))
    await asyncio.sleep(0.001)
    rest = [asyncio.create_task(tell(sequencer, servers.fact(number))) for number in range(20)]
    results = [await task for task in (first, *rest)]
    assert [1, 1, 20] == log.appended
    numbers = [result.record.sequence_number for result in results if isinstance(result, Completed) and result.record]
    assert list(range(2, 23)) == numbers


@scene
async def test_timers_speak_by_themselves(servers: Servers) -> None:
    """On an idle bus an approval expires at its time, without anybody asking."""
    sequencer, _ = await servers.governed()
    fact = await recorded(sequencer, servers.fact())
    await recorded(sequencer, SubmitProposal(servers.admitted(proposal_envelope([fact]))))
    due_ms = servers.now_ms() + 10_000
    await asyncio.sleep(9.9)
    assert "DecisionApproved" == (await servers.events())[-1].event_name
    await asyncio.sleep(0.2)
    last = (await servers.events())[-1]
    assert ("DecisionExpired", True) == (last.event_name, due_ms <= last.recorded_at.ToMilliseconds() <= due_ms + 100)
    await servers.prove()


@scene
async def test_times_never_go_back(servers: Servers) -> None:
    """When the clock is turned back a little, events are dated with the last event's time."""
    sequencer, _ = await servers.start()
    first = await recorded(sequencer, servers.fact())
    servers.offset_ms -= 3_000
    second = await recorded(sequencer, servers.fact())
    assert first.recorded_at == second.recorded_at


@scene
async def test_many_timers_and_a_moved_head_lose_no_command(servers: Servers) -> None:
    """More timers than one commit takes, another server in between: every command that waits is answered all the same."""
    sequencer, _ = await servers.start()
    many = document(conflict_key="string(params.amount)")
    await sequencer.execute(DeployRuleSet(servers.new_id(), compiled(many), many))
    await sequencer.execute(ActivateRuleSet(servers.new_id(), "refunds", 1, None))
    fact = await recorded(sequencer, servers.fact())
    proposals = [SubmitProposal(servers.admitted(proposal_envelope([fact], amount=n + 1, trace_id=f"t{n}"))) for n in range(1_300)]
    await asyncio.gather(*(tell(sequencer, proposal) for proposal in proposals))
    other, _ = await servers.start()
    servers.offset_ms += 10_000
    commands = [servers.fact(number) for number in range(50)]
    results = await asyncio.gather(
        *(tell(server, command) for number, command in enumerate(commands) for server in ((sequencer, other)[number % 2],))
    )
    assert all(isinstance(result, Completed) for result in results)
    expired = [event for event in await servers.events() if event.event_name == "DecisionExpired"]
    assert 1_300 == len(expired)
    await servers.prove()


# Idempotency


@scene
async def test_a_repetition_hears_the_first_answer(servers: Servers) -> None:
    """The same event_id with the same content is answered as the first time, by any server, also after a restart, and appends nothing."""
    sequencer, _ = await servers.governed()
    fact = servers.fact()
    proposal = SubmitProposal(servers.admitted(proposal_envelope([await recorded(sequencer, again(fact))])))
    decision = await recorded(sequencer, again(proposal))
    head = sequencer.head
    other, _ = await servers.start()
    await sequencer.stop()
    late, _ = await servers.start()
    for server in (other, late):
        assert decision == await recorded(server, again(proposal))
        assert fact.envelope.event_id == (await recorded(server, again(fact))).event_id
    assert head == late.head


@scene
async def test_repetitions_at_the_same_time(servers: Servers) -> None:
    """A command that is sent several times at once, to several servers, is recorded once, and all hear the same."""
    one, _ = await servers.governed()
    other, _ = await servers.start()
    fact = servers.fact()
    results = await asyncio.gather(*(tell(server, again(fact)) for server in (one, other, one, other, one)))
    assert 1 == len({result.record for result in results if isinstance(result, Completed)})
    assert 1 == len([event for event in await servers.events() if event.event_id == fact.envelope.event_id])


@scene
async def test_other_content_under_a_known_id_is_refused(servers: Servers) -> None:
    """The same event_id with other content is EVENT_ID_REUSED: in one batch, later, and on another server."""
    sequencer, _ = await servers.start()
    fact = servers.fact()
    other = servers.fact("cancelled")
    other.envelope.event_id = fact.envelope.event_id
    first, second = await asyncio.gather(tell(sequencer, again(fact)), tell(sequencer, again(other)))
    assert isinstance(first, Completed)
    assert "EVENT_ID_REUSED" == reason(second)
    elsewhere, _ = await servers.start()
    assert "EVENT_ID_REUSED" == reason(await tell(elsewhere, again(other)))


@scene
async def test_what_was_refused_may_be_sent_again(servers: Servers) -> None:
    """An event_id whose command was refused stands for nothing yet."""
    sequencer, _ = await servers.start()
    early = servers.fact(occurred_at_ms=START_MS + 60_000)
    assert "INVALID_REQUEST" == reason(await tell(sequencer, again(early)))
    servers.offset_ms += 60_000
    assert early.envelope.event_id == (await recorded(sequencer, again(early))).event_id


@scene
async def test_an_observation_is_recognised_by_a_server_that_tried_it(servers: Servers) -> None:
    """A server that lags decides a repetition, loses the append, and then answers it as what it is."""
    one, _ = await servers.start()
    other, log = await servers.start()
    observation = PublishEvent(servers.admitted(observation_envelope("order.score", 0.5)))
    first = await recorded(one, again(observation))
    log.pause_seconds = 0.01
    assert first == await recorded(other, again(observation))


# Causes


@scene
async def test_an_event_without_a_trace_joins_its_cause(servers: Servers) -> None:
    """The trace is the cause's, whether that stands in the log, in the same batch, or in an append under way."""
    sequencer, log = await servers.start()
    cause = servers.fact(trace_id="the-trace")
    batch = [cause, servers.caused(cause.envelope.event_id)]
    batch.append(servers.caused(batch[1].envelope.event_id))
    results = await asyncio.gather(*(tell(sequencer, command) for command in batch))
    assert all(isinstance(result, Completed) for result in results)
    await recorded(sequencer, servers.caused(cause.envelope.event_id))
    log.pause_seconds = 0.01
    under_way = servers.fact(trace_id="another-trace")
    task = asyncio.create_task(tell(sequencer, under_way))
    await asyncio.sleep(0.005)
    assert "another-trace" == (await recorded(sequencer, servers.caused(under_way.envelope.event_id))).trace_id
    await task
    assert ["the-trace"] * 4 == [event.trace_id for event in (await servers.events())[1:5]]


@scene
async def test_an_event_joins_the_trace_of_a_report_in_its_batch(servers: Servers) -> None:
    """The trace of a report is its decision's; an event that names the report as its cause gets it, even in the same batch."""
    sequencer, _ = await servers.governed()
    fact = await recorded(sequencer, servers.fact())
    approval = await recorded(sequencer, SubmitProposal(servers.admitted(proposal_envelope([fact]))))
    begun = await tell(sequencer, BeginExecution(approval.event_id, EXECUTOR, 5_000))
    assert isinstance(begun, Completed)
    assert isinstance(begun.answer, Started)
    started = begun.answer.envelope.execution
    execution = Execution(decision_id=approval.event_id, execution_id=started.execution_id, status=SUCCESS)
    report = ReportExecution(servers.admitted(Envelope(producer=EXECUTOR, execution=execution)))
    effect = servers.caused(report.envelope.event_id)
    await asyncio.gather(tell(sequencer, report), tell(sequencer, effect))
    assert {"trace-1"} == {event.trace_id for event in (await servers.events())[-2:]}


@scene
async def test_an_unknown_cause_is_refused(servers: Servers) -> None:
    """An event whose cause is not in the log, or was refused in its own batch, is EVENT_NOT_FOUND."""
    sequencer, _ = await servers.start()
    assert "EVENT_NOT_FOUND" == reason(await tell(sequencer, servers.caused(event_id(999))))
    early = servers.fact(occurred_at_ms=START_MS + 60_000)
    refused, orphan = await asyncio.gather(tell(sequencer, early), tell(sequencer, servers.caused(early.envelope.event_id)))
    assert ["INVALID_REQUEST", "EVENT_NOT_FOUND"] == [reason(refused), reason(orphan)]
    assert 1 == len(await servers.events())


# Citing


@scene
async def test_a_server_that_lags_reads_on_before_it_judges_a_citation(servers: Servers) -> None:
    """A proposal that cites what another server has just recorded is not told UNKNOWN_EVENT."""
    one, _ = await servers.governed()
    other, _ = await servers.start()
    fact = await recorded(one, servers.fact())
    decision = await recorded(other, SubmitProposal(servers.admitted(proposal_envelope([fact]))))
    assert decision_pb2.OUTCOME_APPROVED == decision.decision.outcome
    newer = await recorded(one, servers.fact(subject="order/2"))
    ahead = proposal_envelope([newer], subject="order/2", projection_version=newer.sequence_number, trace_id="t2")
    assert "" == (await recorded(other, SubmitProposal(servers.admitted(ahead)))).decision.reason_code
    await servers.prove()


@scene
async def test_citing_what_is_on_its_way(servers: Servers) -> None:
    """A proposal may cite an event of its own batch or of an append under way; the log replays."""
    sequencer, log = await servers.governed()
    log.pause_seconds = 0.01
    for gap_seconds in (0.0, 0.005):
        fact = servers.fact(subject=f"order/{gap_seconds}")
        task = asyncio.create_task(tell(sequencer, again(fact)))
        await asyncio.sleep(gap_seconds)
        proposal = proposal_envelope([], subject=fact.envelope.subject, trace_id=f"t{gap_seconds}")
        cited = proposal.proposal.based_on_events.add()
        cited.event_id, cited.sequence_number = fact.envelope.event_id, sequencer.head.sequence_number + 1
        decision = await recorded(sequencer, SubmitProposal(servers.admitted(proposal)))
        assert decision_pb2.OUTCOME_APPROVED == decision.decision.outcome
        await task
    await servers.prove()


# Decisions that have ended


@scene
async def test_a_start_on_a_server_that_lags(servers: Servers) -> None:
    """A server that has not heard of the approval yet reads on before it answers a start."""
    one, _ = await servers.governed()
    other, _ = await servers.start()
    fact = await recorded(one, servers.fact())
    approval = await recorded(one, SubmitProposal(servers.admitted(proposal_envelope([fact]))))
    begun = await tell(other, BeginExecution(approval.event_id, EXECUTOR, 1_000))
    assert isinstance(begun, Completed)
    assert isinstance(begun.answer, Started)
    refused = await tell(one, BeginExecution(approval.event_id, OTHER_EXECUTOR, 1_000))
    assert isinstance(refused, Completed)
    assert isinstance(refused.answer, NotStarted)
    assert reasons.ALREADY_RUNNING == refused.answer.reason_code


@scene
async def test_a_start_after_the_end_says_how_it_ended(servers: Servers) -> None:
    """An expired approval is EXPIRED for whoever asks, in the very batch in which it expires and long after."""
    sequencer, _ = await servers.governed()
    fact = await recorded(sequencer, servers.fact())
    approval = await recorded(sequencer, SubmitProposal(servers.admitted(proposal_envelope([fact]))))
    servers.offset_ms += 10_000
    start = BeginExecution(approval.event_id, EXECUTOR, 1_000)
    _, at_once = await asyncio.gather(tell(sequencer, servers.fact()), tell(sequencer, start))
    fresh, _ = await servers.start()
    later = [await tell(server, start) for server in (sequencer, fresh)]
    said = [result.answer for result in (at_once, *later) if isinstance(result, Completed)]
    assert [reasons.EXPIRED] * 3 == [answer.reason_code for answer in said if isinstance(answer, NotStarted)]


# Faults of the log


@scene
async def test_an_unknown_outcome_is_found_out(servers: Servers) -> None:
    """Whether an append whose answer was lost is in or not, its callers hear once, and the event stands in the log once."""
    sequencer, log = await servers.start()
    log.after = [OutcomeUnknownError("lost answer")]
    first = await recorded(sequencer, servers.fact())
    log.before = [OutcomeUnknownError("lost request")]
    second = await recorded(sequencer, servers.fact())
    assert [2, 3] == [first.sequence_number, second.sequence_number]
    assert 3 == len(await servers.events())


@scene
async def test_an_outage_is_said_and_passes(servers: Servers) -> None:
    """While the log is away commands hear LOG_UNAVAILABLE; when it is back they go through, the same ones too."""
    sequencer, log = await servers.start()
    log.before = [LogUnavailableError("connection refused")]
    fact = servers.fact()
    assert "LOG_UNAVAILABLE" == reason(await tell(sequencer, again(fact)))
    log.broken = LogUnavailableError("connection refused")
    await asyncio.sleep(1)
    assert "LOG_UNAVAILABLE" == reason(await tell(sequencer, again(fact)))
    log.broken = None
    await asyncio.sleep(1)
    assert fact.envelope.event_id == (await recorded(sequencer, again(fact))).event_id


@scene
async def test_timers_speak_after_an_outage(servers: Servers) -> None:
    """A timer that fell due while the log was away speaks when it is back, on an idle bus too."""
    sequencer, log = await servers.governed()
    fact = await recorded(sequencer, servers.fact())
    await recorded(sequencer, SubmitProposal(servers.admitted(proposal_envelope([fact]))))
    log.broken = LogUnavailableError("connection refused")
    log.before = [LogUnavailableError("connection refused")] * 3
    await asyncio.sleep(30)
    log.broken, log.before = None, []
    await asyncio.sleep(5)
    assert "DecisionExpired" == (await servers.events())[-1].event_name


@scene
async def test_a_log_that_contradicts_itself_is_not_written(servers: Servers) -> None:
    """A corrupt log is refused for good, and readers still see the last good state, also when an outcome was in doubt."""
    sequencer, log = await servers.start()
    digest = (await sequencer.settled()).digest()
    log.before, log.broken = [OutcomeUnknownError("lost request")], LogCorruptError("hash chain broken")
    assert "LOG_UNAVAILABLE" == reason(await tell(sequencer, servers.fact()))
    log.broken = None
    await asyncio.sleep(5)
    assert "LOG_UNAVAILABLE" == reason(await tell(sequencer, servers.fact()))
    assert digest == (await asyncio.wait_for(sequencer.settled(), 10)).digest()
    assert 1 == len(await servers.events())


async def _append(log: MemoryLog, records: Sequence[Any], servers: Servers) -> None:
    for record in records:
        head = await log.head()
        event = Envelope.FromString(record.envelope)
        entry = Entry(record.sequence_number, record.envelope, record.chain_hash, event.event_id, "")
        await log.append(head, [entry], servers.now_ms(), [])


@pytest.mark.parametrize("loss", ["shorter", "other"])
def test_a_log_that_lost_acknowledged_events_is_not_written(loss: str) -> None:
    """A log that is behind what was acknowledged, or has something else there, is LOG_REGRESSED: nothing is ever appended to it."""

    async def main() -> None:
        servers = Servers()
        sequencer, counting = await servers.start()
        await recorded(sequencer, servers.fact())
        await recorded(sequencer, servers.fact("later"))
        kept = (await servers.log.read(1, 2, 10))[:2]
        lost = MemoryLog(BUS, servers.now_ms, WEEK_MS)
        if loss == "other":
            events = await servers.events()
            events[2].event_name = "SomethingElse"
            kept = rechained(BUS, events)
        await _append(lost, kept, servers)
        counting._log = lost
        await asyncio.sleep(1)
        result = await tell(sequencer, servers.fact())
        if loss == "shorter":
            assert "LOG_REGRESSED" == reason(result)
        else:
            assert isinstance(result, ServiceError)
            assert "LOG_REGRESSED" == reason(await tell(sequencer, servers.fact()))
        assert len(kept) == (await lost.head()).sequence_number

    run_virtually(main())


def test_a_loss_is_noticed_after_a_restart(tmp_path: Path) -> None:
    """The checkpoint outside of the log says what had been acknowledged: a server that starts on less does not write."""

    async def main() -> None:
        servers = Servers()
        path = tmp_path / "checkpoint.json"
        sequencer, _ = await servers.start(checkpoint=Checkpoint(path))
        await recorded(sequencer, servers.fact())
        await recorded(sequencer, servers.fact())
        await sequencer.stop()
        lost = MemoryLog(BUS, servers.now_ms, WEEK_MS)
        await _append(lost, await servers.log.read(1, 2), servers)
        restarted, _ = await servers.start(checkpoint=Checkpoint(path), log=lost)
        assert "LOG_REGRESSED" == reason(await tell(restarted, servers.fact()))
        whole, _ = await servers.start(checkpoint=Checkpoint(path))
        await recorded(whole, servers.fact())

    asyncio.run(main())


@scene
async def test_a_tampered_log_does_not_start(servers: Servers) -> None:
    """A server that reads a log whose chain breaks does not serve it."""
    await servers.start()
    events = await servers.events()
    records = rechained(BUS, events)
    bad = MemoryLog(BUS, servers.now_ms, WEEK_MS)
    await _append(bad, [records[0]._replace(chain_hash=chain(b"", b""))], servers)
    with pytest.raises(LogCorruptError, match="hash chain breaks at event 1"):
        await servers.start(log=bad)


@scene
async def test_semantics_that_this_build_does_not_have(servers: Servers) -> None:
    """A bus of another arbiter_version can be read, and is not written."""
    await servers.start()
    events = await servers.events()
    events[0].fact.bus_opened.arbiter_version = 2
    newer = MemoryLog(BUS, servers.now_ms, WEEK_MS)
    await _append(newer, rechained(BUS, events), servers)
    sequencer, _ = await servers.start(log=newer)
    assert 2 == (await sequencer.settled()).arbiter_version
    assert "ARBITER_VERSION_NOT_IMPLEMENTED" == reason(await tell(sequencer, servers.fact()))


# The clock


@scene
async def test_a_clock_that_is_off_does_not_write(servers: Servers) -> None:
    """A server whose clock differs from the store's by more than a second answers CLOCK_SKEW, and reads go on."""
    await servers.start()
    sequencer, _ = await servers.start(skew_ms=1_500)
    assert "CLOCK_SKEW" == reason(await tell(sequencer, servers.fact()))
    assert 1 == (await sequencer.settled()).head


@scene
async def test_a_clock_far_behind_the_log_does_not_write(servers: Servers) -> None:
    """A clock that was turned back by more than five seconds writes again when it has caught up."""
    sequencer, _ = await servers.start()
    await recorded(sequencer, servers.fact())
    servers.offset_ms -= 6_000
    assert "CLOCK_SKEW" == reason(await tell(sequencer, servers.fact()))
    await asyncio.sleep(1.1)
    await recorded(sequencer, servers.fact())


# Limits and the end


@scene
async def test_a_full_queue_says_so(servers: Servers) -> None:
    """Beyond the queue's limit a command is refused at once with QUEUE_FULL; what is queued is answered."""
    sequencer, log = await servers.start()
    log.pause_seconds = 0.01
    limit = sequencer_module.QUEUE_COMMANDS_MAX
    heard: list[Completed | ServiceError] = []
    fact = servers.fact()
    for number in range(limit + 1):
        copy = again(fact)
        copy.envelope.event_id = event_id(10_000 + number)
        if number == limit:
            with pytest.raises(ServiceError) as caught:
                sequencer.submit(copy, heard.append)
            assert "QUEUE_FULL" == reason(caught.value)
        else:
            sequencer.submit(copy, heard.append)
    await asyncio.sleep(60)
    assert limit == len(heard)
    assert all(isinstance(result, Completed) for result in heard)


@scene
async def test_stopping_commits_what_is_queued(servers: Servers) -> None:
    """A server that stops answers everything that it has taken, and takes no more."""
    sequencer, log = await servers.start()
    log.pause_seconds = 0.01
    tasks = [asyncio.create_task(tell(sequencer, servers.fact(number))) for number in range(30)]
    await asyncio.sleep(0.001)
    stopping = asyncio.create_task(sequencer.stop())
    await asyncio.sleep(0)
    assert "SHUTTING_DOWN" == reason(await tell(sequencer, servers.fact()))
    assert {Completed} == {type(result) for result in await asyncio.gather(*tasks)}
    await stopping
    assert 31 == len(await servers.events())


@scene
async def test_one_caller_s_mistake_is_his_own(servers: Servers) -> None:
    """A callback that raises keeps nobody else from his answer."""
    sequencer, _ = await servers.start()
    heard: list[Completed | ServiceError] = []

    def broken(result: Completed | ServiceError) -> None:
        raise RuntimeError("a caller's own bug")

    sequencer.submit(servers.fact(), broken)
    sequencer.submit(servers.fact(), heard.append)
    await asyncio.sleep(1)
    assert 1 == len(heard)


@scene
async def test_readers_see_the_committed_state_only(servers: Servers) -> None:
    """A reader that comes during an append waits for it, and gets the state after it, also when nothing follows."""
    sequencer, log = await servers.start()
    log.pause_seconds = 0.01
    task = asyncio.create_task(tell(sequencer, servers.fact()))
    await asyncio.sleep(0.005)
    state = await asyncio.wait_for(sequencer.settled(), 10)
    assert 2 == state.head
    await task


@scene
async def test_waiting_for_a_number(servers: Servers) -> None:
    """Whoever waits for a number goes on when the state has come so far, by whichever server; or hears that it has not."""
    one, _ = await servers.start()
    other, _ = await servers.start()
    waiting = asyncio.create_task(other.wait_for(3, 10_000))
    await recorded(one, servers.fact())
    await recorded(one, servers.fact())
    await waiting
    assert 3 == other.head.sequence_number
    with pytest.raises(ServiceError) as caught:
        await other.wait_for(4, 100)
    assert "PROJECTION_BEHIND" == reason(caught.value)


@scene
async def test_faults_of_every_kind_at_once(servers: Servers) -> None:
    """Under constant faults every command comes through in the end, once, when its caller keeps asking."""
    rates = FaultRates(applied_but_unknown=0.2, lost_and_unknown=0.2, unavailable=0.2)
    first, _ = await servers.start()
    sequencer, _ = await servers.start(log=FaultyLog(servers.log, random.Random(1), rates))
    facts = [servers.fact(number) for number in range(60)]

    async def persist(fact: PublishEvent) -> None:
        for _ in range(100):
            if isinstance(await tell(sequencer, again(fact)), Completed):
                return
            await asyncio.sleep(0.1)

    await asyncio.gather(*(persist(fact) for fact in facts))
    assert sorted(fact.envelope.event_id for fact in facts) == sorted(event.event_id for event in (await servers.events())[1:])
    await first.wait_for(61, 10_000)
    assert (await first.settled()).digest() == (await sequencer.settled()).digest()
    await servers.prove()


@scene
async def test_an_effect_does_not_overtake_its_cause(servers: Servers) -> None:
    """Where an append under way loses to another server's, what names its events as causes waits until they are in."""
    sequencer, log = await servers.start()
    other, _ = await servers.start()
    log.pause_seconds = 0.01
    cause = servers.fact(trace_id="the-trace")
    commands = [cause, *(servers.fact(number) for number in range(200)), servers.caused(cause.envelope.event_id)]
    tasks = [asyncio.create_task(tell(sequencer, command)) for command in commands]
    await asyncio.sleep(0.005)
    await recorded(other, servers.fact())
    results = await asyncio.gather(*tasks)
    assert {Completed} == {type(result) for result in results}, [result for result in results if isinstance(result, ServiceError)]
