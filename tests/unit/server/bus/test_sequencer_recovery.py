"""The sequencer after bugs, during a long outage of the store, and after events that cannot be applied. In virtual time."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Container
from typing import Any, cast

import pytest
from gavel.v1.arbitration_service_pb2 import BatchSubmitProposalsResponse
from gavel.v1.envelope_pb2 import Envelope
from gavel_rules.commands import AttemptRefusal, BeginExecution, Command, SubmitProposal
from gavel_rules.events.arbiter_versions import ARBITER_VERSION, LATEST
from gavel_rules.events.kinds import FACT
from gavel_rules.events.proposal_view import ProposalView
from gavel_server.bus.batch.pending_append import UNKNOWN_ANSWER_SECONDS
from gavel_server.bus.request import CommittedAnswer
from gavel_server.bus.sequencer import Sequencer
from gavel_server.errors import ServiceError
from gavel_server.log import Entry, EventLog, HeadMovedError, LogUnavailableError, OutcomeUnknownError, Record
from gavel_server.services.batches.answers import BatchAnswers
from google.rpc import code_pb2

from tests.simulation.virtual_time import run_virtually
from tests.support.driver import EXECUTOR, proposal_envelope
from tests.support.entries import rechain
from tests.support.simulation.servers import Servers, execute, reason, record_event, repeat_command, with_servers

AWAY = LogUnavailableError("connection refused")


async def _write(servers: Servers, event: Envelope) -> None:
    """Append an event as another build might."""
    events = await servers.events()
    event.sequence_number = len(events) + 1
    event.bus = events[0].bus
    event.recorded_at.FromMilliseconds(servers.now_ms())
    record = rechain(event.bus, [*events, event])[-1]
    entry = Entry(record.sequence_number, record.envelope, record.chain_hash, event.event_id, "")
    await servers.log.append(await servers.log.head(), [entry], servers.now_ms(), [])


# A long outage of the store


@with_servers
async def test_callers_get_an_error_if_the_outcome_stays_unknown(servers: Servers) -> None:
    """If an outcome stays unknown, all callers get an error, also those of commands decided on top of it."""
    sequencer, log = await servers.start()
    log.pause_seconds = 0.01
    results: list[CommittedAnswer | ServiceError] = []
    for number in range(200):
        sequencer.submit(servers.fact(number), results.append)
    await asyncio.sleep(0.005)
    log.errors_before, log.head_error = [OutcomeUnknownError("lost request")], AWAY
    await asyncio.sleep(UNKNOWN_ANSWER_SECONDS + 2)
    assert ["LOG_UNAVAILABLE"] * 200 == [reason(result) for result in results]
    log.head_error = None
    await asyncio.sleep(2)
    await record_event(sequencer, servers.fact())
    await servers.prove()


@pytest.mark.parametrize("was_lost", ["request", "answer"])
def test_reads_are_served_while_the_store_is_unavailable(was_lost: str) -> None:
    """While an outcome stays unknown the committed state can be read; afterwards repeated requests are answered from the log."""

    async def main() -> None:
        servers = Servers()
        sequencer, log = await servers.start()
        log.pause_seconds = 0.01
        digest = (await sequencer.settled_state()).digest()
        results: list[CommittedAnswer | ServiceError] = []
        facts = [servers.fact(number) for number in range(200)]
        for fact in facts:
            sequencer.submit(repeat_command(fact), results.append, fact.envelope.event_id)
        await asyncio.sleep(0.005)
        (log.errors_before if was_lost == "request" else log.errors_after).append(OutcomeUnknownError("lost"))
        log.head_error = AWAY
        assert digest == (await asyncio.wait_for(sequencer.settled_state(), UNKNOWN_ANSWER_SECONDS + 2)).digest()
        assert ["LOG_UNAVAILABLE"] * 200 == [reason(result) for result in results]
        await asyncio.sleep(60)
        assert (digest, 1) == ((await asyncio.wait_for(sequencer.settled_state(), 1)).digest(), sequencer.head.sequence_number)
        log.head_error = None
        await asyncio.sleep(2)
        assert await log.head() == sequencer.head
        for fact in facts:
            assert fact.envelope.event_id == (await record_event(sequencer, repeat_command(fact))).event_id
        assert 201 == len(await servers.events())
        await servers.prove()

    run_virtually(main())


@with_servers
async def test_stop_while_the_store_is_unavailable(servers: Servers) -> None:
    """A server that stops while an outcome is unknown answers its callers and ends."""
    sequencer, log = await servers.start()
    log.errors_before, log.head_error = [OutcomeUnknownError("lost request")], AWAY
    task = asyncio.create_task(execute(sequencer, servers.fact()))
    await asyncio.sleep(1)
    await asyncio.wait_for(sequencer.stop(), 10)
    assert "LOG_UNAVAILABLE" == reason(await task)
    assert 1 == (await asyncio.wait_for(sequencer.settled_state(), 1)).head


class HaltingLog:
    """A log that gives two events at each read, and fails in place of the reads of `failures`, counted from 0."""

    def __init__(self, log: EventLog, failures: Container[int]) -> None:
        self.first_numbers: list[int] = []  # of each read
        self._log = log
        self._failures = failures

    async def read(self, from_sequence_number: int, to_sequence_number: int, limit: int = 1000) -> list[Record]:
        """Return two events, or fail."""
        self.first_numbers.append(from_sequence_number)
        if len(self.first_numbers) - 1 in self._failures:
            raise AWAY
        return await self._log.read(from_sequence_number, to_sequence_number, min(limit, 2))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)


@with_servers
async def test_start_goes_on_reading_where_a_read_failed(servers: Servers) -> None:
    """A start on a log whose store fails now and then reads no event twice, and has the state of the log."""
    writer, _ = await servers.start()
    for number in range(8):
        await record_event(writer, servers.fact(number))
    log = HaltingLog(servers.log, {1, 3, 4, 6})
    reader, _ = await servers.start(log=cast(EventLog, log))
    assert [1, 3, 3, 5, 5, 5, 7, 7, 9] == log.first_numbers
    assert (await writer.settled_state()).digest() == (await reader.settled_state()).digest()
    await servers.prove()


@with_servers
async def test_start_fails_if_the_store_stays_away(servers: Servers) -> None:
    """A start fails after three reads in turn without an event."""
    writer, _ = await servers.start()
    for number in range(8):
        await record_event(writer, servers.fact(number))
    log = HaltingLog(servers.log, range(2, 100))
    with pytest.raises(LogUnavailableError, match="connection refused"):
        await servers.start(log=cast(EventLog, log))
    assert [1, 3, 5, 5, 5] == log.first_numbers
    await servers.prove()


# Bugs


class BrokenPacing:
    """The clock that paces a sequencer. While it is `broken`, reading it fails as soon as a batch has changed the state."""

    def __init__(self) -> None:
        self.broken = False
        self.failures = 0
        self.sequencer: Sequencer | None = None

    def read(self) -> float:
        """Return the time."""
        if self.broken and self.sequencer is not None and self.sequencer.replica.state.has_uncommitted_changes:
            self.failures += 1
            raise RuntimeError("a bug in planning")
        return asyncio.get_running_loop().time()


@with_servers
async def test_unexpected_error_of_an_append(servers: Servers) -> None:
    """An error that no log may raise is answered INTERNAL with an id, and the bus goes on from what the log holds."""
    sequencer, log = await servers.start()
    for faults in (log.errors_before, log.errors_after):
        faults.append(RuntimeError("a bug in the log"))
        failed = await execute(sequencer, servers.fact())
        assert "INTERNAL" == reason(failed)
        assert re.search(r"\b[0-9a-f]{32}\b", str(failed))
        await record_event(sequencer, servers.fact())
    assert 4 == (await asyncio.wait_for(sequencer.settled_state(), 10)).head
    await servers.prove()


@with_servers
async def test_failed_batch_is_undone(servers: Servers) -> None:
    """The changes of a batch that fails are undone; the next batch is decided on the log's state."""
    pacing = BrokenPacing()
    sequencer, _ = await servers.start(monotonic=pacing.read)
    pacing.sequencer, pacing.broken = sequencer, True
    assert "INTERNAL" == reason(await execute(sequencer, servers.fact()))
    pacing.broken = False
    assert 1 == pacing.failures
    assert 1 == (await asyncio.wait_for(sequencer.settled_state(), 10)).head
    await record_event(sequencer, servers.fact())
    await servers.prove()


