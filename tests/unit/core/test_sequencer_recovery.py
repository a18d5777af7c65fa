"""The sequencer after what should never happen: bugs, a store that stays away, events that cannot be applied. In virtual time."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import pytest
from gavel.v1.envelope_pb2 import Envelope
from gavel_rules.commands import BeginExecution, Command, NotStarted, SubmitProposal
from gavel_rules.events import ARBITER_VERSION, FACT, SYSTEM_PRODUCER
from gavel_server.bus import sequencer as sequencer_module
from gavel_server.bus.flight import UNKNOWN_ANSWER_SECONDS
from gavel_server.bus.planning import Completed, Pending, Planning
from gavel_server.errors import ServiceError
from gavel_server.log import Entry, LogUnavailableError, OutcomeUnknownError

from tests.simulation.virtual import run_virtually
from tests.unit.core.driver import EXECUTOR, proposal_envelope, rechained
from tests.unit.core.servers import Servers, again, reason, recorded, scene, tell

AWAY = LogUnavailableError("connection refused")


async def _write(servers: Servers, event: Envelope) -> None:
    """Append an event as another build might."""
    events = await servers.events()
    event.sequence_number = len(events) + 1
    event.bus = events[0].bus
    event.recorded_at.FromMilliseconds(servers.now_ms())
    record = rechained(event.bus, [*events, event])[-1]
    entry = Entry(record.sequence_number, record.envelope, record.chain_hash, event.event_id, "")
    await servers.log.append(await servers.log.head(), [entry], servers.now_ms(), [])


# A store that stays away


@scene
async def test_nobody_waits_for_ever_for_an_outcome(servers: Servers) -> None:
    """While an outcome stays unknown everybody hears so in the end, those too whose commands were decided on top of it."""
    sequencer, log = await servers.start()
    log.pause_seconds = 0.01
    heard: list[Completed | ServiceError] = []
    for number in range(200):
        sequencer.submit(servers.fact(number), heard.append)
    await asyncio.sleep(0.005)
    log.before, log.broken = [OutcomeUnknownError("lost request")], AWAY
    await asyncio.sleep(UNKNOWN_ANSWER_SECONDS + 2)
    assert ["LOG_UNAVAILABLE"] * 200 == [reason(result) for result in heard]
    log.broken = None
    await asyncio.sleep(2)
    await recorded(sequencer, servers.fact())
    await servers.prove()


@pytest.mark.parametrize("was_lost", ["request", "answer"])
def test_readers_do_not_wait_for_a_store_that_stays_away(was_lost: str) -> None:
    """While an outcome stays unknown the committed state can be read; afterwards all is as the log has it, for those too who ask again."""

    async def main() -> None:
        servers = Servers()
        sequencer, log = await servers.start()
        log.pause_seconds = 0.01
        digest = (await sequencer.settled()).digest()
        heard: list[Completed | ServiceError] = []
        facts = [servers.fact(number) for number in range(200)]
        for fact in facts:
            sequencer.submit(again(fact), heard.append, fact.envelope.event_id)
        await asyncio.sleep(0.005)
        (log.before if was_lost == "request" else log.after).append(OutcomeUnknownError("lost"))
        log.broken = AWAY
        assert digest == (await asyncio.wait_for(sequencer.settled(), UNKNOWN_ANSWER_SECONDS + 2)).digest()
        assert ["LOG_UNAVAILABLE"] * 200 == [reason(result) for result in heard]
        await asyncio.sleep(60)
        assert (digest, 1) == ((await asyncio.wait_for(sequencer.settled(), 1)).digest(), sequencer.head.sequence_number)
        log.broken = None
        await asyncio.sleep(2)
        assert await log.head() == sequencer.head
        for fact in facts:
            assert fact.envelope.event_id == (await recorded(sequencer, again(fact))).event_id
        assert 201 == len(await servers.events())
        await servers.prove()

    run_virtually(main())


@scene
async def test_stopping_does_not_wait_for_a_store_that_stays_away(servers: Servers) -> None:
    """A server that stops while an outcome is unknown says so to the callers, and ends."""
    sequencer, log = await servers.start()
    log.before, log.broken = [OutcomeUnknownError("lost request")], AWAY
    waiting = asyncio.create_task(tell(sequencer, servers.fact()))
    await asyncio.sleep(1)
    await asyncio.wait_for(sequencer.stop(), 10)
    assert "LOG_UNAVAILABLE" == reason(await waiting)
    assert 1 == (await asyncio.wait_for(sequencer.settled(), 1)).head


# Bugs


class Broken:
    """Planning in which `broken` is called after each command and after the timers: what they have changed is there by then."""

    def __init__(self, broken: Callable[[], None], *arguments: Any) -> None:
        self._planning = Planning(*arguments)
        self._broken = broken
        self.mark = self._planning.mark

    def tick(self) -> None:
        """Let time pass."""
        self._planning.tick()
        self._broken()

    def decide(self, pending: Pending) -> None:
        """Decide a command."""
        self._planning.decide(pending)
        self._broken()


@scene
async def test_an_append_that_fails_as_none_may(servers: Servers) -> None:
    """An error that the log must not raise is answered as INTERNAL, with an id, and the bus goes on from what the log holds."""
    sequencer, log = await servers.start()
    for faults in (log.before, log.after):
        faults.append(RuntimeError("a bug in the log"))
        failed = await tell(sequencer, servers.fact())
        assert "INTERNAL" == reason(failed)
        assert re.search(r"\b[0-9a-f]{32}\b", str(failed))
        await recorded(sequencer, servers.fact())
    assert 4 == (await asyncio.wait_for(sequencer.settled(), 10)).head
    await servers.prove()


def test_a_bug_in_deciding_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a batch had changed before it failed is undone: the next one is decided on the log's own state."""

    async def main() -> None:
        servers = Servers()
        sequencer, _ = await servers.start()

        def broken() -> None:
            monkeypatch.undo()
            raise RuntimeError("a bug in planning")

        monkeypatch.setattr(sequencer_module, "Planning", partial(Broken, broken))
        assert "INTERNAL" == reason(await tell(sequencer, servers.fact()))
        assert 1 == (await asyncio.wait_for(sequencer.settled(), 10)).head
        await recorded(sequencer, servers.fact())
        await servers.prove()

    run_virtually(main())


