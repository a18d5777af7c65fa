"""`gavel reviews`, `gavel review` and `gavel revoke` against a real server, with and without --json."""

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
    """A client of the test's own bus, whose rules send heavy parcels to review."""
    file = tmp_path / "rules.yaml"
    file.write_text(rule_set().rstrip("\n") + "\n" + LOOK)
    assert 0 == gavel("rules", "deploy", file, "--activate", "--bus", bus, server=shop).returncode
    with SyncGavelClient(shop.address, bus=bus) as client:
        yield client


def decide(client: SyncGavelClient, subject: str, weight: float) -> Envelope:
    """Propose to send a parcel that is ready; return the decision."""
    ready = client.publish_event(fact_envelope(subject, DEPOT, key="parcel.status", value="ready")).envelope
    return client.submit_proposal(send(ready, weight)).decision


def test_approve(shop: Server, bus: str, reviewing: SyncGavelClient) -> None:
    """A review is listed until it is approved; the log has the reviewer and the reason."""
    assert "Nothing waits for a person.\n" == gavel("reviews", "--bus", bus, server=shop).stdout
    review = decide(reviewing, "parcel/1", 50)
    listing = gavel("reviews", "--bus", bus, server=shop)
    (row,) = [line.split() for line in listing.stdout.splitlines() if review.event_id in line]
    assert [review.event_id, "proposal", "HEAVY"] == row[:3]
    assert "parcel/1" in row
    assert "you may vote" in listing.stdout.splitlines()[0]
    assert "yes" in row

    result = gavel("review", "approve", review.event_id, "--reason", "weighed it", "--bus", bus, server=shop)
    assert (0, "") == (result.returncode, result.stderr)
    assert ["outcome", "APPROVED"] == result.stdout.splitlines()[0].split()
    assert [] == json.loads(gavel("reviews", "--json=snake", "--bus", bus, server=shop).stdout)["reviews"]
    log = gavel("log", "list", "--bus", bus, server=shop).stdout
    assert f"{getpass.getuser()} said APPROVE on {review.event_id}: weighed it" in log


def test_proposal_for_review(shop: Server, bus: str, reviewing: SyncGavelClient) -> None:
    """The decision that needs review names the command that lists it."""
    ready = reviewing.publish_event(fact_envelope("parcel/1", DEPOT, key="parcel.status", value="ready")).envelope
    for weight, waits in ((50, True), (5, False)):
        result = gavel("propose", "-", "--bus", bus, server=shop, text=as_text(send(ready, weight)))
        assert waits == ("a person; gavel reviews lists it" in result.stdout)


def test_reject(shop: Server, bus: str, reviewing: SyncGavelClient) -> None:
    """--json prints the response; later proposals of the trace are explained as rejected by a person."""
    review = decide(reviewing, "parcel/1", 50)
    result = gavel("review", "reject", review.event_id, "--reason", "no", "--by", "ada", "--json=snake", "--bus", bus, server=shop)
    decision = json.loads(result.stdout)["decision"]["decision"]
    assert (0, "REVIEW_REJECTED", True) == (result.returncode, decision["reason_code"], decision["terminal"])
    next_proposal = send(reviewing.publish_event(fact_envelope("parcel/1", DEPOT, key="parcel.status", value="ready")).envelope, 5)
    next_proposal.trace_id = review.trace_id
    output = gavel("propose", "-", "--bus", bus, server=shop, text=as_text(next_proposal)).stdout
    assert ["outcome", "REJECTED", "NO_FEASIBLE_PROPOSAL"] == output.splitlines()[0].split()
    assert "a person has rejected this action" in output


def test_open_review(shop: Server, bus: str, reviewing: SyncGavelClient) -> None:
    """An approval without the required facts leaves the review open, and a note says what to do."""
    review = decide(reviewing, "parcel/1", 50)
    reviewing.publish_event(fact_envelope("parcel/1", DEPOT, key="parcel.status", value=None))
    result = gavel("review", "approve", review.event_id, "--reason", "seen", "--bus", bus, server=shop)
    assert 0 == result.returncode
    assert ["outcome", "NEEDS_HUMAN_REVIEW", "NEED_MORE_FACTS"] == result.stdout.splitlines()[0].split()
    assert "parcel.status" in result.stdout
    assert "the review is still open" in result.stderr
    assert review.event_id in gavel("reviews", "--bus", bus, server=shop).stdout


def test_revoke(shop: Server, bus: str, reviewing: SyncGavelClient) -> None:
    """An approval is revoked once, by its number too; revoking it again, or an unknown one, is exit status 1."""
    approval = decide(reviewing, "parcel/1", 5)
    result = gavel("revoke", approval.event_id, "--reason", "recalled", "--by", "ada", "--bus", bus, server=shop)
    assert (0, "") == (result.returncode, result.stderr)
    assert result.stdout.startswith(f"{approval.event_id} is revoked at event ")
    next_proposal = gavel("revoke", str(approval.sequence_number), "--reason", "recalled", "--bus", bus, server=shop)
    assert (1, "") == (next_proposal.returncode, next_proposal.stdout)
    assert "it has been revoked (WRONG_STATE)" in next_proposal.stderr
    proposal = gavel("revoke", str(approval.sequence_number - 1), "--reason", "recalled", "--bus", bus, server=shop)
    assert (1, True) == (proposal.returncode, "is not a decision; gavel log search" in proposal.stderr)
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
    """Missing and empty values are exit status 2."""
    result = gavel(*arguments, server=shop)
    assert (2, "", True) == (result.returncode, result.stdout, part in result.stderr), result.stderr


def test_votes(shop: Server, bus: str, reviewing: SyncGavelClient, tmp_path: Path) -> None:
    """`gavel reviews` shows who has voted and who may; votes and comments are lines of the log; --by names the person."""
    file = tmp_path / "votes.yaml"
    look = f"{LOOK.rstrip().removesuffix('}')}, review: {{quorum: 2, escalate_after_ms: 3600000}}}}\n"
    file.write_text(rule_set().replace("version: 1", "version: 2", 1).rstrip("\n") + "\n" + look)
    assert 0 == gavel("rules", "deploy", file, "--activate", "--bus", bus, server=shop).returncode
    review = decide(reviewing, "parcel/1", 50)
    first = gavel("review", "approve", review.event_id, "--reason", "weighed", "--by", "ada", "--bus", bus, server=shop)
    assert (0, f"ada said APPROVE on {review.event_id}, 1 of 2 votes: weighed") == (first.returncode, first.stdout.partition(" (event")[0])
    again = gavel("review", "approve", review.event_id, "--reason", "weighed", "--by", "ada", "--bus", bus, server=shop)
    assert (True, True) == (again.returncode != 0, "has voted to approve already" in again.stderr)
    assert 0 == gavel("review", "comment", review.event_id, "how heavy?", "--bus", bus, server=shop).returncode
    listing = gavel("reviews", "--bus", bus, server=shop).stdout
    assert all(text in listing for text in ("1 of 2: ada", "everybody", "how heavy?", getpass.getuser()))
    assert "1 of 2 votes" in gavel("trace", review.trace_id, "--bus", bus, server=shop).stdout
    last = gavel("review", "approve", review.event_id, "--reason", "weighed", "--by", "ben", "--bus", bus, server=shop)
    assert ["outcome", "APPROVED"] == last.stdout.splitlines()[0].split()
