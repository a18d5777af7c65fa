"""`gavel reviews`, `gavel review` and `gavel revoke` against a real server: what people see, and what machines do."""

from __future__ import annotations

import getpass
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from gavel.v1.envelope_pb2 import Envelope
from gavel_client import SyncGavelClient, fact_envelope

from tests.e2e.cli.programs import as_text, gavel, send
from tests.e2e.world import DEPOT, Server, rule_set

LOOK = "  - {id: heavy, action: parcel.send, priority: 900, when: params.weight > 40, effect: review, reason_code: HEAVY}\n"


@pytest.fixture
def reviewing(shop: Server, bus: str, tmp_path: Path) -> Iterator[SyncGavelClient]:
    """A client of a bus of the test's own, whose rules ask a person about heavy parcels."""
    file = tmp_path / "rules.yaml"
    file.write_text(rule_set().rstrip("\n") + "\n" + LOOK)
    assert 0 == gavel("rules", "deploy", file, "--activate", "--bus", bus, server=shop).returncode
    with SyncGavelClient(shop.address, bus=bus) as client:
        yield client


def decided(client: SyncGavelClient, subject: str, weight: float) -> Envelope:
    """The decision about sending a parcel that is ready."""
    ready = client.publish_event(fact_envelope(subject, DEPOT, key="parcel.status", value="ready")).envelope
    return client.submit_proposal(send(ready, weight)).decision


def test_a_review_from_the_list_to_the_approval(shop: Server, bus: str, reviewing: SyncGavelClient) -> None:
    """What waits is listed with its id; approving it prints the decision; then nothing waits, and the log says who spoke and why."""
    assert "Nothing waits for a person.\n" == gavel("reviews", "--bus", bus, server=shop).stdout
    review = decided(reviewing, "parcel/1", 50)
    listed = gavel("reviews", "--bus", bus, server=shop)
    (row,) = [line.split() for line in listed.stdout.splitlines() if review.event_id in line]
    assert [review.event_id, "proposal", "HEAVY"] == row[:3]
    assert "parcel/1" in row

    done = gavel("review", "approve", review.event_id, "--reason", "weighed it", "--bus", bus, server=shop)
    assert (0, "") == (done.returncode, done.stderr)
    assert ["outcome", "APPROVED"] == done.stdout.splitlines()[0].split()
    assert [] == json.loads(gavel("reviews", "--json", "--bus", bus, server=shop).stdout)["reviews"]
    log = gavel("log", "list", "--bus", bus, server=shop).stdout
    assert f"{getpass.getuser()} said APPROVE on {review.event_id}: weighed it" in log


def test_who_proposes_is_told_where_it_waits(shop: Server, bus: str, reviewing: SyncGavelClient) -> None:
    """A proposal that needs a person says so, and which command shows it."""
    ready = reviewing.publish_event(fact_envelope("parcel/1", DEPOT, key="parcel.status", value="ready")).envelope
    for weight, waits in ((50, True), (5, False)):
        done = gavel("propose", "-", "--bus", bus, server=shop, text=as_text(send(ready, weight)))
        assert waits == ("a person; gavel reviews lists it" in done.stdout)


def test_a_rejection_as_json(shop: Server, bus: str, reviewing: SyncGavelClient) -> None:
    """The response is protobuf JSON; what follows in the trace is explained to people as final."""
    review = decided(reviewing, "parcel/1", 50)
    done = gavel("review", "reject", review.event_id, "--reason", "no", "--by", "ada", "--json", "--bus", bus, server=shop)
    decision = json.loads(done.stdout)["decision"]["decision"]
    assert (0, "REVIEW_REJECTED", True) == (done.returncode, decision["reason_code"], decision["terminal"])
    again = send(reviewing.publish_event(fact_envelope("parcel/1", DEPOT, key="parcel.status", value="ready")).envelope, 5)
    again.trace_id = review.trace_id
    shown = gavel("propose", "-", "--bus", bus, server=shop, text=as_text(again)).stdout
    assert ["outcome", "REJECTED", "NO_FEASIBLE_PROPOSAL"] == shown.splitlines()[0].split()
    assert "a person has rejected it" in shown


def test_a_review_that_stays_open(shop: Server, bus: str, reviewing: SyncGavelClient) -> None:
    """Where the evidence is gone the decision says what is lacking, and a note what to do; the review is still listed."""
    review = decided(reviewing, "parcel/1", 50)
    reviewing.publish_event(fact_envelope("parcel/1", DEPOT, key="parcel.status", value=None))
    done = gavel("review", "approve", review.event_id, "--reason", "seen", "--bus", bus, server=shop)
    assert 0 == done.returncode
    assert ["outcome", "NEEDS_HUMAN_REVIEW", "NEED_MORE_FACTS"] == done.stdout.splitlines()[0].split()
    assert "parcel.status" in done.stdout
    assert "the review is still open" in done.stderr
    assert review.event_id in gavel("reviews", "--bus", bus, server=shop).stdout


def test_revoke(shop: Server, bus: str, reviewing: SyncGavelClient) -> None:
    """An approval is taken back once; a second time, and for what is unknown, a sentence says why not; exit status 1."""
    approval = decided(reviewing, "parcel/1", 5)
    done = gavel("revoke", approval.event_id, "--reason", "recalled", "--by", "ada", "--bus", bus, server=shop)
    assert (0, "") == (done.returncode, done.stderr)
    assert done.stdout.startswith(f"{approval.event_id} is revoked (event ")
    again = gavel("revoke", approval.event_id, "--reason", "recalled", "--bus", bus, server=shop)
    assert (1, "") == (again.returncode, again.stdout)
    assert "it has been revoked (WRONG_STATE)" in again.stderr
    unknown = gavel("review", "approve", approval.causation_id, "--reason", "seen", "--bus", bus, server=shop)
    assert (1, True) == (unknown.returncode, "DECISION_NOT_FOUND" in unknown.stderr)


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["review", "approve", "x", "--reason", "seen"], "decision_id is not a UUID"),
        (["review", "approve", "x"], "--reason"),
        (["review", "reject", "x", "--reason", " "], "--reason is empty"),
        (["review", "approve", "x", "--reason", "seen", "--by", ""], "--by is empty"),
        (["revoke", "x", "--reason", "seen", "--by", " "], "--by is empty"),
        (["revoke", "x", "--reason", "seen"], "decision_id is not a UUID"),
    ],
)
def test_wrong_usage(shop: Server, arguments: list[str], part: str) -> None:
    """What cannot be sent is exit status 2 and a sentence."""
    done = gavel(*arguments, server=shop)
    assert (2, "", True) == (done.returncode, done.stdout, part in done.stderr), done.stderr