@with_servers
async def test_failing_timer_is_retried_with_pauses(servers: Servers) -> None:
    """A timer that cannot be emitted is tried again with pauses, in which the loop serves others."""
    pacing = BrokenPacing()
    sequencer, _ = await servers.start_with_rules(monotonic=pacing.read)
    pacing.sequencer = sequencer
    fact = await record_event(sequencer, servers.fact())
    await record_event(sequencer, SubmitProposal(ProposalView(servers.admit_envelope(proposal_envelope([fact])))))
    await asyncio.sleep(9)
    pacing.broken = True
    await asyncio.sleep(4)
    assert 2 < pacing.failures < 1_000
    pacing.broken = False
    await asyncio.sleep(2)
    assert "DecisionExpired" == (await servers.events())[-1].event_name


class Poison:
    """An envelope on which every check raises."""

    def __getattr__(self, name: str) -> object:
        raise RecursionError


@with_servers
async def test_failed_check_affects_one_proposal(servers: Servers) -> None:
    """A bug in the checks of one proposal is answered to its caller alone, as INTERNAL with an id."""
    sequencer, _ = await servers.start_with_rules()
    fact = await record_event(sequencer, servers.fact())
    one, two = [proposal_envelope([fact], trace_id=trace_id) for trace_id in ("one", "two")]
    responses: list[bytes] = []
    answers = BatchAnswers("Propose", 3, responses.append)
    sequencer.submit_all(answers.admit([one, cast(Envelope, Poison()), two], sequencer.bus, 0))
    await asyncio.sleep(1)
    results = BatchSubmitProposalsResponse.FromString(responses[0]).results
    assert [code_pb2.OK, code_pb2.INTERNAL, code_pb2.OK] == [result.error.code for result in results]
    assert re.search(r"\b[0-9a-f]{32}\b", results[1].error.message)


