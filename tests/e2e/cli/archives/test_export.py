"""`gavel export` from a real server: every format, resumed, and following."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from gavel.v1.envelope_pb2 import Envelope
from gavel_client import SyncGavelClient, fact_envelope
from google.protobuf.json_format import ParseDict

from tests.e2e.cli.programs import gavel, play
from tests.e2e.runs import forker
from tests.e2e.world import DEPOT, Server, run_servers

# Only a hanging export takes longer.
WAIT_SECONDS_MAX = 60


def publish(server: Server, bus: str, count: int) -> None:
    """Append facts to a bus."""
    with SyncGavelClient(server.address, bus=bus) as client:
        for number in range(count):
            client.publish_event(fact_envelope(f"parcel/{number}", DEPOT, key="parcel.status", value="ready"))


def logged(server: Server, bus: str = "") -> list[Envelope]:
    """Return the log of a bus."""
    with SyncGavelClient(server.address, bus=bus) as client:
        return list(client.list_events(page_size=1000).envelopes)


@pytest.mark.parametrize("format_name", ["jsonl", "cloudevents", "ocsf"])
def test_lines(shop: Server, format_name: str) -> None:
    """Standard output has one line an event, in order."""
    result = gavel("export", "--format", format_name, server=shop)
    assert (0, "") == (result.returncode, result.stderr)
    lines = [json.loads(one) for one in result.stdout.splitlines()]
    events = logged(shop)
    ids = {"jsonl": lambda one: one["event_id"], "cloudevents": lambda one: one["id"], "ocsf": lambda one: one["metadata"]["uid"]}
    assert [event.event_id for event in events] == [ids[format_name](one) for one in lines]
    if format_name == "jsonl":
        assert events == [ParseDict(one, Envelope()) for one in lines]


def test_from(shop: Server) -> None:
    """--from begins later."""
    result = gavel("export", "--from", "13", server=shop)
    later = [str(event.sequence_number) for event in logged(shop) if event.sequence_number >= 13]
    assert later == [json.loads(one)["sequence_number"] for one in result.stdout.splitlines()]


def test_parquet(shop: Server, tmp_path: Path) -> None:
    """A directory of Parquet has every event once, and reads as one table."""
    assert 0 == gavel("export", "--format", "parquet", "--to", tmp_path / "parquet", server=shop).returncode
    table = pq.read_table(tmp_path / "parquet")
    events = logged(shop)
    assert [event.event_id for event in events] == table["event_id"].to_pylist()
    assert [event.chain_hash for event in events] == table["chain_hash"].to_pylist()
    assert ["APPROVED", "REJECTED"] == sorted({*table["outcome"].to_pylist()} - {None})


def test_resumed(shop: Server, tmp_path: Path) -> None:
    """With a cursor, each run adds what is new, and nothing twice."""
    bus = "resumed"
    options = ("--bus", bus, "--to", tmp_path / "log.jsonl", "--cursor", tmp_path / "cursor")
    for count in (3, 0, 2):
        publish(shop, bus, count)
        assert 0 == gavel("export", *options, server=shop).returncode
    exported = [ParseDict(json.loads(one), Envelope()) for one in (tmp_path / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    assert logged(shop, bus) == exported


@pytest.mark.parametrize("format_name", ["jsonl", "parquet"])
def test_a_cursor_removes_nothing_of_another_export(shop: Server, tmp_path: Path, format_name: str) -> None:
    """The cursor of a run that found no events is that of its target: no other target loses anything, nor does a file get a gap."""
    mine, other, cursor = tmp_path / "mine", tmp_path / "other", tmp_path / "cursor"
    options = ("export", "--format", format_name, "--to")
    assert 0 == gavel(*options, mine, server=shop).returncode
    before = {path.name: path.read_bytes() for path in ([*mine.iterdir()] if mine.is_dir() else [mine])}
    assert 0 == gavel(*options, other, "--cursor", cursor, "--from", "1000", server=shop).returncode
    refused = gavel(*options, mine, "--cursor", cursor, server=shop)
    assert (1, True) == (refused.returncode, f"belongs to an export to {other}, not to {mine}" in refused.stderr), refused
    assert before == {path.name: path.read_bytes() for path in ([*mine.iterdir()] if mine.is_dir() else [mine])}
    assert 0 == gavel(*options, other, "--cursor", cursor, server=shop).returncode


def test_a_cursor_of_an_earlier_build_gets_the_name_of_its_target(shop: Server, tmp_path: Path) -> None:
    """A cursor that names no target belongs to the first one that it is used with, even if there are no new events."""
    path, cursor = tmp_path / "log.jsonl", tmp_path / "cursor"
    options = ("export", "--to", path, "--cursor", cursor)
    assert 0 == gavel(*options, server=shop).returncode
    fields = json.loads(cursor.read_text(encoding="utf-8"))
    assert str(path) == fields.pop("target")
    cursor.write_text(json.dumps({**fields, "kind": ""}), encoding="utf-8")
    forgotten = gavel("export", "--cursor", cursor, server=shop)
    assert (1, "", True) == (forgotten.returncode, forgotten.stdout, "name the file with --to" in forgotten.stderr), forgotten
    assert 0 == gavel(*options, server=shop).returncode
    assert {**fields, "target": str(path)} == json.loads(cursor.read_text(encoding="utf-8"))


def test_followed_and_killed(tmp_path: Path) -> None:
    """A following export writes what comes, survives a restart of the server, and, killed and started again, has each event once."""
    server = Server(tmp_path / "data", listen=f"unix:{tmp_path}/gavel.sock")
    path, cursor = tmp_path / "log.jsonl", tmp_path / "cursor"
    command: list[str | Path] = [
        *forker().command(),
        "export",
        "--follow",
        "--interval",
        "0.1",
        "--to",
        path,
        "--cursor",
        cursor,
        "--server",
    ]

    def await_lines(count: int) -> None:
        ends_at = time.monotonic() + WAIT_SECONDS_MAX
        while not path.exists() or path.read_bytes().count(b"\n") < count:
            assert time.monotonic() < ends_at, f"{count} events were not exported in time"
            time.sleep(0.05)

    with run_servers(server):
        play(server.address)
        with subprocess.Popen([*command, server.address]) as export:
            await_lines(13)
            server.terminate()
            server.start()
            publish(server, "", 2)
            await_lines(15)
            export.kill()
        publish(server, "", 2)
        with subprocess.Popen([*command, server.address]) as export:
            await_lines(17)
            export.send_signal(signal.SIGTERM)
            assert 0 == export.wait(WAIT_SECONDS_MAX)
        assert logged(server) == [ParseDict(json.loads(one), Envelope()) for one in path.read_text(encoding="utf-8").splitlines()]


def test_closed_output(shop: Server) -> None:
    """A reader that closes the output ends the export without a message."""
    with subprocess.Popen(
        [*forker().command(), "export", "--server", shop.address], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as export:
        assert export.stdout is not None
        assert export.stderr is not None
        export.stdout.close()
        assert "" == export.stderr.read()
    assert 141 == export.returncode


@pytest.mark.parametrize(
    ("options", "status", "problem"),
    [
        (("--format", "parquet"), 2, "name it with --to DIR"),
        (("--to", "/nowhere/log.jsonl"), 1, "No such file or directory"),
        (("--bus", "nowhere"), 1, "nowhere"),
    ],
)
def test_refusals(shop: Server, options: tuple[str, ...], status: int, problem: str) -> None:
    """A refusal to export is one line."""
    result = gavel("export", *options, server=shop)
    assert (status, True) == (result.returncode, problem in result.stderr)