def test_a_bug_that_repeats_itself_leaves_time_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A timer that cannot be emitted is tried again, with pauses: the loop serves others in between."""

    async def main() -> None:
        servers = Servers()
        sequencer, _ = await servers.governed()
        fact = await recorded(sequencer, servers.fact())
        await recorded(sequencer, SubmitProposal(servers.admitted(proposal_envelope([fact]))))
        tries = 0

        def broken() -> None:
            nonlocal tries
            tries += 1
            if tries > 1_000:
                monkeypatch.undo()
            raise RuntimeError("a bug in planning")

        await asyncio.sleep(9)
        monkeypatch.setattr(sequencer_module, "Planning", partial(Broken, broken))
        await asyncio.sleep(4)
        assert 2 < tries < 1_000
        monkeypatch.undo()
        await asyncio.sleep(2)
        assert "DecisionExpired" == (await servers.events())[-1].event_name

    run_virtually(main())


class Poison:
    """What no check can look at."""

    def __getattr__(self, name: str) -> object:
        raise RecursionError


@scene
async def test_a_proposal_that_cannot_be_checked_harms_no_other(servers: Servers) -> None:
    """A bug in the checks of one proposal is answered to its caller alone, as INTERNAL with an id."""
    sequencer, _ = await servers.governed()
    fact = await recorded(sequencer, servers.fact())
    heard: list[Completed | ServiceError] = []
    sent = [proposal_envelope([fact], trace_id=trace_id) for trace_id in ("one", "two")]
    for envelope in (sent[0], cast(Envelope, Poison()), sent[1]):
        sequencer.propose(envelope, heard.append, 0)
    await asyncio.sleep(1)
    failed = [result for result in heard if isinstance(result, ServiceError)]
    assert (3, ["INTERNAL"]) == (len(heard), [reason(result) for result in failed])
    assert re.search(r"\b[0-9a-f]{32}\b", failed[0].message)


# What others write


@scene
async def test_an_upgrade_while_the_server_runs(servers: Servers) -> None:
    """When another build changes the bus's arbiter_version, this one stops writing at once and goes on serving reads."""
    sequencer, _ = await servers.start()
    upgrade = Envelope(event_id=servers.new_id(), event_category=FACT, trace_id="upgrade", producer=SYSTEM_PRODUCER)
    upgrade.fact.arbiter_version_changed.arbiter_version = ARBITER_VERSION + 1
    await _write(servers, upgrade)
    assert "ARBITER_VERSION_NOT_IMPLEMENTED" == reason(await tell(sequencer, servers.fact()))
    assert ARBITER_VERSION + 1 == (await asyncio.wait_for(sequencer.settled(), 10)).arbiter_version
    assert 2 == len(await servers.events())
    fact = servers.fact().envelope
    await _write(servers, fact)
    await asyncio.sleep(1)
    assert ["order/1"] == list((await sequencer.settled()).evidence)
    assert "ARBITER_VERSION_NOT_IMPLEMENTED" == reason(await tell(sequencer, servers.fact()))


