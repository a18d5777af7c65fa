"""`gavel preflight`, `gavel propose` and `gavel log` where proposals compete: what people see."""

from __future__ import annotations

import json
from pathlib import Path

from gavel.v1.envelope_pb2 import Envelope
from gavel_client import SyncGavelClient, fact_envelope
from google.protobuf.json_format import MessageToJson

from tests.e2e.cli.programs import gavel
from tests.e2e.world import DEPOT, Server, proposal, rule_set


def written(file: Path, envelope: Envelope) -> Path:
    """A file with the proposal."""
    file.write_text(MessageToJson(envelope))
    return file


def test_a_contest_on_the_command_line(shop: Server, bus: str, tmp_path: Path) -> None:
    """A preflight says until when a proposal would compete; propose waits for the close as long as told, and says how it fared."""
    rules = tmp_path / "rules.yaml"
    rules.write_text(rule_set(contest_window_ms=1_500))
    assert 0 == gavel("rules", "deploy", rules, "--activate", "--bus", bus, server=shop).returncode
    with SyncGavelClient(shop.address, bus=bus) as client:
        ready = client.publish_event(fact_envelope("parcel/1", DEPOT, key="parcel.status", value="ready")).envelope
    file = written(tmp_path / "proposal.json", proposal(ready, priority=2))
    tried = gavel("preflight", file, "--bus", bus, server=shop)
    assert (0, "") == (tried.returncode, tried.stderr)
    assert "it would compete until" in tried.stdout
    assert "with a score of 200" in tried.stdout
    late = gavel("propose", file, "--wait", "0.3", "--bus", bus, server=shop)
    assert 0 != late.returncode
    event_id = json.loads(file.read_text())["eventId"]
    assert late.stderr.startswith("gavel: no decision within 0.3 s; if the proposal competes")
    assert f"again with event_id {event_id} and a longer --wait" in late.stderr
    done = gavel("propose", file, "--wait", "60", "--bus", bus, server=shop)
    assert (0, "") == (done.returncode, done.stderr)
    assert "place 1 of 1, with a score of 200; closed" in done.stdout
    listed = gavel("log", "list", "--bus", bus, server=shop).stdout
    assert 1 == listed.count("competes for parcel/1 until")