# Events of other servers


@with_servers
async def test_upgrade_by_another_server(servers: Servers) -> None:
    """When another build changes the arbiter_version of a bus, this one stops writing at once and serves reads."""
    sequencer, _ = await servers.start()
    upgrade = Envelope(event_id=servers.new_id(), event_category=FACT, trace_id="upgrade", producer=LATEST.system)
    upgrade.fact.arbiter_version_changed.arbiter_version = ARBITER_VERSION + 1
    await _write(servers, upgrade)
    assert "ARBITER_VERSION_NOT_IMPLEMENTED" == reason(await execute(sequencer, servers.fact()))
    assert ARBITER_VERSION + 1 == (await asyncio.wait_for(sequencer.settled_state(), 10)).arbiter_version
    assert 2 == len(await servers.events())
    fact = servers.fact().envelope
    await _write(servers, fact)
    await asyncio.sleep(1)
    assert ["order/1"] == list((await sequencer.settled_state()).store.evidence)
    assert "ARBITER_VERSION_NOT_IMPLEMENTED" == reason(await execute(sequencer, servers.fact()))


@with_servers
async def test_event_that_cannot_be_applied_stops_writes(servers: Servers) -> None:
    """A server that cannot apply an event stops writing, names the event, and serves reads."""
    sequencer, _ = await servers.start()
    digest = (await sequencer.settled_state()).digest()
    deployed = Envelope(event_id=servers.new_id(), event_category=FACT, trace_id="t", producer=LATEST.system)
    deployed.fact.rule_set_deployed.canonical_json = "{}"
    await _write(servers, deployed)
    await asyncio.sleep(1)
    refusal = await execute(sequencer, servers.fact())
    assert "LOG_UNAVAILABLE" == reason(refusal)
    assert "event 2" in str(refusal)
    assert digest == (await asyncio.wait_for(sequencer.settled_state(), 10)).digest()


