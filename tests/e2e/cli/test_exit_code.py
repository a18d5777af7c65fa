"""`gavel propose` and `gavel preflight` with --exit-code: the outcome of a decision as the exit status."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from gavel.v1.envelope_pb2 import Envelope
from gavel_client import SyncGavelClient, fact_envelope

from tests.e2e.cli.programs import as_text, gavel, send
from tests.e2e.world import DEPOT, Server, rule_set

HEAVY = "  - {id: heavy, action: parcel.send, priority: 900, when: params.weight > 40, effect: review, reason_code: HEAVY}\n"
# By weight, for a parcel that is ready.
EXIT_STATUSES = [(5, 0, "OUTCOME_APPROVED"), (35, 10, "OUTCOME_REJECTED"), (50, 11, "OUTCOME_NEEDS_HUMAN_REVIEW")]


@pytest.fixture
def ready(shop: Server, bus: str, tmp_path: Path) -> Envelope:
    """The fact that a parcel is ready, on a bus whose rules send heavy parcels to review."""
    file = tmp_path / "rules.yaml"
    file.write_text(rule_set().rstrip("\n") + "\n" + HEAVY)
    assert 0 == gavel("rules", "deploy", file, "--activate", "--bus", bus, server=shop).returncode
    with SyncGavelClient(shop.address, bus=bus) as client:
        return client.publish_event(fact_envelope("parcel/1", DEPOT, key="parcel.status", value="ready")).envelope


@pytest.mark.parametrize(("weight", "status", "outcome"), EXIT_STATUSES)
@pytest.mark.parametrize("command", ["preflight", "propose"])
def test_outcome(shop: Server, bus: str, ready: Envelope, command: str, weight: float, status: int, outcome: str) -> None:
    """With --exit-code each outcome has its own exit status; without it every outcome exits with 0. The output is the same."""
    text = as_text(send(ready, weight))
    for options, expected in (((), 0), (("--exit-code",), status)):
        result = gavel(command, "-", "--json=snake", *options, "--bus", bus, server=shop, text=text)
        answer = json.loads(result.stdout)["decision"]
        assert (expected, "", outcome) == (result.returncode, result.stderr, answer.get("decision", answer)["outcome"])
    result = gavel(command, "-", "--exit-code", "--bus", bus, server=shop, text=text)
    assert (status, True) == (result.returncode, result.stdout.startswith("outcome"))


def test_failures_keep_their_status(shop: Server) -> None:
    """With --exit-code an invalid document still exits with 2, and a server that does not answer with 1."""
    assert 2 == gavel("propose", "-", "--exit-code", server=shop, text="[]").returncode
    proposal = as_text(send(Envelope(subject="parcel/1"), 5))
    assert 1 == gavel("preflight", "-", "--exit-code", "--server", "127.0.0.1:9", text=proposal).returncode
