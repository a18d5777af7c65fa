"""Snapshots of a bus: a server starts from the newest one that its log confirms, and writes new ones beside its work."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from gavel.v1.decision_pb2 import Outcome
from gavel.v1.envelope_pb2 import Envelope
from gavel_rules.commands import ActivateRuleSet, DeployRuleSet, EventAnswer, SubmitProposal
from gavel_rules.events.proposal_view import ProposalView
from gavel_server.bus.request import CommittedAnswer
from gavel_server.bus.sequencer import Sequencer
from gavel_server.bus.snapshot_writer import write_if_due
from gavel_server.bus.snapshots import BusSnapshots
from gavel_server.history.snapshot_files import SnapshotContent, SnapshotFiles
from gavel_server.process import time_slice
from structlog.testing import capture_logs

from tests.support.driver import BUS, compile_cached, proposal_envelope
from tests.support.simulation.servers import TEXT, CountingLog, Servers, execute, record_event
from tests.support.state.snapshots import tables


async def start(servers: Servers, data: Path, every: int = 1) -> tuple[Sequencer, CountingLog]:
    """Start a server on a data directory."""
    return await servers.start(snapshots=BusSnapshots(SnapshotFiles(data, BUS), every))


async def until(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds."""
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110  # nothing tells
            await asyncio.sleep(0.001)


async def work(servers: Servers, sequencer: Sequencer, subject: str) -> None:
    """Propose to refund an order that is delivered."""
    fact = await record_event(sequencer, servers.fact(subject=subject))
    envelope = servers.admit_envelope(proposal_envelope([fact], subject=subject, trace_id=f"of-{subject}"))
    await record_event(sequencer, SubmitProposal(ProposalView(envelope)))


async def run_first(servers: Servers, data: Path) -> None:
    """Run a server that leaves three snapshots, at different events."""
    sequencer, _ = await start(servers, data)
    await sequencer.execute(DeployRuleSet(servers.new_id(), compile_cached(TEXT), TEXT))
    await sequencer.execute(ActivateRuleSet(servers.new_id(), "refunds", 1, None))
    for number in range(2):
        await work(servers, sequencer, f"order/{number}")
        await write_if_due(sequencer)
        sequencer.replica.snapshots._not_before = 0.0  # type: ignore[union-attr]
    await work(servers, sequencer, "order/2")
    await sequencer.stop()


async def reads_of_start(servers: Servers, data: Path) -> tuple[int, list[tuple[int, str]]]:
    """Start and stop a server; return the snapshot that it started from (0: none), and those that it refused with the problem.

    Its state must be the one that the log gives.
    """
    with capture_logs() as lines:
        sequencer, _ = await start(servers, data, every=0)
    fresh, _ = await servers.start()
    assert tables(fresh.replica.state) == tables(sequencer.replica.state)
    assert fresh.head == sequencer.head
    assert fresh.replica.incarnation == sequencer.replica.incarnation
    await fresh.stop()
    await sequencer.stop()
    read = [line["sequence_number"] for line in lines if line["event"] == "snapshot.read"]
    return (read or [0])[0], [(line["sequence_number"], line["problem"]) for line in lines if line["event"] == "snapshot.refused"]


async def test_a_server_starts_from_the_newest_snapshot(tmp_path: Path) -> None:
    """After a clean stop a server starts from the state at the head, and knows what it knew: whose traces are, and what is pending."""
    servers = Servers()
    await run_first(servers, tmp_path)
    numbers = SnapshotFiles(tmp_path, BUS).numbers()
    assert 3 == len(numbers)
    assert (numbers[0], []) == await reads_of_start(servers, tmp_path)
    assert (await servers.log.head()).sequence_number == numbers[0]
    sequencer, _ = await start(servers, tmp_path)
    owner = sequencer.replica.trace_owners.owner("of-order/1", servers.now_ms)
    assert owner is not None
    assert "agent-1" == owner.producer_id
    assert None is sequencer.replica.trace_owners.owner("of-nobody", servers.now_ms)
    # Decisions go on from there.
    await work(servers, sequencer, "order/9")
    await sequencer.stop()
    await servers.prove()


async def test_the_tail_of_the_log_follows_the_snapshot(tmp_path: Path) -> None:
    """Events after the snapshot, as after a crash, are read from the log."""
    servers = Servers()
    await run_first(servers, tmp_path)
    newest = SnapshotFiles(tmp_path, BUS).numbers()[0]
    sequencer, _ = await start(servers, tmp_path, every=0)
    await work(servers, sequencer, "order/9")
    await sequencer.stop()
    assert (newest, []) == await reads_of_start(servers, tmp_path)


