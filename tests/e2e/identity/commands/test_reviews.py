"""Reviews by authenticated persons with `gavel`, on both transports: quorum, groups, separation, veto, escalation, and the replay."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from gavel.v1.envelope_pb2 import Envelope
from gavel_client import SyncGavelClient, fact_envelope
from gavel_server.identity.tokens import add_token

from tests.e2e.cli.programs import gavel, send
from tests.e2e.identity.world import wait_until
from tests.e2e.world import ACTION, DEPOT, Server, rule_set, run_servers
from tests.support.fronts import TRANSPORTS

# Callers with their groups. The agent is of risk too, and may vote on the proposals of others only.
CALLERS = {"ada": [], "depot": [], "agent-1": ["risk"], "rita": ["risk"], "rob": ["risk"], "lea": ["leads"], "max": ["others"]}
GRANTS = f"""
gavel: v1
name: depot
version: 1
grants:
  - {{to: [ada], may: [grant, deploy, activate, read, replay]}}
  - {{to: [depot], may: [publish], produce: {{types: [database_snapshot], ids: [depot]}}, facts: ["parcel.*"]}}
  - {{to: [agent-1], may: [propose], produce: {{types: [agent], ids: [agent-1]}}, actions: [{ACTION}]}}
  - {{to: ["group:risk", "group:leads", "group:others"], may: [review, read], actions: [{ACTION}]}}
"""


def rules(version: int, escalation: str) -> str:
    """Return rules that send heavy parcels to two members of risk other than the proposer."""
    review = f"{{quorum: 2, groups: [risk], separation: true{escalation}}}"
    heavy = f"id: heavy, action: {ACTION}, priority: 900, when: params.weight > 40, effect: review, reason_code: HEAVY, review: {review}"
    return f"{rule_set(version=version)}  - {{{heavy}}}\n"


class Depot:
    """A server with a token for each caller."""

    def __init__(self, directory: Path, server: Server) -> None:
        self.directory = directory
        self.server = server

    def run(self, by: str, *arguments: str | Path) -> tuple[int, str]:
        """Run a command as a caller; return its status and all that it prints."""
        result = gavel(*arguments, "--token-file", self.directory / f"{by}.token", server=self.server)
        return result.returncode, result.stdout + result.stderr

    def vote(self, by: str, verdict: str, review: Envelope, *more: str) -> tuple[int, str]:
        """Vote on a review as a caller."""
        return self.run(by, "review", verdict, review.event_id, "--reason", "seen", *more)

    def review(self, subject: str) -> Envelope:
        """Propose to send a heavy parcel; return the decision that asks for a review."""
        token = {name: (self.directory / f"{name}.token").read_text() for name in ("depot", "agent-1")}
        with SyncGavelClient(self.server.address, credentials=token["depot"]) as client:
            fact = client.publish_event(fact_envelope(subject, DEPOT, key="parcel.status", value="ready")).envelope
        with SyncGavelClient(self.server.address, credentials=token["agent-1"]) as client:
            return client.submit_proposal(send(fact, 50, trace_id=f"send-{subject}")).decision

    def activate(self, document: str) -> None:
        """Put a version of the rules in force."""
        file = self.directory / "rules.yaml"
        file.write_text(document)
        status, output = self.run("ada", "rules", "deploy", file, "--activate")
        assert 0 == status, output


@pytest.fixture(scope="module", params=TRANSPORTS)
def depot(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Depot]:
    """A server on each transport, with grants and rules in force."""
    directory = tmp_path_factory.mktemp("reviews")
    for name, groups in CALLERS.items():
        (directory / f"{name}.token").write_text(add_token(directory / "tokens.toml", name, tuple(groups), None))
    (directory / "gavel.toml").write_text(f'authentication = "required"\ntoken_file = "{directory}/tokens.toml"\nadmins = ["ada"]\n')
    server = Server(directory / "data", options=["--config", str(directory / "gavel.toml"), "--front", request.param])
    running = Depot(directory, server)
    with run_servers(server):
        (directory / "grants.yaml").write_text(GRANTS)
        status, output = running.run("ada", "grants", "deploy", directory / "grants.yaml")
        assert 0 == status, output
        running.activate(rules(1, ""))
        yield running


def prove(depot: Depot) -> None:
    """Let the server prove its log."""
    status, output = depot.run("ada", "replay", "--server", depot.server.address)
    assert (0, True) == (status, "\nproved: " in f"\n{output}"), output


@pytest.mark.long
def test_two_members_of_the_group_approve(depot: Depot) -> None:
    """Two members of the group approve; the proposer, strangers to the group, and anybody in another's name do not, nor one twice."""
    review = depot.review("parcel/1")
    for by, more, problem in (
        ("agent-1", (), "agent-1"),
        ("max", (), "risk"),
        ("ada", (), "may not review"),
        ("rita", ("--by", "rob"), "reviewer is 'rob', but the authenticated caller is 'rita'; leave reviewer empty (FIELD_RESERVED)"),
    ):
        status, output = depot.vote(by, "approve", review, *more)
        assert (1, True) == (status, problem in output), output
    status, output = depot.vote("rita", "approve", review)
    assert (0, True) == (status, output.startswith(f"rita said APPROVE on {review.event_id}, 1 of 2 votes")), output
    status, output = depot.vote("rita", "approve", review)
    assert (1, True) == (status, "rita has voted to approve already" in output), output
    shown = {by: json.loads(depot.run(by, "reviews", "--json=snake")[1])["reviews"] for by in ("rita", "rob", "agent-1", "max")}
    assert {"rita": False, "rob": True, "agent-1": False, "max": False} == {by: row["may_vote"] for by, (row,) in shown.items()}
    status, output = depot.vote("rob", "approve", review)
    assert (0, ["outcome", "APPROVED"]) == (status, output.split()[:2]), output
    prove(depot)


def test_one_rejection_is_a_veto(depot: Depot) -> None:
    """One member's rejection ends a review that has an approval; nobody votes afterwards."""
    review = depot.review("parcel/2")
    assert 0 == depot.vote("rita", "approve", review)[0]
    status, output = depot.vote("rob", "reject", review)
    assert (0, ["outcome", "REJECTED", "REVIEW_REJECTED"]) == (status, output.split()[:3]), output
    status, output = depot.vote("rita", "approve", review)
    assert (1, True) == (status, "has no open review: it has been resolved" in output), output
    prove(depot)


def test_escalated_reviews_are_open_to_more_groups(depot: Depot) -> None:
    """Once a review is escalated, and not before, the groups of the escalation vote too."""
    review = depot.review("parcel/3")
    status, output = depot.vote("lea", "approve", review)
    assert (1, True) == (status, "risk" in output), output
    assert 0 == depot.vote("rob", "reject", review)[0]
    depot.activate(rules(2, ", escalate_after_ms: 1, escalate_to: [leads]"))
    review = depot.review("parcel/4")

    def escalated() -> bool:
        return f"ReviewEscalated: {review.event_id}" in depot.run("ada", "trace", review.trace_id)[1]

    wait_until(escalated, "the review is not escalated")
    status, output = depot.vote("lea", "approve", review)
    assert (0, True) == (status, output.startswith(f"lea said APPROVE on {review.event_id}, 1 of 2 votes")), output
    status, output = depot.vote("rita", "approve", review)
    assert (0, ["outcome", "APPROVED"]) == (status, output.split()[:2]), output
    prove(depot)