@scene
async def test_an_event_that_cannot_be_applied(servers: Servers) -> None:
    """A server that cannot follow the log writes no more; it says where it stopped, and serves what it has."""
    sequencer, _ = await servers.start()
    digest = (await sequencer.settled()).digest()
    deployed = Envelope(event_id=servers.new_id(), event_category=FACT, trace_id="t", producer=SYSTEM_PRODUCER)
    deployed.fact.rule_set_deployed.canonical_json = "{}"
    await _write(servers, deployed)
    await asyncio.sleep(1)
    refused = await tell(sequencer, servers.fact())
    assert "LOG_UNAVAILABLE" == reason(refused)
    assert "event 2" in str(refused)
    assert digest == (await asyncio.wait_for(sequencer.settled(), 10)).digest()


# Timers


@scene
async def test_timers_speak_when_the_clock_is_set(servers: Servers) -> None:
    """On an idle bus a timer speaks soon after the wall clock has passed it, also when the clock was set forward meanwhile."""
    sequencer, _ = await servers.governed()
    fact = await recorded(sequencer, servers.fact())
    await recorded(sequencer, SubmitProposal(servers.admitted(proposal_envelope([fact]))))
    await asyncio.sleep(0.5)
    servers.offset_ms += 10_000
    await asyncio.sleep(2)
    assert "DecisionExpired" == (await servers.events())[-1].event_name


# Deciding ahead of an append


def test_a_start_right_after_the_expiry() -> None:
    """A start that is prepared while the decision's expiry is on its way into the log hears EXPIRED."""

    async def main() -> None:
        servers = Servers()
        sequencer, log = await servers.governed()
        fact = await recorded(sequencer, servers.fact())
        approval = await recorded(sequencer, SubmitProposal(servers.admitted(proposal_envelope([fact]))))
        servers.offset_ms += 10_000
        log.pause_seconds = 0.01
        sequencer._gathering.limit = 1
        commands: list[Command] = [servers.fact(), *[BeginExecution(approval.event_id, EXECUTOR, 1_000)] * 3]
        _, *begun = await asyncio.gather(*(tell(sequencer, command) for command in commands))
        answers = [result.answer for result in begun if isinstance(result, Completed)]
        assert ["EXPIRED"] * 3 == [answer.reason_code for answer in answers if isinstance(answer, NotStarted)]

    run_virtually(main())


def test_a_citation_is_not_forgotten_while_its_batch_is_prepared() -> None:
    """Committing an append while a batch is prepared may push a cited event out of memory: it is read from the log then."""

    async def main() -> None:
        servers = Servers()
        sequencer, log = await servers.governed()
        fact = await recorded(sequencer, servers.fact())
        sequencer.lookup.cited_max = 5
        log.pause_seconds = 0.01
        sequencer._gathering.limit = 5
        causes = [servers.fact(subject=f"order/other-{number}") for number in range(5)]
        proposal = SubmitProposal(servers.admitted(proposal_envelope([fact])))
        caused = servers.caused(causes[0].envelope.event_id)
        commands: list[Command] = [*causes, proposal, caused]
        results = await asyncio.gather(*(tell(sequencer, command) for command in commands))
        assert fact.sequence_number not in sequencer.lookup.cited
        assert {Completed} == {type(result) for result in results}
        decision = next(event.decision for event in await servers.events() if event.HasField("decision"))
        assert "" == decision.reason_code
        await servers.prove()

    run_virtually(main())
