"""Dry runs under grants: they are restricted as the proposals themselves are."""

from __future__ import annotations

from collections.abc import AsyncIterator

import grpc
import pytest
from gavel.v1.administration_service_pb2 import DeployGrantsRequest
from gavel.v1.arbitration_service_pb2 import BatchPreflightRequest, PreflightRequest
from gavel.v1.common_pb2 import Producer
from gavel.v1.envelope_pb2 import Envelope

from tests.integration.services.identity.callers import ADMIN, AGENT, GRANTS, KnowingInterceptor, by
from tests.integration.services.world import AGENT as AGENT_PRODUCER
from tests.integration.services.world import World, proposal, refusal, refusal_of, running_world


@pytest.fixture
async def world() -> AsyncIterator[World]:
    """A server with rules and GRANTS in force."""
    async with running_world(interceptor=KnowingInterceptor(), admins=["ada"]) as running:
        await running.buses.open("")
        await running.activate()
        await running.administration.DeployGrants(DeployGrantsRequest(document=GRANTS), metadata=by(ADMIN))
        yield running


def lacking() -> list[tuple[Envelope, str]]:
    """Return proposals that the grants of AGENT do not cover, and the part that they lack."""
    other_action = proposal("order/1")
    other_action.proposal.action_type = "payout.create"
    stranger = Producer(type=AGENT_PRODUCER.type, id="stranger-1", version="1")
    return [
        (proposal("parcel/1"), "grant 1 lacks subject parcel/1"),
        (other_action, "grant 1 lacks action payout.create"),
        (proposal("order/1", producer=stranger), "grant 1 lacks producer id stranger-1"),
    ]


async def test_preflight(world: World) -> None:
    """A dry run needs a grant that allows its producer, its action and its subject."""
    answer = await world.arbitration.Preflight(PreflightRequest(envelope=proposal("order/1")), metadata=by(AGENT))
    assert answer.decision.action_type == "refund.create"
    for envelope, lack in lacking():
        refused = await refusal(world.arbitration.Preflight(PreflightRequest(envelope=envelope), metadata=by(AGENT)))
        assert (grpc.StatusCode.PERMISSION_DENIED, "RIGHT_LACKING") == (refused.code, refused.reason)
        assert lack in refused.message


async def test_batch_preflight(world: World) -> None:
    """In a batch each dry run is allowed or refused by itself."""
    envelopes = [proposal("order/1"), *(envelope for envelope, _ in lacking())]
    answer = await world.arbitration.BatchPreflight(BatchPreflightRequest(envelopes=envelopes), metadata=by(AGENT))
    assert ["decision", *["error"] * 3] == [result.WhichOneof("result") for result in answer.results]
    for result, (_, lack) in zip(answer.results[1:], lacking(), strict=True):
        refused = refusal_of(result.error)
        assert "RIGHT_LACKING" == refused.reason
        assert lack in refused.message