# Timers


@with_servers
async def test_timer_fires_after_the_clock_is_set(servers: Servers) -> None:
    """On an idle bus a timer is emitted soon after it is due, also if the clock is set forward."""
    sequencer, _ = await servers.start_with_rules()
    fact = await record_event(sequencer, servers.fact())
    await record_event(sequencer, SubmitProposal(ProposalView(servers.admit_envelope(proposal_envelope([fact])))))
    await asyncio.sleep(0.5)
    servers.offset_ms += 10_000
    await asyncio.sleep(2)
    assert "DecisionExpired" == (await servers.events())[-1].event_name


# Deciding ahead of an append


def test_a_start_right_after_the_expiry() -> None:
    """A start that is resolved while the expiry of its decision is being appended is EXPIRED."""

    async def main() -> None:
        servers = Servers()
        sequencer, log = await servers.start_with_rules()
        fact = await record_event(sequencer, servers.fact())
        approval = await record_event(sequencer, SubmitProposal(ProposalView(servers.admit_envelope(proposal_envelope([fact])))))
        servers.offset_ms += 10_000
        log.pause_seconds = 0.01
        sequencer._pacing.limit = 1
        commands: list[Command] = [servers.fact(), *[BeginExecution(approval.event_id, EXECUTOR, 1_000)] * 3]
        _, *attempts = await asyncio.gather(*(execute(sequencer, command) for command in commands))
        answers = [result.answer for result in attempts if isinstance(result, CommittedAnswer)]
        assert ["EXPIRED"] * 3 == [answer.reason_code for answer in answers if isinstance(answer, AttemptRefusal)]

    run_virtually(main())


@with_servers
async def test_commands_behind_timers_are_decided_once(servers: Servers) -> None:
    """Commands that wait for many due timers are decided once, although the append of the timers before them fails meanwhile."""
    sequencer, log = await servers.start_with_rules()
    subjects = [f"order/{number}" for number in range(640)]
    facts = await asyncio.gather(*(record_event(sequencer, servers.fact(subject=subject)) for subject in subjects))
    proposals = [proposal_envelope([fact], subject=fact.subject, trace_id=fact.subject) for fact in facts]
    commands = [SubmitProposal(ProposalView(servers.admit_envelope(proposal))) for proposal in proposals]
    await asyncio.gather(*(record_event(sequencer, command) for command in commands))
    servers.offset_ms += 60_000
    late = [f"order/late-{number}" for number in range(3)]
    results: list[CommittedAnswer | ServiceError] = []
    for subject in late:
        sequencer.submit(servers.fact(subject=subject), results.append)
    log.errors_before.append(HeadMovedError(sequencer.head, sequencer.head))
    while len(results) < len(late):  # noqa: ASYNC110  # in virtual time
        await asyncio.sleep(0.01)
    assert {CommittedAnswer} == {type(result) for result in results}
    assert late == [event.subject for event in await servers.events() if event.subject in late]
    await servers.prove()


def test_evicted_citation_is_read_from_the_log() -> None:
    """A cited event that a commit pushes out of memory during the resolution of its batch is read from the log."""

    async def main() -> None:
        servers = Servers()
        sequencer, log = await servers.start_with_rules()
        fact = await record_event(sequencer, servers.fact())
        sequencer.recent_events.citable_max = 5
        log.pause_seconds = 0.01
        sequencer._pacing.limit = 5
        causes = [servers.fact(subject=f"order/other-{number}") for number in range(5)]
        proposal = SubmitProposal(ProposalView(servers.admit_envelope(proposal_envelope([fact]))))
        caused = servers.effect_of(causes[0].envelope.event_id)
        commands: list[Command] = [*causes, proposal, caused]
        results = await asyncio.gather(*(execute(sequencer, command) for command in commands))
        assert fact.sequence_number not in sequencer.recent_events.citable
        assert {CommittedAnswer} == {type(result) for result in results}
        decision = next(event.decision for event in await servers.events() if event.HasField("decision"))
        assert "" == decision.reason_code
        await servers.prove()

    run_virtually(main())
