"""The gate where callers have identities and grants."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from gavel.v1.execution_pb2 import EXECUTION_STATUS_SUCCESS
from gavel.v1.fact_pb2 import REVIEW_VERDICT_APPROVE
from gavel_client import GavelClient, GavelError, fact_envelope
from gavel_client.gate import Allowed, Gate, Pending
from gavel_server.identity.tokens import add_token

from tests.e2e.adapters.agents.agent import Depot, actions
from tests.e2e.adapters.conftest import RULES
from tests.e2e.adapters.test_leases import CALL
from tests.e2e.world import ACTION, DEPOT, PATIENT_MS, POLICY, Server, prove, run_servers, wait_for_events

NAMES = ("ada", "depot", "sender", "reader")
GRANTS = f"""
gavel: v1
name: parcels
version: 1
grants:
  - {{to: [ada], may: [deploy, activate, grant, read, review, subscribe, replay]}}
  - {{to: [depot], may: [publish], produce: {{types: [database_snapshot], ids: [{DEPOT.id}]}}, facts: ["parcel.*"]}}
  - {{to: [sender], may: [propose], produce: {{types: [agent], ids: [sender]}}, actions: [{ACTION}]}}
  - {{to: [sender], may: [execute], produce: {{types: [executor], ids: [tools]}}, actions: [{ACTION}]}}
  - {{to: [reader], may: [propose], produce: {{types: [agent], ids: [sender]}}, actions: [{ACTION}]}}
  - {{to: [sender, reader], may: [read]}}
"""


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, dict[str, str]]]:
    """A server that requires authentication, and the tokens of its callers."""
    directory: Path = tmp_path_factory.mktemp("secured")
    tokens = {name: add_token(directory / "tokens.toml", name, (), None) for name in NAMES}
    options = ["--no-front", "--authentication", "required", "--token-file", str(directory / "tokens.toml")]
    server = Server(directory / "data", options=options, environment={"GAVEL_ADMINS": '["ada"]'})
    with run_servers(server):
        yield server, tokens


@pytest.fixture
async def callers(secured: tuple[Server, dict[str, str]]) -> AsyncIterator[dict[str, GavelClient]]:
    """A client for each caller, with the grants and the rules in force and four parcels that are ready."""
    server, tokens = secured
    clients = {name: GavelClient(server.address, credentials=token) for name, token in tokens.items()}
    await clients["ada"].deploy_grants(GRANTS)
    await clients["ada"].deploy_rule_set(RULES)
    await clients["ada"].activate_rule_set(POLICY, 1)
    for parcel in ("parcel/1", "parcel/2", "parcel/3", "parcel/4"):
        await clients["depot"].publish_event(fact_envelope(parcel, DEPOT, key="parcel.status", value="ready"))
    yield clients
    for client in clients.values():
        await client.close()


@pytest.mark.long
async def test_a_gate_acts_with_the_rights_of_its_caller(callers: dict[str, GavelClient]) -> None:
    """With the grants of agent and executor a tool runs; with the agent's alone it does not; and no agent states the depot's facts."""
    depot = Depot()
    with pytest.raises(GavelError) as refused:
        await Gate(callers["reader"], actions(), agent="sender", executor="tools")(CALL)
    assert "RIGHT_LACKING" == refused.value.reason
    with pytest.raises(GavelError) as refused:
        await callers["sender"].publish_event(fact_envelope("parcel/1", DEPOT, key="parcel.status", value="ready"))
    assert "RIGHT_LACKING" == refused.value.reason
    assert [] == depot.effects
    call = replace(CALL, arguments={"parcel": "2", "weight": 2.0}, task="task-2")
    answer = await Gate(callers["sender"], actions(), agent="sender", executor="tools")(call)
    assert isinstance(answer, Allowed)
    await answer.run(lambda: depot.act("2"))
    assert ["2"] == depot.effects
    (report,) = await wait_for_events(callers["ada"], lambda event: event.execution.status == EXECUTION_STATUS_SUCCESS)
    assert "sender" == report.attestation.principal
    await prove(callers["ada"])


async def test_a_held_call_needs_no_further_rights(callers: dict[str, GavelClient]) -> None:
    """A call that the review of another call of its task holds is pending, and is proposed anew after the verdict, with the same rights."""
    gate = Gate(callers["sender"], actions(), agent="sender", executor="tools", deadline_ms=PATIENT_MS)
    heavy = replace(CALL, arguments={"parcel": "3", "weight": 50.0}, task="task-3")
    light = replace(CALL, arguments={"parcel": "4", "weight": 2.0}, task="task-3")
    assert isinstance(await gate(heavy), Pending)
    for _ in range(2):
        assert isinstance(await gate(light), Pending)
    (review,) = (await callers["ada"].list_pending_reviews()).reviews
    await callers["ada"].resolve_review(review.decision_id, REVIEW_VERDICT_APPROVE, reviewer="ada", reason="looked at")
    answer = await gate(light)
    assert isinstance(answer, Allowed)
    await answer.run(lambda: Depot().act("4"))
