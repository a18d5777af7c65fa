"""Traces of one caller in which others may take part, on a real server with tokens and JSON Web Tokens, on both transports."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from gavel.v1 import common_pb2
from gavel.v1.common_pb2 import Producer
from gavel.v1.decision_pb2 import OUTCOME_APPROVED
from gavel.v1.envelope_pb2 import Envelope
from gavel_client import GavelError, SyncGavelClient, Tls, fact_envelope
from gavel_server.front.programs import FrontSetting

from tests.e2e.cli.programs import copy_of, gavel, rewrite
from tests.e2e.identity.world import SecureServer
from tests.e2e.world import AGENT, DEPOT, proposal, rule_set
from tests.support.fronts import TRANSPORTS

WORKER = Producer(type=common_pb2.PRODUCER_TYPE_AGENT, id="worker-1")
PLANNERS = "planners"
ADMIN = "alice"
GRANTS = f"""
gavel: v1
name: main
version: 1
grants:
  - {{to: [{ADMIN}], may: [grant, deploy, activate, publish, read, replay]}}
  - {{to: ["group:{PLANNERS}"], may: [propose], produce: {{types: [agent], ids: [agent-1]}}}}
  - {{to: [orders-agent], may: [propose], produce: {{types: [agent], ids: [worker-1]}}, joins: ["group:{PLANNERS}"]}}
  - {{to: [mallory], may: [propose], produce: {{types: [agent], ids: [worker-1, agent-1]}}}}
"""


def client_of(server: SecureServer, credentials: str) -> SyncGavelClient:
    """Return a client of one caller."""
    return SyncGavelClient(server.server.address, tls=Tls(ca=server.file("ca.pem")), credentials=credentials)


def person(server: SecureServer, name: str, *groups: str) -> str:
    """Return the token of a person in some groups."""
    return server.issuer.token(sub=name, realm_access={"roles": groups})


def send(fact: Envelope, producer: Producer, trace_id: str, cause: Envelope | None = None) -> Envelope:
    """Return a proposal of a producer in a trace, with a cause in it."""
    envelope = proposal(fact)
    envelope.producer.CopyFrom(producer)
    envelope.trace_id = trace_id
    if cause is not None:
        envelope.causation_id = cause.event_id
    return envelope


@pytest.fixture(params=TRANSPORTS)
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SecureServer]:
    """A server with rules and grants in force."""
    front: FrontSetting = request.param
    with SecureServer(tmp_path, front).running() as running:
        with client_of(running, person(running, ADMIN)) as admin:
            admin.deploy_rule_set(rule_set())
            admin.activate_rule_set("parcels", 1)
            admin.deploy_grants(GRANTS)
        yield running


@pytest.mark.long
async def test_delegation_needs_a_grant(server: SecureServer, tmp_path: Path) -> None:
    """A caller joins a group's trace with a cause in it if its grant says so; others do not, whoever they claim to be, and replay tells."""
    refusals: dict[str, str] = {}

    def attempt(name: str, client: SyncGavelClient, envelope: Envelope) -> None:
        with pytest.raises(GavelError) as refused:
            client.submit_proposal(envelope)
        refusals[name] = refused.value.reason

    with (
        client_of(server, person(server, ADMIN)) as admin,
        client_of(server, person(server, "paula", PLANNERS)) as planner,
        client_of(server, server.token) as worker,
        client_of(server, person(server, "mallory")) as stranger,
        client_of(server, person(server, "mallory", PLANNERS)) as colleague,
    ):
        facts = [
            admin.publish_event(fact_envelope(f"parcel/{number}", DEPOT, key="parcel.status", value="ready")).envelope
            for number in range(3)
        ]
        opening = planner.submit_proposal(send(facts[0], AGENT, "trace-of-paula")).decision
        assert OUTCOME_APPROVED == opening.decision.outcome
        joined = worker.submit_proposal(send(facts[1], WORKER, "trace-of-paula", opening)).decision
        assert (OUTCOME_APPROVED, "trace-of-paula") == (joined.decision.outcome, joined.trace_id)
        attempt("without a cause", worker, send(facts[2], WORKER, "trace-of-paula"))
        attempt("with a cause elsewhere", worker, send(facts[2], WORKER, "trace-of-paula", facts[2]))
        attempt("without a grant", stranger, send(facts[2], WORKER, "trace-of-paula", opening))
        attempt("as the owner's producer", stranger, send(facts[2], AGENT, "trace-of-paula", opening))
        attempt("as a member of the owner's group", colleague, send(facts[2], AGENT, "trace-of-paula"))
        attempt("as a producer of another grant", worker, send(facts[2], AGENT, "trace-of-paula", opening))
        # The owner's own budget is untouched.
        assert OUTCOME_APPROVED == planner.submit_proposal(send(facts[2], AGENT, "trace-of-paula")).decision.decision.outcome
        by_name = {event.attestation.principal for event in admin.get_trace("trace-of-paula").envelopes if event.HasField("proposal")}
    assert {
        "without a cause": "PRODUCER_NOT_ALLOWED",
        "with a cause elsewhere": "PRODUCER_NOT_ALLOWED",
        "without a grant": "RIGHT_LACKING",
        "as the owner's producer": "PRODUCER_NOT_ALLOWED",
        "as a member of the owner's group": "PRODUCER_NOT_ALLOWED",
        "as a producer of another grant": "PRODUCER_NOT_ALLOWED",
    } == refusals
    assert {"paula", "orders-agent"} == by_name
    assert 0 == server.server.terminate()
    assert 0 == gavel("replay", "--data", server.server.data).returncode

    forged = copy_of(server.server.data, tmp_path / "forged")

    def forge(event: Envelope) -> None:
        if event.HasField("proposal") and event.attestation.principal == "orders-agent":
            event.attestation.principal = "paula"

    await rewrite(forged, forge, rechain=True)
    result = gavel("replay", "--data", forged)
    assert 3 == result.returncode, result.stdout + result.stderr
    assert "no grant of main version 1 is for 'paula'" in result.stdout


async def test_actors_of_a_token_give_no_right(server: SecureServer) -> None:
    """A token whose `act` names the owner of a trace, or a group's member, makes nobody take part in the trace."""
    with client_of(server, person(server, ADMIN)) as admin, client_of(server, person(server, "paula", PLANNERS)) as planner:
        fact = admin.publish_event(fact_envelope("parcel/1", DEPOT, key="parcel.status", value="ready")).envelope
        opening = planner.submit_proposal(send(fact, AGENT, "trace-of-paula")).decision
    claims: dict[str, Any] = {"sub": "mallory", "act": {"sub": "paula"}, "may_act": {"sub": "paula"}, "groups": [PLANNERS]}
    with client_of(server, server.issuer.token(**claims)) as stranger, pytest.raises(GavelError) as refused:
        stranger.submit_proposal(send(fact, WORKER, "trace-of-paula", opening))
    assert "RIGHT_LACKING" == refused.value.reason
