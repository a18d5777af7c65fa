"""`gavel archive`, `backup` and `restore` with real servers: nobody notices the seam, and a restored bus is proved."""

from __future__ import annotations

from pathlib import Path

import pytest
import redis
from gavel.v1.envelope_pb2 import Envelope
from gavel_client import SyncGavelClient, fact_envelope
from gavel_server.archive.segments import SEGMENT_EVENTS

from tests.e2e.cli.programs import LOG_KEY, gavel, play, send
from tests.e2e.world import DEPOT, Server, rule_set, run_servers
from tests.support.stores.object_store import BUCKET, create_bucket, object_store

# More than one segment.
FACTS = SEGMENT_EVENTS + 100
BATCH = 500
PAGE = 1000


def fill(server: Server) -> dict[str, Envelope]:
    """Record some decisions, then more facts than a segment has; return the decisions."""
    decisions = play(server.address)
    with SyncGavelClient(server.address) as client:
        for first in range(0, FACTS, BATCH):
            numbers = range(first, min(first + BATCH, FACTS))
            client.batch_publish_events(
                [fact_envelope(f"parcel/{number}", DEPOT, key="parcel.status", value="ready") for number in numbers]
            )
    return decisions


def log_of(server: Server) -> list[Envelope]:
    """Return the whole log, by pages and by a subscription, which must agree."""
    with SyncGavelClient(server.address) as client:
        head = client.get_status().head_sequence_number
        listed: list[Envelope] = []
        while len(listed) < head:
            listed += client.list_events(from_sequence_number=len(listed) + 1, page_size=PAGE).envelopes
        followed = []
        for response in client.subscribe_events(from_sequence_number=1):
            followed.append(response.envelope)
            if response.envelope.sequence_number == head:
                break
    assert listed == followed
    return listed


def events_in_redis(server: Server) -> int:
    """Return how many events the log in Redis has."""
    with redis.Redis.from_url(server.redis_url, protocol=2) as connection:
        return int(connection.xlen(LOG_KEY))


def assert_seam_unnoticed(server: Server, before: list[Envelope], decisions: dict[str, Envelope], parcel: int = 7) -> None:
    """Every kind of read and proof answers as before the trim, and new decisions rest on archived facts."""
    assert before == log_of(server)[: len(before)]
    decision = decisions["light"]
    with SyncGavelClient(server.address) as client:
        assert decision == client.get_event(event_id=decision.event_id).envelope
        assert decision == client.get_event(sequence_number=decision.sequence_number).envelope
        trace = client.get_trace(decision.trace_id).envelopes
        assert [one.event_id for one in before if one.trace_id == decision.trace_id] == [one.event_id for one in trace]
        client.get_inclusion_proof(sequence_number=2)
        fact = next(one for one in before if one.subject == f"parcel/{parcel}")
        assert fact.event_id == client.submit_proposal(send(fact, 1)).decision.decision.pinned_facts[0].event_id
        (proposal,) = [one for one in before if one.event_id == decision.decision.proposal_id]
        again = Envelope()
        again.CopyFrom(proposal)
        for field in ("sequence_number", "recorded_at", "chain_hash", "schema_version", "attestation", "version_binding"):
            again.ClearField(field)
        assert decision.event_id == client.submit_proposal(again).decision.event_id
    assert 0 == gavel("replay", "--server", server.address).returncode


