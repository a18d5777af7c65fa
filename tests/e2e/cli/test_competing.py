"""`gavel preflight`, `gavel propose` and `gavel log` of proposals that compete."""

from __future__ import annotations

import json
from pathlib import Path

from gavel.v1.envelope_pb2 import Envelope
from gavel_client import SyncGavelClient, fact_envelope
from google.protobuf.json_format import MessageToJson

from tests.e2e.cli.programs import gavel
from tests.e2e.world import DEPOT, Server, proposal, rule_set


def write(file: Path, envelope: Envelope) -> Path:
    """Write a proposal to a file."""
    file.write_text(MessageToJson(envelope))
    return file


def test_a_contest_on_the_command_line(shop: Server, bus: str, tmp_path: Path) -> None:
    """A preflight prints when the contest would close; propose waits up to --wait and prints the place in the contest."""
    rules = tmp_path / "rules.yaml"
    rules.write_text(rule_set(contest_window_ms=1_500))
    assert 0 == gavel("rules", "deploy", rules, "--activate", "--bus", bus, server=shop).returncode
    with SyncGavelClient(shop.address, bus=bus) as client:
        ready = client.publish_event(fact_envelope("parcel/1", DEPOT, key="parcel.status", value="ready")).envelope
    file = write(tmp_path / "proposal.json", proposal(ready, priority=2))
    preflight = gavel("preflight", file, "--bus", bus, server=shop)
    assert (0, "") == (preflight.returncode, preflight.stderr)
    assert "it would compete until" in preflight.stdout
    assert "with a score of 200" in preflight.stdout
    late = gavel("propose", file, "--wait", "0.3", "--bus", bus, server=shop)
    assert 0 != late.returncode
    event_id = json.loads(file.read_text())["eventId"]
    assert late.stderr.startswith("gavel: no decision within 0.3 s; a proposal in a contest is decided when")
    assert f"again with event_id {event_id} and a longer --wait" in late.stderr
    result = gavel("propose", file, "--wait", "60", "--bus", bus, server=shop)
    assert (0, "") == (result.returncode, result.stderr)
    assert "place 1 of 1, with a score of 200; closed" in result.stdout
    listing = gavel("log", "list", "--bus", bus, server=shop).stdout
    assert 1 == listing.count("competes for parcel/1 until")