async def test_an_unusable_snapshot_is_refused(tmp_path: Path) -> None:
    """A damaged snapshot is refused with a reason, and the next older one is read; without any, the whole log."""
    servers = Servers()
    await run_first(servers, tmp_path)
    files = SnapshotFiles(tmp_path, BUS)
    numbers = files.numbers()
    damage = "it is damaged: its bytes do not match its hash"
    for count, number in enumerate(numbers, 1):
        content = files.path(number).read_bytes()
        files.path(number).write_bytes(content[:-1])
        expected = [(refused, damage) for refused in numbers[:count]]
        assert ([*numbers, 0][count], expected) == await reads_of_start(servers, tmp_path)


async def test_a_snapshot_of_another_log_is_refused(tmp_path: Path) -> None:
    """The log must have the same chain hash at the snapshot's number: a bus that began anew, or lost events, starts from its log."""
    servers, others = Servers(), Servers()
    await run_first(servers, tmp_path)
    others.offset_ms = 1
    sequencer, _ = await others.start()
    await work(others, sequencer, "order/7")
    await work(others, sequencer, "order/8")
    await work(others, sequencer, "order/9")
    await sequencer.stop()
    head = (await others.log.head()).sequence_number
    numbers = SnapshotFiles(tmp_path, BUS).numbers()
    foreign, beyond = "the log has another event {0}: the snapshot is of another log", f"the log ends at event {head}"
    expected = [(number, foreign.format(number) if number <= head else beyond) for number in numbers]
    assert {number <= head for number in numbers} == {True, False}
    assert (0, expected) == await reads_of_start(others, tmp_path)


async def test_evidence_leaves_the_memory(tmp_path: Path) -> None:
    """Once a snapshot is written, a server holds only later evidence, and decides on the evidence in the file as on any other.

    So does the next snapshot, and a server that starts from it, also after the first file has been removed.
    """
    servers = Servers()
    sequencer, _ = await start(servers, tmp_path, every=1)
    await sequencer.execute(DeployRuleSet(servers.new_id(), compile_cached(TEXT), TEXT))
    await sequencer.execute(ActivateRuleSet(servers.new_id(), "refunds", 1, None))
    facts = [await record_event(sequencer, servers.fact(subject=f"order/{number}")) for number in range(3)]
    snapshots, store = sequencer.replica.snapshots, sequencer.replica.state.store
    assert snapshots is not None
    await write_if_due(sequencer)
    assert {} == store.evidence
    first = snapshots.files.path(snapshots.files.numbers()[0])
    await record_event(sequencer, servers.fact(value="lost", subject="order/2"))
    assert {"order/2"} == store.evidence.keys()
    await propose(servers, sequencer, facts[0], "APPROVED")
    first.unlink()
    snapshots._not_before = 0.0
    await write_if_due(sequencer)
    assert {} == store.evidence
    await propose(servers, sequencer, facts[1], "APPROVED")
    await propose(servers, sequencer, facts[2], "REJECTED")
    await sequencer.stop()
    restarted, _ = await start(servers, tmp_path, every=0)
    assert {} == restarted.replica.state.store.evidence
    await propose(servers, restarted, facts[2], "REJECTED", trace_id="again")
    await restarted.stop()
    await servers.prove()


async def test_other_tasks_run_while_evidence_leaves_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If each subject takes a slice's time to leave the memory, other tasks run after each of them."""
    servers = Servers()
    sequencer, _ = await start(servers, tmp_path, every=1)
    for number in range(5):
        await record_event(sequencer, servers.fact(subject=f"order/{number}"))
    store = sequencer.replica.state.store
    sizes: set[int] = set()

    async def observe() -> None:
        while True:
            sizes.add(len(store.evidence))
            await asyncio.sleep(0)

    monkeypatch.setattr(time_slice, "SLICE_SECONDS", -1.0)
    observing = asyncio.create_task(observe())
    await write_if_due(sequencer)
    observing.cancel()
    assert {0, 1, 2, 3, 4, 5} == sizes | {0}
    await sequencer.stop()


async def propose(servers: Servers, sequencer: Sequencer, fact: Envelope, outcome: str, *, trace_id: str = "") -> None:
    """Propose a refund for the subject of a fact, whose decision must have this outcome."""
    envelope = proposal_envelope([fact], subject=fact.subject, trace_id=trace_id or f"of-{fact.subject}")
    result = await execute(sequencer, SubmitProposal(ProposalView(servers.admit_envelope(envelope))))
    assert isinstance(result, CommittedAnswer)
    assert isinstance(result.answer, EventAnswer)
    assert f"OUTCOME_{outcome}" == Outcome.Name(result.answer.envelope.decision.outcome)


async def test_snapshots_are_due_by_events(tmp_path: Path) -> None:
    """A snapshot follows every N events, and none is written for fewer, or with 0."""
    servers = Servers()
    sequencer, _ = await start(servers, tmp_path, every=4)
    files = SnapshotFiles(tmp_path, BUS)
    written = []
    for number in range(8):
        await record_event(sequencer, servers.fact(subject=f"order/{number}"))
        await write_if_due(sequencer)
        written.append(len(files.numbers()))
        sequencer.replica.snapshots._not_before = 0.0  # type: ignore[union-attr]
    assert [4, 8] == sorted(files.numbers())
    await sequencer.stop()
    assert [4, 8] == sorted(files.numbers())
    silent, _ = await start(servers, tmp_path / "other", every=0)
    await write_if_due(silent)
    await silent.stop()
    assert not (tmp_path / "other").exists()


