"""The demo's story: four orders of a web shop, each a case for the shipped refund rule set.

Every step is a real call of the contract, and every printed event is read back from the log. The story never sleeps: where the
executor or the fact derivation reactor has to act, it subscribes to the log until the result is there.

Each party is a process with a token of its own (`parties`), on a server that requires credentials: the agents cannot speak for the order
system, nor the executor for an agent. The story tells them what to say. Its own client is that of the operator.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from typing import Final

from gavel.v1.common_pb2 import PRODUCER_TYPE_AGENT, PRODUCER_TYPE_DATABASE_SNAPSHOT, PRODUCER_TYPE_TOOL_RUNTIME, Producer
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.fact_pb2 import REVIEW_VERDICT_APPROVE
from gavel.v1.projection_service_pb2 import Projection
from gavel_client import (
    GavelClient,
    fact_envelope,
    observation_envelope,
    proposal_envelope,
    reference,
    tool_call_envelope,
    tool_result_envelope,
)
from gavel_rules.authoring.shipped_rule_sets import shipped_rule_set

from gavel_server.cli.demo import parties
from gavel_server.cli.demo.parties import GRANTS, Party
from gavel_server.cli.demo.party import ACTION
from gavel_server.cli.demo.timeline import Timeline

RULE_SET: Final = "refunds"
# A step of the story that takes longer fails.
STEP_TIMEOUT_MS: Final = 30_000
MAX_FACT_AGE_MS: Final = 300_000
CUSTOMER: Final = "customer-7"
# The fact that the rule set derives from a paid refund; the built-in fact of the report's status precedes it.
DERIVED_KEY: Final = "order.refunded"

ORDERS: Final = Producer(type=PRODUCER_TYPE_DATABASE_SNAPSHOT, id=parties.ORDERS, version="demo")
AGENT: Final = Producer(type=PRODUCER_TYPE_AGENT, id=parties.AGENT, version="demo")
TOOLS: Final = Producer(type=PRODUCER_TYPE_TOOL_RUNTIME, id=parties.TOOLS, version="demo")
OTHER_AGENT: Final = Producer(type=PRODUCER_TYPE_AGENT, id=parties.OTHER_AGENT, version="demo")


class Story:
    """Plays the demo on the bus of `client`, which is the operator's; the parties speak for themselves.

    Subjects and traces carry a fresh run id, so that the story can be played on one log any number of times.
    """

    def __init__(self, client: GavelClient, speakers: Mapping[str, Party], timeline: Timeline) -> None:
        self._client = client
        self._parties = speakers
        self._timeline = timeline
        self._run = os.urandom(3).hex()
        self._shown = 0
        self.main_trace = f"refund-{self._run}-1"

    async def play(self) -> Projection:
        """Play all chapters; return the projection of the first order after its refund."""
        self._shown = (await self._client.get_status()).head_sequence_number
        await self._grants()
        await self._rules()
        projection = await self._refund()
        await self._conflict()
        await self._stale_fact()
        await self._human_review()
        return projection

    async def _grants(self) -> None:
        self._timeline.heading("Who may do what")
        self._timeline.sentence(
            "Each party below is a process with a token of its own. Grants, which are in the log too, say what it may do: "
            "an agent may propose, and only the order system may state facts about orders."
        )
        before = self._shown
        deployed = await self._client.deploy_grants(GRANTS)
        await self._show()
        if self._shown == before:
            self._timeline.sentence(f"{deployed.name} {deployed.version} has been in force since an earlier run.")

    async def _rules(self) -> None:
        self._timeline.heading("The rules")
        self._timeline.sentence(
            f"The rule set {RULE_SET} is recorded in the log, so the log alone is enough to recompute every decision in it."
        )
        deployed = await self._client.deploy_rule_set(shipped_rule_set(RULE_SET))
        status = await self._client.get_status()
        in_force = {active.policy_id: active.version for active in status.active_rule_sets}
        if in_force.get(deployed.policy_id) != deployed.version:
            await self._client.activate_rule_set(deployed.policy_id, deployed.version)
        await self._show()
        if self._shown == status.head_sequence_number:
            self._timeline.sentence(f"{deployed.policy_id} {deployed.version} has been in force since an earlier run.")

    async def _refund(self) -> Projection:
        """Play a refund that succeeds, from the first fact to the last."""
        order, trace = self._order(1), self.main_trace
        say = self._timeline
        say.heading(f"A refund, from the first fact to the last ({order}, trace {trace})")
        say.sentence("The order system reports a fact. An agent reads it and proposes a refund; agents can only propose.")
        status = await self._fact(order, trace, "order.status", "delivered")
        params = {"amount": 620, "currency": "EUR", "customer_id": CUSTOMER, "reason": "damaged"}
        rejection = await self._propose(order, trace, params, [status])
        say.sentence("Facts are missing. The retry hint names all of them at once, so the agent knows what to fetch.")
        say.sentence(
            "The agent asks the fraud tool about the customer. The tool's runtime records call and result; the observation cites them."
        )
        score = await self._observe(f"customer/{CUSTOMER}", trace, {"customer.fraud_score": 0.04})
        say.sentence("The order system adds the facts that the hint names.")
        total = await self._fact(order, trace, "order.total", 640)
        customer = await self._fact(order, trace, "order.customer_id", CUSTOMER)
        say.sentence("The agent proposes again, citing the rejection as the cause and all facts as evidence.")
        decision = await self._propose(order, trace, params, [status, total, customer, score], cause=rejection)
        say.sentence("An executor carries out exactly what was approved. A fact is derived from its report; the executor cannot claim one.")
        await self._carry_out(decision)
        response = await self._client.get_projection(order, min_sequence_number=self._shown)
        return response.projection

    async def _conflict(self) -> None:
        order, trace = self._order(2), f"refund-{self._run}-2"
        say = self._timeline
        say.heading(f"Two agents, one order ({order})")
        say.sentence("One agent's refund is approved but not executed yet. A second agent proposes to refund the same order.")
        facts = await self._order_facts(order, trace, total=80)
        decision = await self._propose(order, trace, self._params(40), facts)
        await self._propose(order, f"{trace}-other", self._params(75), facts, producer=OTHER_AGENT)
        say.sentence(
            "An order has at most one live approval: the second proposal is rejected and names the first. Then the first is executed."
        )
        await self._carry_out(decision)

    async def _stale_fact(self) -> None:
        order, trace = self._order(3), f"refund-{self._run}-3"
        say = self._timeline
        say.heading(f"A stale fact ({order})")
        say.sentence("The order's status is ten minutes old. Rules never see a fact that is older than they allow.")
        facts = await self._order_facts(order, trace, total=80, status_at=datetime.now(UTC) - timedelta(minutes=10))
        await self._propose(order, trace, self._params(40), facts)

    async def _human_review(self) -> None:
        order, trace = self._order(4), f"refund-{self._run}-4"
        say = self._timeline
        say.heading(f"Three rejections and a person ({order})")
        say.sentence("An agent proposes one refund after another, each larger than the order's total.")
        facts = await self._order_facts(order, trace, total=80)
        decision: Envelope | None = None
        for amount in (120, 100, 90):
            decision = await self._propose(order, trace, self._params(amount), facts, cause=decision)
        say.sentence("The third rejection in a row requires a person. Until the review is resolved, every proposal of the trace is held.")
        await self._propose(order, trace, self._params(80), facts, cause=decision)
        assert decision is not None  # noqa: S101  # for the type checker: the loop runs three times
        say.sentence("A person lets the trace continue. That approves no refund: the rules decide the next proposal.")
        await self._client.resolve_review(
            decision.event_id, REVIEW_VERDICT_APPROVE, reviewer="ada", reason="refund the order's total and no more"
        )
        await self._carry_out(await self._propose(order, trace, self._params(80), facts, cause=decision))

    async def _fact(self, subject: str, trace: str, key: str, value: object, occurred_at: datetime | None = None) -> Envelope:
        envelope = fact_envelope(subject, ORDERS, key=key, value=value, trace_id=trace, occurred_at=occurred_at or datetime.now(UTC))
        return await self._say(envelope)

    async def _say(self, envelope: Envelope) -> Envelope:
        """Let the producer of an event say it; return what the log has of it, or the decision on a proposal."""
        recorded = await self._parties[envelope.producer.id].say(envelope)
        await self._show()
        return recorded

    async def _order_facts(self, subject: str, trace: str, *, total: int, status_at: datetime | None = None) -> list[Envelope]:
        """Publish the three facts that the rule set requires of an order."""
        return [
            await self._fact(subject, trace, "order.status", "delivered", status_at),
            await self._fact(subject, trace, "order.total", total),
            await self._fact(subject, trace, "order.customer_id", CUSTOMER),
        ]

    async def _observe(self, subject: str, trace: str, fields: Mapping[str, object]) -> Envelope:
        """Let the runtime of tools record a call and its result, and the agent its observation of it."""
        call = await self._parties[parties.TOOLS].say(
            tool_call_envelope(
                subject,
                TOOLS,
                tool_name="fraud-mcp",
                arguments={"subject": subject},
                arguments_summary=f"score {subject}",
                agent_id=parties.AGENT,
                trace_id=trace,
            )
        )
        result = await self._parties[parties.TOOLS].say(
            tool_result_envelope(
                call,
                result=dict(fields),
                result_summary=", ".join(f"{key} {value}" for key, value in fields.items()),
                duration_ms=12,
            )
        )
        return await self._say(
            observation_envelope(
                subject,
                AGENT,
                source_tool="fraud-mcp",
                extracted_fields=fields,
                evidence=result,
                trace_id=trace,
                causation_id=result.event_id,
            )
        )

    async def _propose(
        self,
        subject: str,
        trace: str,
        params: Mapping[str, object],
        evidence: list[Envelope],
        *,
        producer: Producer = AGENT,
        cause: Envelope | None = None,
    ) -> Envelope:
        envelope = proposal_envelope(
            subject,
            producer,
            action_type=ACTION,
            params=params,
            max_fact_age_ms=MAX_FACT_AGE_MS,
            based_on_events=[reference(event) for event in evidence],
            risk=0.1,
            confidence=0.9,
            trace_id=trace,
            causation_id=cause.event_id if cause else "",
        )
        return await self._say(envelope)

    async def _carry_out(self, decision: Envelope) -> None:
        """Let the executor run until the facts of the decision's execution are in the log."""
        executor = self._parties[parties.EXECUTOR]
        await executor.tell("run")
        await self._show_until(lambda event: _is_last_fact(event, decision))
        await executor.tell("stop")

    async def _show(self) -> None:
        """Print the events that are new since the last print."""
        head = (await self._client.get_status()).head_sequence_number
        if head > self._shown:
            await self._show_until(lambda event: event.sequence_number >= head)

    async def _show_until(self, is_last: Callable[[Envelope], bool]) -> None:
        """Print the log as it grows, up to the event for which `is_last` is true."""
        responses = self._client.subscribe_events(from_sequence_number=self._shown + 1, timeout_ms=STEP_TIMEOUT_MS)
        async with aclosing(responses):
            async for response in responses:
                if not response.HasField("envelope"):
                    continue
                self._timeline.event(response.envelope)
                self._shown = response.envelope.sequence_number
                if is_last(response.envelope):
                    return

    def _order(self, number: int) -> str:
        return f"order/{self._run}-{number}"

    @staticmethod
    def _params(amount: int) -> dict[str, object]:
        return {"amount": amount, "currency": "EUR", "customer_id": CUSTOMER}


def _is_last_fact(event: Envelope, decision: Envelope) -> bool:
    return event.fact.decision_id == decision.event_id and event.fact.key == DERIVED_KEY
