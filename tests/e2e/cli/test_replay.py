"""`gavel replay` on real logs, intact and tampered with, and its exit statuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import redis.asyncio
from gavel.v1.envelope_pb2 import Envelope
from gavel_server.log.redis.embedded import EmbeddedRedis

from tests.e2e.cli.programs import HEAD_KEY, LOG_KEY, copy_of, flip_byte, gavel, rewrite
from tests.e2e.world import Server, rule_set, run_servers

# BusOpened, deployment, activation; a fact, a proposal and a decision per parcel; NoFeasibleProposal for the lost one.
EVENTS = 13
PROVED = f"proved: {EVENTS} events, 3 decisions recomputed equal"


def leave_unchanged(_: Envelope) -> None:
    """Change nothing."""


def test_proved(sample_log: tuple[Path, dict[str, Envelope]]) -> None:
    """The log of a stopped server is proved: exit status 0."""
    result = gavel("replay", "--data", sample_log[0])
    assert (0, PROVED, "") == (result.returncode, result.stdout.splitlines()[-1], result.stderr)


def test_default_directory(log_copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without options the log in .gavel is replayed."""
    log_copy.rename(tmp_path / ".gavel")
    monkeypatch.chdir(tmp_path)
    assert (0, PROVED + "\n") == (gavel("replay").returncode, gavel("replay").stdout)


def test_directory_by_environment(log_copy: Path) -> None:
    """GAVEL_DATA and GAVEL_REDIS locate the log; an option takes precedence over both."""
    assert PROVED + "\n" == gavel("replay", GAVEL_DATA=str(log_copy)).stdout
    result = gavel("replay", GAVEL_DATA=str(log_copy), GAVEL_REDIS="redis://127.0.0.1:9")
    assert (1, True) == (result.returncode, "cannot connect to Redis at redis://127.0.0.1:9" in result.stderr)
    assert PROVED + "\n" == gavel("replay", "--data", log_copy, GAVEL_DATA="elsewhere", GAVEL_REDIS="redis://127.0.0.1:9").stdout


def test_second_engine(log_copy: Path) -> None:
    """The reference engine alone recomputes the same decisions."""
    result = gavel("replay", "--data", log_copy, "--engine", "reference")
    assert (0, PROVED + "\n") == (result.returncode, result.stdout)


def test_as_json(log_copy: Path) -> None:
    """--json prints the contract's response and nothing else."""
    result = gavel("replay", "--data", log_copy, "--json=snake")
    verdict = json.loads(result.stdout)["verdict"]
    assert 0 == result.returncode
    expected = (True, "REPLAY_STATUS_PROVED", str(EVENTS), "3", PROVED)
    assert expected == tuple(verdict[name] for name in ("proved", "status", "events", "decisions", "message"))


def test_part_of_a_log(log_copy: Path) -> None:
    """--from and --to limit the comparison; a range outside the log is wrong usage."""
    result = gavel("replay", "--data", log_copy, "--from", "7", "--to", "9")
    assert (0, "proved: 3 events, 1 decisions recomputed equal\n") == (result.returncode, result.stdout)
    result = gavel("replay", "--data", log_copy, "--to", "99")
    assert (2, "") == (result.returncode, result.stdout)
    assert f"holds events 1 to {EVENTS}" in result.stderr


def test_bus_without_events(log_copy: Path) -> None:
    """A bus without events is exit status 1, not a proof."""
    result = gavel("replay", "--data", log_copy, "--bus", "nowhere")
    assert (1, "") == (result.returncode, result.stdout)
    assert "bus 'nowhere' has no events in" in result.stderr


def test_one_byte_on_disk(sample_log: tuple[Path, dict[str, Envelope]], log_copy: Path) -> None:
    """A byte of a stored decision that is flipped on disk is damage: exit status 4, with the event's number."""
    decision = Envelope()
    decision.CopyFrom(sample_log[1]["lost"])
    decision.ClearField("chain_hash")
    content = decision.SerializeToString()
    flip_byte(log_copy, content, content.index(b"PARCEL_LOST"))
    result = gavel("replay", "--data", log_copy)
    assert (4, "") == (result.returncode, result.stderr)
    number = decision.sequence_number
    assert f"damaged: the chain breaks at event {number}: its bytes do not match its chain hash" == result.stdout.splitlines()[-1]


async def test_changed_decision(log_copy: Path) -> None:
    """A decision that is changed without its chain hash is damage."""

    def approve(event: Envelope) -> None:
        if event.decision.reason_code == "PARCEL_LOST":
            event.decision.ClearField("reason_code")

    await rewrite(log_copy, approve, rechain=False)
    result = gavel("replay", "--data", log_copy, "--json=snake")
    assert 4 == result.returncode
    assert "REPLAY_STATUS_DAMAGED" == json.loads(result.stdout)["verdict"]["status"]


async def test_rechained_decision(log_copy: Path) -> None:
    """A changed decision in a rechained log diverges: exit status 3, with every changed field."""

    def approve(event: Envelope) -> None:
        if event.decision.reason_code == "PARCEL_LOST":
            event.decision.reason_code = "PARCEL_FOUND"
            event.decision.policy_version = 7

    await rewrite(log_copy, approve, rechain=True)
    result = gavel("replay", "--data", log_copy)
    assert (3, "") == (result.returncode, result.stderr)
    rows = [line.split() for line in result.stdout.splitlines()]
    assert ["decision.reason_code", '"PARCEL_FOUND"', '"PARCEL_LOST"'] in rows
    assert ["decision.policy_version", '"7"', '"1"'] in rows
    assert {"#11", "#10"} <= {row[0] for row in rows if row}
    assert result.stdout.splitlines()[-1].startswith("diverged: event 12 (DecisionRejected) is recomputed differently: decision.")
    differences = json.loads(gavel("replay", "--data", log_copy, "--json=snake").stdout)["verdict"]["divergence"]["differences"]
    assert {"decision.policy_version", "decision.reason_code"} == {difference["path"] for difference in differences}