@pytest.mark.long
@pytest.mark.timeout(300)
def test_seam(tmp_path: Path) -> None:
    """A server whose old events are in its archive only answers as before, also after a restart without snapshots."""
    archive = tmp_path / "archive"
    server = Server(tmp_path / "data", options=("--archive", str(archive), "--snapshot-every", "0", "--index-from", "1000"))
    with run_servers(server):
        decisions = fill(server)
        before = log_of(server)
        result = gavel("archive", "--to", archive, "--trim", "--data", server.data)
        expected = f"archived 1 segments; the archive ends with event {SEGMENT_EVENTS}; the log begins with event {SEGMENT_EVENTS + 1}\n"
        assert (0, expected, "") == (result.returncode, result.stdout, result.stderr)
        again = gavel("archive", "--to", archive, "--data", server.data)
        assert f"archived 0 segments; the archive ends with event {SEGMENT_EVENTS}\n" == again.stdout
        assert f"gavel: no further segment is complete: one has {SEGMENT_EVENTS} events or 16 MiB\n" == again.stderr
        assert len(before) - SEGMENT_EVENTS == events_in_redis(server)
        assert_seam_unnoticed(server, before, decisions)
        assert 0 == server.terminate()
        server.start()
        assert_seam_unnoticed(server, before, decisions, parcel=8)
        assert 0 == gavel("notary", "keygen", "--key", tmp_path / "key").returncode
        options = ("--key", tmp_path / "key", "--state", tmp_path / "notary", "--data", server.data, "--archive", archive)
        signed = gavel("notary", "--once", *options, server=server)
        assert (0, "") == (signed.returncode, signed.stderr)
        assert 0 == gavel("proof", decisions["light"].event_id, server=server).returncode
        assert 0 == server.terminate()
    rules = tmp_path / "rules.yaml"
    rules.write_text(rule_set(), encoding="utf-8")
    proved = gavel("replay", "--data", server.data, "--archive", archive)
    assert (0, "") == (proved.returncode, proved.stderr)
    for command in (("replay", "--rules", rules), ("replay", "--engine", "reference")):
        assert 0 == gavel(*command, "--data", server.data, "--archive", archive).returncode
    alone = gavel("replay", "--data", server.data)
    assert (4, True) == (alone.returncode, "event 1 is missing" in alone.stdout)


@pytest.mark.long
def test_backup_of_a_running_bus_to_an_object_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bus is backed up while its server runs, restored to an empty data directory, proved, and goes on there."""
    server = Server(tmp_path / "data")
    with object_store() as environment:
        create_bucket(environment, monkeypatch)
        url = f"s3://{BUCKET}/backups"
        with run_servers(server):
            decisions = fill(server)
            before = log_of(server)
            backed_up = gavel("backup", "--to", url, "--data", server.data)
            chain_hash = before[-1].chain_hash.hex()
            assert (0, f"backed up {len(before)} events of bus default, chain hash {chain_hash}\n") == (
                backed_up.returncode,
                backed_up.stdout,
            ), backed_up.stderr
        restored = gavel("restore", "--from", url, "--data", tmp_path / "restored", "--prove")
    assert (0, "") == (restored.returncode, restored.stderr)
    first, proof = restored.stdout.splitlines()
    assert f"restored {len(before)} events of bus default, chain hash {chain_hash}" == first
    assert proof.startswith(f"proved: {len(before)} events")
    other = Server(tmp_path / "restored")
    with run_servers(other):
        assert_seam_unnoticed(other, before, decisions)


def test_schedule_leaves_new_events(tmp_path: Path) -> None:
    """A server archives nothing that is younger than its setting says."""
    archive = tmp_path / "archive"
    server = Server(tmp_path / "data", options=("--archive", str(archive), "--archive-after-days", "1"))
    with run_servers(server):
        play(server.address)
        assert 13 == events_in_redis(server)
        assert not (archive / "default/segments").exists()


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("restore", "--from", "nowhere", "--data", "new"), "the directory nowhere of the archive does not exist; mount its file system"),
        (("restore", "--from", ".", "--data", "new"), "default has no backup of bus default; make one with gavel backup"),
        (("backup", "--to", "s4://nowhere", "--data", "LOG"), "cannot use the archive s4://nowhere"),
        (("backup", "--to", "archive", "--data", "LOG", "--bus", "absent"), "bus 'absent' has no events"),
    ],
)
def test_refusals(
    sample_log: tuple[Path, dict[str, Envelope]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], problem: str
) -> None:
    """A refusal to archive or to restore is one line."""
    monkeypatch.chdir(tmp_path)
    result = gavel(*(sample_log[0] if one == "LOG" else one for one in arguments))
    assert (1, True) == (result.returncode, problem in result.stderr), result.stderr
