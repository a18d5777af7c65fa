"""The load of the benchmark: orders with their facts, refund proposals that cite them, and a rule set of twenty rules.

Every proposal has an order of its own, so that no conflict key is held and each decision comes from a rule: three in four are
approved, one in four is refused because its order is cancelled. Facts are published just before use, because they become stale.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from io import BytesIO, StringIO
from pathlib import Path

import grpc
from gavel.v1 import arbitration_service_pb2 as arbitration
from gavel.v1 import common_pb2, envelope_pb2, event_service_pb2, event_service_pb2_grpc, fact_pb2
from gavel_rules.values import python_to_value
from google.protobuf.message import Message
from google.protobuf.proto import serialize_length_prefixed
from ruamel.yaml import YAML

BATCH_EVENTS_MAX = 500
BATCH_PROPOSALS = 50
CANCELLED_EVERY = 4
FACTS = 3
ACTION = "refund.create"
RULES_OF_THE_LARGE_SET = 20

# Conditions as authors write them. None holds for the proposals of the benchmark, so the shipped rules still decide.
FURTHER_CONDITIONS = (
    'params.amount > 5000.0 && facts.order_status == "delivered"',
    'params.currency == "USD" && params.amount > 2500.0',
    "proposal.risk > 0.8 && params.amount > 50.0",
    'facts.order_status in ["lost", "returned", "disputed"]',
    "proposal.confidence < 0.2 || proposal.cost > 900.0",
    'facts.order_customer != params.customer_id && facts.order_status != "cancelled"',
    "evidence.oldest_age_ms > 86000000 && proposal.priority < 0",
    "params.amount * 1.19 > 9000.0",
    'subject.id.startsWith("test-")',
    "trace.consecutive_rejections > 100",
)


def large_rule_set(document: str) -> str:
    """Return a rule set with rules added up to RULES_OF_THE_LARGE_SET, all of which are evaluated for every decision."""
    yaml = YAML()
    rule_set = yaml.load(document)
    used = {rule["priority"] for rule in rule_set["rules"]}
    free = (priority for priority in range(1, 65536) if priority not in used)
    for number, priority in zip(range(RULES_OF_THE_LARGE_SET - len(rule_set["rules"])), free, strict=False):
        condition = FURTHER_CONDITIONS[number % len(FURTHER_CONDITIONS)]
        rule_set["rules"].append(
            {
                "id": f"further-{number}",
                "action": ACTION,
                "priority": priority,
                "when": f"({condition}) && params.amount > {number}.5",
                "effect": "reject",
                "reason_code": f"FURTHER_{number}",
            }
        )
    output = StringIO()
    yaml.dump(rule_set, output)
    return output.getvalue()


def proposals(channel: grpc.Channel, count: int) -> list[envelope_pb2.Envelope]:
    """Publish the facts of `count` new orders and return a proposal for each, with an event_id, as clients send it."""
    orders = [f"order/{uuid.uuid4().hex[:16]}" for _ in range(count)]
    facts = [fact for number, order in enumerate(orders) for fact in _facts(order, cancelled=number % CANCELLED_EVERY == 0)]
    published = _publish(channel, facts)
    return [_proposal(order, published[FACTS * number : FACTS * (number + 1)]) for number, order in enumerate(orders)]


def write_requests(path: Path, proposals: Sequence[envelope_pb2.Envelope], *, batch: bool, preflight: bool) -> int:
    """Write the requests for `proposals`, length-delimited as ghz reads them; return their number."""
    requests: list[Message]
    if batch:
        groups = [proposals[start : start + BATCH_PROPOSALS] for start in range(0, len(proposals), BATCH_PROPOSALS)]
        kind = arbitration.BatchPreflightRequest if preflight else arbitration.BatchSubmitProposalsRequest
        requests = [kind(envelopes=group) for group in groups]
    else:
        single = arbitration.PreflightRequest if preflight else arbitration.SubmitProposalRequest
        requests = [single(envelope=proposal) for proposal in proposals]
    output = BytesIO()
    for request in requests:
        serialize_length_prefixed(request, output)
    path.write_bytes(output.getvalue())
    return len(requests)


def _facts(order: str, *, cancelled: bool) -> Iterable[envelope_pb2.Envelope]:
    """Yield the order's status, customer and total, as facts of the order database."""
    values = {"order.status": "cancelled" if cancelled else "delivered", "order.customer_id": "customer-7", "order.total": 80.0}
    for key, value in values.items():
        envelope = envelope_pb2.Envelope(
            subject=order,
            producer=common_pb2.Producer(type=common_pb2.PRODUCER_TYPE_DATABASE_SNAPSHOT, id="orders-db", version="1"),
            fact=fact_pb2.Fact(key=key, observed_from=fact_pb2.OBSERVED_FROM_DB),
        )
        envelope.fact.value.CopyFrom(python_to_value(value))
        yield envelope


def _publish(channel: grpc.Channel, events: Sequence[envelope_pb2.Envelope]) -> list[common_pb2.EventReference]:
    """Publish events and return references to them, in order. Raises RuntimeError if one is refused."""
    stub = event_service_pb2_grpc.EventServiceStub(channel)
    references = []
    for start in range(0, len(events), BATCH_EVENTS_MAX):
        request = event_service_pb2.BatchPublishEventsRequest(envelopes=events[start : start + BATCH_EVENTS_MAX])
        for result in stub.BatchPublishEvents(request).results:
            if result.HasField("error"):
                raise RuntimeError(f"a fact was refused: {result.error.message}")
            references.append(common_pb2.EventReference(event_id=result.envelope.event_id, sequence_number=result.envelope.sequence_number))
    return references


def _proposal(order: str, references: Sequence[common_pb2.EventReference]) -> envelope_pb2.Envelope:
    """Return a refund that the shipped rules approve if the order was delivered."""
    name = uuid.uuid4()
    envelope = envelope_pb2.Envelope(
        event_id=str(name),
        trace_id=f"trace-{name.hex}",
        subject=order,
        producer=common_pb2.Producer(type=common_pb2.PRODUCER_TYPE_AGENT, id="support-agent", version="2.1.0"),
        version_binding=common_pb2.VersionBinding(execution_version="2.1.0", planner_version="7"),
    )
    proposal = envelope.proposal
    proposal.action_type = ACTION
    proposal.params.update({"amount": 42.5, "currency": "EUR", "customer_id": "customer-7"})
    proposal.expected_outcome = "The customer gets 42.50 EUR back."
    proposal.cost, proposal.risk, proposal.confidence, proposal.priority = 1.0, 0.1, 0.9, 1
    proposal.max_fact_age_ms = 86_400_000
    proposal.based_on_events.extend(references)
    return envelope