async def test_rewritten_log(log_copy: Path) -> None:
    """A log that is rewritten unchanged is still proved, so the other tests detect their change and not the rewriting."""
    await rewrite(log_copy, leave_unchanged, rechain=True)
    assert 0 == gavel("replay", "--data", log_copy).returncode


async def test_forged_fact(log_copy: Path) -> None:
    """A changed fact in a rechained log diverges at the decision that no longer follows from it."""

    def lose(event: Envelope) -> None:
        if event.subject == "parcel/light" and event.HasField("fact"):
            event.fact.value.string_value = "lost"

    await rewrite(log_copy, lose, rechain=True)
    result = gavel("replay", "--data", log_copy)
    assert 3 == result.returncode
    assert "decision.outcome" in result.stdout


async def test_other_arbiter_version(log_copy: Path) -> None:
    """A log with an unknown arbiter version is exit status 5."""

    def upgrade(event: Envelope) -> None:
        if event.fact.WhichOneof("system") == "bus_opened":
            event.fact.bus_opened.arbiter_version = 99

    await rewrite(log_copy, upgrade, rechain=True)
    result = gavel("replay", "--data", log_copy)
    assert 5 == result.returncode
    assert "arbiter_version 99" in result.stdout


async def test_missing_entry(log_copy: Path) -> None:
    """A missing entry is damage and is named, whether or not the head's count is adjusted."""
    async with EmbeddedRedis(log_copy) as embedded, redis.asyncio.Redis.from_url(embedded.url) as connection:
        await connection.xdel(LOG_KEY, "5-0")
    result = gavel("replay", "--data", log_copy)
    assert 4 == result.returncode
    assert "event 5 is missing" in result.stdout
    async with EmbeddedRedis(log_copy) as embedded, redis.asyncio.Redis.from_url(embedded.url) as connection:
        await connection.hincrby(HEAD_KEY, "count", -1)
    result = gavel("replay", "--data", log_copy)
    assert 4 == result.returncode
    assert "event 5 is missing" in result.stdout


async def test_undecodable_entry(log_copy: Path) -> None:
    """An entry that is not an envelope is damage, even if it is chained."""

    def rubbish(event: Envelope) -> bytes | None:
        return b"\xff\xff\xff" if event.sequence_number == 6 else None

    await rewrite(log_copy, rubbish, rechain=True)
    result = gavel("replay", "--data", log_copy)
    assert (4, "damaged: event 6 cannot be decoded\n") == (result.returncode, result.stdout)


def test_candidate_rule_set(log_copy: Path, tmp_path: Path) -> None:
    """--rules lists the decisions that a candidate would change and counts them by transition; exit status 1 if there are any."""
    candidate = tmp_path / "candidate.yaml"
    candidate.write_text(rule_set(version=2).replace("<= 30", "<= 60").replace("effect: approve", "effect: review, reason_code: LOOK"))
    result = gavel("replay", "--data", log_copy, "--rules", candidate)
    lines = result.stdout.splitlines()
    assert 1 == result.returncode
    assert [
        "parcels version 2 would change 2 of 3 decisions",
        "  APPROVED->NEEDS_HUMAN_REVIEW: 1",
        "  REJECTED->NEEDS_HUMAN_REVIEW: 1",
    ] == lines[-3:]
    responses = [json.loads(line) for line in gavel("replay", "--data", log_copy, "--rules", candidate, "--json=snake").stdout.splitlines()]
    assert ["6", "9"] == [response["changed"]["sequence_number"] for response in responses[:-1]]
    assert "2" == responses[-1]["summary"]["changed"]
    candidate.write_text(rule_set().replace("rule_set: parcels", "rule_set: parcel"))
    result = gavel("replay", "--data", log_copy, "--rules", candidate)
    assert "no version of parcel was in force" in result.stderr


def test_invalid_candidate(log_copy: Path, tmp_path: Path) -> None:
    """An invalid candidate is exit status 2, with the places of its mistakes."""
    candidate = tmp_path / "candidate.yaml"
    candidate.write_text(rule_set().replace("params.weight", "params.wait"))
    result = gavel("replay", "--data", log_copy, "--rules", candidate)
    assert (2, "") == (result.returncode, result.stdout)
    assert f"{candidate}:" in result.stderr
    assert "params.weight" in result.stderr


def test_running_server(tmp_path: Path, log_copy: Path) -> None:
    """While a server runs on the directory its Redis is read, also if the path is too long for a socket."""
    deep = copy_of(log_copy, tmp_path / ("deep-" * 20) / "data")
    server = Server(deep)
    with run_servers(server):
        assert (0, PROVED + "\n") == (gavel("replay", "--data", deep).returncode, gavel("replay", "--data", deep).stdout)
        assert (0, PROVED + "\n") == (gavel("replay", "--redis", server.redis_url).returncode, gavel("replay", "--data", deep).stdout)
        result = gavel("replay", "--server", server.address)
        assert (0, PROVED + "\n") == (result.returncode, result.stdout)
        assert 0 == server.terminate()
    assert 0 == gavel("replay", "--data", deep).returncode


def test_unreachable_redis() -> None:
    """An unreachable Redis is exit status 1, and the message masks its password."""
    result = gavel("replay", GAVEL_REDIS="redis://:secret@127.0.0.1:9")
    assert (1, "") == (result.returncode, result.stdout)
    assert "cannot connect to Redis at redis://***@127.0.0.1:9" in result.stderr
    assert "secret" not in result.stderr