async def test_a_failure_to_write_is_logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk is logged, the server goes on, and the next attempt waits."""
    servers = Servers()
    sequencer, _ = await start(servers, tmp_path)
    snapshots = sequencer.replica.snapshots
    assert snapshots is not None

    def refuse(_: int) -> None:
        raise OSError(28, os.strerror(28))

    with monkeypatch.context() as patch, capture_logs() as lines:
        patch.setattr(os, "fsync", refuse)
        await write_if_due(sequencer)
    written = [(line["event"], line["problem"]) for line in lines if line["event"].startswith("snapshot.")]
    assert [("snapshot.not_written", "No space left on device")] == written
    assert None is snapshots.newest
    await record_event(sequencer, servers.fact())
    await write_if_due(sequencer)
    assert [] == snapshots.files.numbers()
    await sequencer.stop()
    assert [2] == snapshots.files.numbers()


async def test_a_stop_ends_the_child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stop during a write ends the child that writes, and leaves a snapshot of the head."""
    servers = Servers()
    sequencer, _ = await start(servers, tmp_path)
    snapshots = sequencer.replica.snapshots
    assert snapshots is not None
    with monkeypatch.context() as patch:
        patch.setattr(snapshots, "_write", lambda _: time.sleep(600))
        writing = asyncio.create_task(write_if_due(sequencer))
        await until(lambda: bool(snapshots._child))
        writing.cancel()
        await asyncio.wait([writing])
    assert writing.cancelled()
    await sequencer.stop()
    assert [1] == snapshots.files.numbers()


async def test_a_bus_that_closes_leaves_a_running_child_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bus that closes while a child writes its snapshot writes none itself, and keeps its tables: the child's snapshot is complete."""
    servers = Servers()
    sequencer, _ = await start(servers, tmp_path)
    await record_event(sequencer, servers.fact())
    snapshots = sequencer.replica.snapshots
    assert snapshots is not None
    write = snapshots._write
    held = tmp_path / "held"
    held.touch()

    def write_later(content: SnapshotContent) -> None:
        while held.exists():
            time.sleep(0.01)
        write(content)

    monkeypatch.setattr(snapshots, "_write", write_later)
    writing = asyncio.create_task(write_if_due(sequencer))
    await until(lambda: bool(snapshots._child))
    await sequencer.stop()
    assert [] == snapshots.files.numbers()
    held.unlink()
    await writing
    assert [2] == snapshots.files.numbers()
    assert {} != dict(sequencer.replica.state.store.evidence)


async def test_nothing_uncommitted_is_in_a_snapshot(tmp_path: Path) -> None:
    """A snapshot that is due while an append is under way is taken after it: it holds whole commits, which the log has."""
    servers = Servers()
    sequencer, counting = await start(servers, tmp_path, every=1)
    counting.pause_seconds = 0.05
    publishing = asyncio.create_task(record_event(sequencer, servers.fact()))
    await until(lambda: sequencer.replica.state.has_uncommitted_changes)
    await write_if_due(sequencer)
    assert [2] == SnapshotFiles(tmp_path, BUS).numbers()
    assert 2 == (await publishing).sequence_number
    restored = SnapshotFiles(tmp_path, BUS).read(2)
    rebuilt = sequencer.replica.state
    assert tables(rebuilt) == tables(restored)
    await sequencer.stop()


async def test_a_server_that_reads_on_writes_none(tmp_path: Path) -> None:
    """While a server reads what another one has appended, its state may be within a commit, and no snapshot is taken."""
    servers = Servers()
    writer, _ = await servers.start()
    for number in range(40):
        await record_event(writer, servers.fact(subject=f"order/{number}"))
    reader, counting = await start(servers, tmp_path)
    state = reader.replica.state
    observations = []
    read = counting._log.read

    async def observed(*arguments: int) -> object:
        observations.append((reader.replica.is_settled, state.has_uncommitted_changes))
        return await read(*arguments)

    # The reader also looks for events by itself, at any time.
    counting.read = observed  # type: ignore[attr-defined]
    for number in range(40):
        await record_event(writer, servers.fact(subject=f"order/{number}"))
    await reader.read_on()
    assert [(False, False)] == observations[:1]
    assert reader.replica.is_settled
    await writer.stop()
    await reader.stop()


def test_a_child_that_has_ended_is_not_killed(tmp_path: Path) -> None:
    """A bus that starts over while the end of the writing child is still being noted gets new snapshots, without an error."""
    child = os.posix_spawn("/bin/true", ["true"], {})
    os.waitpid(child, 0)
    snapshots = BusSnapshots(SnapshotFiles(tmp_path, BUS), 1)
    snapshots._child = child
    assert 0 == snapshots.begin_anew(0)._child
