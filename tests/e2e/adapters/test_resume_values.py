"""Values with which a framework resumes a call, and which change the call.

Tests import the frameworks themselves: processes that only collect them are spared the seconds.
"""

from __future__ import annotations

import pytest
from gavel.v1.fact_pb2 import REVIEW_VERDICT_APPROVE
from gavel_client import GavelClient
from gavel_client.gate import Gate

from tests.e2e.adapters.agents.agent import Depot, Turn, actions

DEADLINE_MS = 5_000


@pytest.mark.long
async def test_arguments_that_an_approval_replaces_are_decided_anew(client: GavelClient) -> None:
    """Pydantic AI lets an approval replace the arguments; the gate decides on those, so that the approval gives no right to them."""
    from pydantic_ai import DeferredToolResults, ToolApproved

    from tests.e2e.adapters.agents.pydantic_ai import PydanticAIAgent

    class Overriding(PydanticAIAgent):
        """An agent whose person approves another parcel."""

        async def resume(self) -> Turn:
            """Approve with other arguments."""
            approval = ToolApproved(override_args={"parcel": "1", "weight": 500.0})
            results = DeferredToolResults(approvals={call.tool_call_id: approval for call in self._waiting})
            return await self._run(message_history=self._messages, deferred_tool_results=results)

    depot = Depot()
    # The gate waits until then for the end of the work in conflict.
    gate = Gate(client, actions(), agent="sender", executor="tools", deadline_ms=DEADLINE_MS)
    agent = Overriding(gate, depot, "task-1")
    assert (await agent.start([{"parcel": "1", "weight": 50.0}])).paused
    (review,) = (await client.list_pending_reviews()).reviews
    await client.resolve_review(review.decision_id, REVIEW_VERDICT_APPROVE, reviewer="pat", reason="looked at")
    turn = await agent.resume()
    # The approval of the lighter parcel holds the key.
    assert "CONFLICTING_DECISION" in turn.text
    assert [] == depot.effects
