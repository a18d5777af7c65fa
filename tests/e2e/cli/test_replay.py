"""`gavel replay` on real logs: what it proves, what it finds in logs that were tampered with, and its exit statuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import redis.asyncio
from gavel.v1.envelope_pb2 import Envelope
from gavel_server.embedded import EmbeddedRedis

from tests.e2e.cli.programs import HEAD_KEY, LOG_KEY, copy_of, flip_byte, gavel, rewrite
from tests.e2e.world import Server, rule_set, serving

# BusOpened, a rule set deployed and activated, per parcel a fact, a proposal and a decision, and that the lost one is hopeless.
EVENTS = 13
PROVED = f"proved: {EVENTS} events, 3 decisions recomputed equal"


def nothing(_: Envelope) -> None:
    """Change nothing."""


def test_proved(played: tuple[Path, dict[str, Envelope]]) -> None:
    """A log that a server left behind is proved: exit status 0 and the sentence as stdout's last line."""
    done = gavel("replay", "--data", played[0])
    assert (0, PROVED, "") == (done.returncode, done.stdout.splitlines()[-1], done.stderr)


def test_default_directory(log_copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a word the log in .gavel is replayed."""
    log_copy.rename(tmp_path / ".gavel")
    monkeypatch.chdir(tmp_path)
    assert (0, PROVED + "\n") == (gavel("replay").returncode, gavel("replay").stdout)


def test_directory_by_environment(log_copy: Path) -> None:
    """GAVEL_DATA and GAVEL_REDIS name the log where no option does; an option outweighs both."""
    assert PROVED + "\n" == gavel("replay", GAVEL_DATA=str(log_copy)).stdout
    done = gavel("replay", GAVEL_DATA=str(log_copy), GAVEL_REDIS="redis://127.0.0.1:9")
    assert (1, True) == (done.returncode, "cannot connect to Redis at redis://127.0.0.1:9" in done.stderr)
    assert PROVED + "\n" == gavel("replay", "--data", log_copy, GAVEL_DATA="elsewhere", GAVEL_REDIS="redis://127.0.0.1:9").stdout


def test_second_engine(log_copy: Path) -> None:
    """The second engine alone comes to the same decisions."""
    done = gavel("replay", "--data", log_copy, "--engine", "reference")
    assert (0, PROVED + "\n") == (done.returncode, done.stdout)


def test_as_json(log_copy: Path) -> None:
    """The verdict as JSON is the contract's response, and nothing else is on stdout."""
    done = gavel("replay", "--data", log_copy, "--json")
    verdict = json.loads(done.stdout)["verdict"]
    assert 0 == done.returncode
    expected = (True, "REPLAY_STATUS_PROVED", str(EVENTS), "3", PROVED)
    assert expected == tuple(verdict[name] for name in ("proved", "status", "events", "decisions", "message"))


def test_part_of_a_log(log_copy: Path) -> None:
    """A range is compared; one that the log does not hold is wrong usage."""
    done = gavel("replay", "--data", log_copy, "--from", "7", "--to", "9")
    assert (0, "proved: 3 events, 1 decisions recomputed equal\n") == (done.returncode, done.stdout)
    done = gavel("replay", "--data", log_copy, "--to", "99")
    assert (2, "") == (done.returncode, done.stdout)
    assert f"holds events 1 to {EVENTS}" in done.stderr


def test_bus_without_events(log_copy: Path) -> None:
    """A bus that the directory does not hold is a failure, not a proof of nothing."""
    done = gavel("replay", "--data", log_copy, "--bus", "nowhere")
    assert (1, "") == (done.returncode, done.stdout)
    assert "bus 'nowhere' has no events in" in done.stderr


def test_one_byte_on_disk(played: tuple[Path, dict[str, Envelope]], log_copy: Path) -> None:
    """One byte of a stored decision, flipped on disk, is damage: exit status 4, with the event's number."""
    decision = Envelope()
    decision.CopyFrom(played[1]["lost"])
    decision.ClearField("chain_hash")
    content = decision.SerializeToString()
    flip_byte(log_copy, content, content.index(b"PARCEL_LOST"))
    done = gavel("replay", "--data", log_copy)
    assert (4, "") == (done.returncode, done.stderr)
    number = decision.sequence_number
    assert f"damaged: the chain breaks at event {number}: its bytes are not those that were hashed" == done.stdout.splitlines()[-1]


async def test_changed_decision(log_copy: Path) -> None:
    """A decision that was changed without its chain is damage, whatever it says."""

    def approve(event: Envelope) -> None:
        if event.decision.reason_code == "PARCEL_LOST":
            event.decision.ClearField("reason_code")

    await rewrite(log_copy, approve, rechain=False)
    done = gavel("replay", "--data", log_copy, "--json")
    assert 4 == done.returncode
    assert "REPLAY_STATUS_DAMAGED" == json.loads(done.stdout)["verdict"]["status"]


async def test_rechained_decision(log_copy: Path) -> None:
    """A decision that was changed and the log chained again around it diverges: exit status 3, with every field."""

    def approve(event: Envelope) -> None:
        if event.decision.reason_code == "PARCEL_LOST":
            event.decision.reason_code = "PARCEL_FOUND"
            event.decision.policy_version = 7

    await rewrite(log_copy, approve, rechain=True)
    done = gavel("replay", "--data", log_copy)
    assert (3, "") == (done.returncode, done.stderr)
    rows = [line.split() for line in done.stdout.splitlines()]
    assert ["decision.reason_code", '"PARCEL_FOUND"', '"PARCEL_LOST"'] in rows
    assert ["decision.policy_version", '"7"', '"1"'] in rows
    assert {"#11", "#10"} <= {row[0] for row in rows if row}
    assert done.stdout.splitlines()[-1].startswith("diverged: event 12 (DecisionRejected) comes out otherwise: decision.")
    differences = json.loads(gavel("replay", "--data", log_copy, "--json").stdout)["verdict"]["divergence"]["differences"]
    assert {"decision.policy_version", "decision.reason_code"} == {found["path"] for found in differences}


async def test_rewritten_and_unchanged(log_copy: Path) -> None:
    """Writing a log again as it was leaves it provable: the tests above find their change and not their method."""
    await rewrite(log_copy, nothing, rechain=True)
    assert 0 == gavel("replay", "--data", log_copy).returncode


async def test_forged_fact(log_copy: Path) -> None:
    """A fact that was changed and chained again is found by the decision that no longer follows from it."""

    def lose(event: Envelope) -> None:
        if event.subject == "parcel/light" and event.HasField("fact"):
            event.fact.value.string_value = "lost"

    await rewrite(log_copy, lose, rechain=True)
    done = gavel("replay", "--data", log_copy)
    assert 3 == done.returncode
    assert "decision.outcome" in done.stdout


async def test_other_arbiter_version(log_copy: Path) -> None:
    """A log that needs other semantics is exit status 5: neither proved nor damaged."""

    def upgrade(event: Envelope) -> None:
        if event.fact.WhichOneof("system") == "bus_opened":
            event.fact.bus_opened.arbiter_version = 99

    await rewrite(log_copy, upgrade, rechain=True)
    done = gavel("replay", "--data", log_copy)
    assert 5 == done.returncode
    assert "arbiter_version 99" in done.stdout


async def test_missing_entry(log_copy: Path) -> None:
    """A log with a hole is damage: where the head does not count it, and where it was made to."""
    async with EmbeddedRedis(log_copy) as embedded, redis.asyncio.Redis.from_url(embedded.url) as connection:
        await connection.xdel(LOG_KEY, "5-0")
    assert 4 == gavel("replay", "--data", log_copy).returncode
    async with EmbeddedRedis(log_copy) as embedded, redis.asyncio.Redis.from_url(embedded.url) as connection:
        await connection.hincrby(HEAD_KEY, "count", -1)
    done = gavel("replay", "--data", log_copy)
    assert 4 == done.returncode
    assert "event 5 is missing" in done.stdout


async def test_entry_that_is_no_event(log_copy: Path) -> None:
    """Bytes that are no envelope, properly chained, are damage."""

    def rubbish(event: Envelope) -> bytes | None:
        return b"\xff\xff\xff" if event.sequence_number == 6 else None

    await rewrite(log_copy, rubbish, rechain=True)
    done = gavel("replay", "--data", log_copy)
    assert (4, "damaged: event 6 cannot be decoded\n") == (done.returncode, done.stdout)


def test_candidate_rule_set(log_copy: Path, tmp_path: Path) -> None:
    """A candidate lists the decisions that it would change and counts them by transition; exit status 0."""
    candidate = tmp_path / "candidate.yaml"
    candidate.write_text(rule_set(version=2).replace("<= 30", "<= 60").replace("effect: approve", "effect: review, reason_code: LOOK"))
    done = gavel("replay", "--data", log_copy, "--rules", candidate)
    lines = done.stdout.splitlines()
    assert 0 == done.returncode
    assert [
        "parcels version 2 would change 2 of 3 decisions",
        "  APPROVED->NEEDS_HUMAN_REVIEW: 1",
        "  REJECTED->NEEDS_HUMAN_REVIEW: 1",
    ] == lines[-3:]
    responses = [json.loads(line) for line in gavel("replay", "--data", log_copy, "--rules", candidate, "--json").stdout.splitlines()]
    assert ["6", "9"] == [response["changed"]["sequence_number"] for response in responses[:-1]]
    assert "2" == responses[-1]["summary"]["changed"]
    candidate.write_text(rule_set().replace("rule_set: parcels", "rule_set: parcel"))
    done = gavel("replay", "--data", log_copy, "--rules", candidate)
    assert "no version of parcel was in force" in done.stderr


def test_invalid_candidate(log_copy: Path, tmp_path: Path) -> None:
    """A candidate with mistakes is exit status 2, and each stands at its place."""
    candidate = tmp_path / "candidate.yaml"
    candidate.write_text(rule_set().replace("params.weight", "params.wait"))
    done = gavel("replay", "--data", log_copy, "--rules", candidate)
    assert (2, "") == (done.returncode, done.stdout)
    assert f"{candidate}:" in done.stderr
    assert "params.weight" in done.stderr


def test_beside_a_running_server(tmp_path: Path, log_copy: Path) -> None:
    """While a server runs on the directory its Redis is read; also where the directory's path is too long for a socket."""
    deep = copy_of(log_copy, tmp_path / ("deep-" * 20) / "data")
    server = Server(deep)
    with serving(server):
        assert (0, PROVED + "\n") == (gavel("replay", "--data", deep).returncode, gavel("replay", "--data", deep).stdout)
        assert (0, PROVED + "\n") == (gavel("replay", "--redis", server.redis_url).returncode, gavel("replay", "--data", deep).stdout)
        done = gavel("replay", "--server", server.address)
        assert (0, PROVED + "\n") == (done.returncode, done.stdout)
        assert 0 == server.terminate()
    assert 0 == gavel("replay", "--data", deep).returncode


def test_redis_that_is_away() -> None:
    """A Redis that nobody answers at is a failure, said without its password."""
    done = gavel("replay", "--redis", "redis://:secret@127.0.0.1:9")
    assert (1, "") == (done.returncode, done.stdout)
    assert "cannot connect to Redis at redis://***@127.0.0.1:9" in done.stderr
    assert "secret" not in done.stderr
