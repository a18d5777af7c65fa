"""`gavel tools call` and `gavel evidence`: a call leaves evidence that is read, verified and pruned."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest
from gavel.v1.common_pb2 import PRODUCER_TYPE_AGENT, Producer
from gavel_client import GavelClient, observation_envelope
from gavel_client.evidence.store import EvidenceStore

from tests.e2e.cli.programs import gavel, gavel_into_closed_pipe
from tests.e2e.world import GAVEL, Server

PROFILE = """
runtime: tools-1
evidence: ./evidence
providers:
  workspace: {directory: ./work}
  workspace-command: {directory: ./work, commands: {text.cat: [cat]}}
"""
DAY_S = 24 * 3600


@pytest.fixture
def profile(shop: Server, bus: str, tmp_path: Path) -> Path:
    """A profile with a workspace of one file; the shipped tools are registered on the bus."""
    (tmp_path / "work").mkdir()
    (tmp_path / "work/a.txt").write_text("hello\n")
    file = tmp_path / "tools.yaml"
    file.write_text(PROFILE)
    registered = gavel("tools", "register", "--shipped", "--server", shop.address, "--bus", bus)
    assert 0 == registered.returncode, registered.stderr
    return file


def test_evidence_does_not_control_a_terminal(tmp_path: Path) -> None:
    """Evidence is printed byte for byte into a pipe; on a terminal its control characters are escaped."""
    content = "first\n\x1b]0;title\x07\x9b2J\u202e\n".encode()
    digest = EvidenceStore(str(tmp_path)).put(content)[0]
    arguments = ("evidence", "get", digest, "--store", str(tmp_path))
    assert content.decode() == gavel(*arguments).stdout
    ours, theirs = pty.openpty()
    shown = b""
    with subprocess.Popen([GAVEL, *arguments], stdout=theirs) as process:
        os.close(theirs)
        with suppress(OSError):  # the terminal's other side is closed
            while part := os.read(ours, 4096):
                shown += part
    os.close(ours)
    assert (0, "first\r\n\\x1b]0;title\\x07\\x9b2J\\u202e\r\n") == (process.returncode, shown.decode())


def test_evidence_into_a_closed_pipe(tmp_path: Path) -> None:
    """When the reader of evidence closes the pipe, the command ends silently with 141, however little there is to write."""
    for content in (b"a", b"a" * 100_000):
        digest = EvidenceStore(str(tmp_path)).put(content)[0]
        result = gavel_into_closed_pipe("evidence", "get", digest, "--store", tmp_path)
        assert (141, "") == (result.returncode, result.stderr)


def test_results_do_not_control_a_terminal(shop: Server, bus: str, profile: Path) -> None:
    """What a tool returns is printed with its control characters escaped, and means the same."""
    text = "\x1b]0;title\x07\x9b2J\u202e\n"
    (profile.parent / "work/a.txt").write_text(text)
    call = ("tools", "call", "read_file", '{"path": "/workspace/a.txt"}', "--profile", str(profile), "--server", shop.address, "--bus", bus)
    plain, report = gavel(*call), gavel(*call, "--json")
    assert (text, text) == (json.loads(plain.stdout)["text"], json.loads(report.stdout)["data"]["text"])
    for result in (plain, report):
        assert (0, True) == (result.returncode, result.stdout.replace("\n", "").isprintable())


async def test_evidence_of_a_call(shop: Server, bus: str, profile: Path) -> None:
    """A call prints its result and leaves evidence; verify names every event that pins it, and fails once it is altered or gone."""
    at = ("--server", shop.address, "--bus", bus)
    store = ("--store", str(profile.parent / "evidence"))
    call = ("tools", "call", "read_file", '{"path": "/workspace/a.txt"}', "--profile", str(profile), "--trace", "t-1", *at)
    called = gavel(*call, "--json")
    report = json.loads(called.stdout)
    assert (0, "fs.read_text", "workspace", "hello\n") == (
        called.returncode,
        report["canonical_tool"],
        report["provider_id"],
        report["data"]["text"],
    )
    assert report["data"] == json.loads(gavel("evidence", "get", report["evidence_hash"], *store).stdout)

    async with GavelClient(shop.address, bus=bus) as client:
        result = (await client.get_event(event_id=report["result_event"])).envelope
        agent = Producer(type=PRODUCER_TYPE_AGENT, id="agent-1")
        fields = {"note.text": "hello"}
        reading = observation_envelope(
            "tool/call", agent, source_tool="fs.read_text", extracted_fields=fields, evidence=result, trace_id="t-1"
        )
        observed = (await client.publish_event(reading)).envelope
    assert 2 == observed.observation.trust_tier
    verified = gavel("evidence", "verify", "t-1", *store, *at, "--json")
    pinned_by = [f"tool result {result.sequence_number}", f"observation {observed.sequence_number}"]
    expected = [{"hash": report["evidence_hash"], "pinned_by": pinned_by, "state": "verified"}]
    assert (0, expected) == (verified.returncode, json.loads(verified.stdout))

    file = next((profile.parent / "evidence/sha256").rglob("*/*"))
    file.write_text("forged")
    altered = gavel("evidence", "verify", "t-1", *store, *at)
    assert (1, True) == (altered.returncode, "altered" in altered.stdout)
    assert 1 == gavel("evidence", "get", report["evidence_hash"], *store).returncode
    file.unlink()
    missing = gavel("evidence", "verify", "t-1", *store, *at)
    assert (1, True) == (missing.returncode, "missing" in missing.stdout)
    assert 1 == gavel("evidence", "verify", "no-such-trace", *store, *at).returncode
    elsewhere = gavel("evidence", "verify", "t-1", "--store", str(profile.parent / "evidense"), *at)
    assert (2, True) == (elsewhere.returncode, "there is no directory" in elsewhere.stderr)
    # The same call again returns the same content, which is then kept again.
    assert 0 == gavel(*call).returncode
    assert 0 == gavel("evidence", "verify", "t-1", *store, *at).returncode


def test_pruning(shop: Server, bus: str, profile: Path) -> None:
    """Evidence that no call returned within --keep is removed and named; all other evidence stays."""
    at = ("--profile", str(profile), "--server", shop.address, "--bus", bus)
    directory = profile.parent / "evidence"
    hashes = []
    for number in (0, 1):
        (profile.parent / "work/a.txt").write_text(f"version {number}\n")
        called = gavel("tools", "call", "fs.read_text", '{"path": "/workspace/a.txt"}', *at, "--json")
        hashes.append(json.loads(called.stdout)["evidence_hash"])
    old = directory / "sha256" / hashes[0][7:9] / hashes[0][9:]
    os.utime(old, (time.time() - 91 * DAY_S,) * 2)
    store = ("--store", str(directory))
    dry = gavel("evidence", "prune", "--keep", "90d", "--dry-run", *store)
    assert (True, True) == (hashes[0] in dry.stdout, old.exists())
    pruned = gavel("evidence", "prune", "--keep", "90d", *store)
    assert (True, False) == (hashes[0] in pruned.stdout, hashes[1] in pruned.stdout)
    assert (1, 0) == tuple(gavel("evidence", "get", one, *store).returncode for one in hashes)
    assert "removed 0 pieces" in gavel("evidence", "prune", "--keep", "90d", *store).stdout
    assert 2 == gavel("evidence", "prune", "--keep", "soon", *store).returncode


def test_calls_that_fail(shop: Server, bus: str, profile: Path) -> None:
    """A failure of the tool has exit status 1 and its code; wrong usage has 2 and says what to do."""
    at = ("--profile", str(profile), "--server", shop.address, "--bus", bus)
    missing = gavel("tools", "call", "read", '{"path": "/workspace/none"}', *at)
    assert (1, True) == (missing.returncode, "E_PATH: /workspace/none does not exist" in missing.stderr)
    refused = gavel("tools", "call", "bash", '{"commandId": "shell.exec", "argv": ["id"]}', *at)
    assert (1, True) == (refused.returncode, "E_PERMISSION" in refused.stderr)
    unknown = gavel("tools", "call", "fs.raed_text", *at)
    assert (1, True) == (unknown.returncode, "did you mean fs.read_text?" in unknown.stderr)
    assert 2 == gavel("tools", "call", "read", "[1]", *at).returncode
    profile.write_text(PROFILE.replace("commands", "command"))
    wrong = gavel("tools", "call", "read", *at)
    assert (2, True) == (wrong.returncode, "providers.workspace-command.command is unknown; did you mean commands?" in wrong.stderr)
    assert 2 == gavel("tools", "register", "--server", shop.address, "--bus", bus).returncode
