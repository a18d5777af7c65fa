"""A rule set for proposal loops, the providers of its facts, and first proposals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gavel.v1.envelope_pb2 import Envelope
from gavel_client import (
    FactNeed,
    FactProviders,
    GavelClient,
    LoopResult,
    ToolReading,
    fact_envelope,
    proposal_envelope,
)

from tests.integration.services.world import AGENT, ORDERS

RULES = """
gavel: v1
rule_set: refunds
version: 1
actions:
  refund.create:
    params:
      type: object
      required: [amount]
      additionalProperties: false
      properties: {amount: {type: number}}
    facts:
      status: {key: order.status, type: string, max_age_ms: 60000, sources: [orders-db]}
      score: {key: customer.score, subject: '"customer/7"', type: number, min_trust: 2, max_age_ms: 60000, sources: [fraud-mcp]}
    decision_ttl_ms: 60000
    rejection_limit: 9
rules:
  - {id: large, action: refund.create, priority: 9, when: params.amount > 1000, effect: review, reason_code: LARGE_REFUND}
  - {id: fraud, action: refund.create, priority: 5, when: facts.score > 0.9, effect: reject, reason_code: FRAUD}
  - {id: small, action: refund.create, priority: 1, when: params.amount <= 100, effect: approve}
"""


class Sources:
    """Providers of the two facts that the rule set needs, and the requests that they received."""

    def __init__(self, client: GavelClient, score: object = 0.1) -> None:
        self.needs: list[FactNeed] = []
        self.providers = FactProviders()
        self._client = client
        self._score = score
        self.providers.facts("order.status", source="orders-db")(self.status)
        self.providers.tool("customer.score", tool_name="fraud-mcp")(self.score)

    async def status(self, need: FactNeed) -> Sequence[Envelope]:
        """Have the order database publish the status."""
        self.needs.append(need)
        fact = fact_envelope(need.subject, ORDERS, key="order.status", value="delivered", trace_id=need.trace_id)
        return [(await self._client.publish_event(fact)).envelope]

    async def score(self, need: FactNeed) -> ToolReading:
        """Ask the fraud tool."""
        self.needs.append(need)
        return ToolReading({"score": self._score, "of": need.subject}, {"customer.score": self._score}, summary="scored")


def draft(subject: str = "order/1", amount: float = 10.0, **fields: Any) -> Envelope:
    """Return a first proposal that cites nothing."""
    return proposal_envelope(subject, AGENT, action_type="refund.create", params={"amount": amount}, max_fact_age_ms=60_000, **fields)


def codes(result: LoopResult) -> list[str]:
    """Return the reason codes of a loop's decisions."""
    return [one.decision.decision.reason_code for one in result.rounds if one.decision is not None]
