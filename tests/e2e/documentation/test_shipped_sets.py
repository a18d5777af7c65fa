"""Every shipped rule set on a real server, with a proposal that it approves and one that it refuses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import pytest
from gavel.v1 import common_pb2
from gavel.v1.common_pb2 import Producer
from gavel.v1.decision_pb2 import OUTCOME_APPROVED, OUTCOME_REJECTED
from gavel.v1.envelope_pb2 import Envelope
from gavel_client import GavelClient, fact_envelope, proposal_envelope, reference
from gavel_rules.authoring.shipped_rule_sets import shipped_names, shipped_rule_set

from tests.e2e.world import DAY_MS, PATIENT_MS, prove
from tests.support.driver import compile_cached

AGENT: Final = Producer(type=common_pb2.PRODUCER_TYPE_AGENT, id="agent-1")


class Play(NamedTuple):
    """Facts by (subject, source), a proposal, and a fact that changes its outcome."""

    facts: Mapping[tuple[str, str], Mapping[str, object]]
    action: str
    subject: str
    params: Mapping[str, Any]
    approved_by: str
    change: tuple[str, str, str, object]  # subject, source, key, value
    refused_with: str


PLAYS: Final = {
    "refunds": Play(
        {("order/1", "orders-db"): {"order.status": "delivered", "order.total": 80.0, "order.customer_id": "c-1"}},
        "refund.create",
        "order/1",
        {"amount": 40, "currency": "EUR", "customer_id": "c-1"},
        "delivered",
        ("order/1", "orders-db", "order.status", "cancelled"),
        "ORDER_CANCELLED",
    ),
    "refund-budgets": Play(
        {("order/1", "orders-db"): {"order.customer_id": "c-1"}},
        "refund.goodwill",
        "order/1",
        {"amount": 25, "customer_id": "c-1"},
        "goodwill",
        ("order/1", "orders-db", "order.customer_id", "c-2"),
        "CUSTOMER_MISMATCH",
    ),
    "infrastructure-change": Play(
        {
            ("service/checkout", "service-catalogue"): {"service.environment": "production", "service.instances_max": 12},
            ("service/checkout", "monitoring"): {"service.instances": 4, "service.load": 0.5},
            ("environment/production", "change-calendar"): {
                "change.freeze_from": "2020-01-01T00:00:00Z",
                "change.freeze_until": "2020-01-02T00:00:00Z",
            },
        },
        "service.scale",
        "service/checkout",
        {"instances": 3},
        "scale",
        ("environment/production", "change-calendar", "change.freeze_until", "2999-01-01T00:00:00Z"),
        "CHANGE_FREEZE",
    ),
    "outbound-communication": Play(
        {
            ("customer/7", "crm"): {"contact.blocked": False, "contact.mail_verified": True},
            ("customer/7", "consent-store"): {"consent.marketing_mail": True},
            ("customer/7", "mail-gateway"): {"mail.bounces_in_30_days": 0, "mail.sent_in_24_hours": 1, "mail.marketing_in_7_days": 0},
            ("template/spring", "template-registry"): {"template.purpose": "marketing"},
        },
        "mail.send",
        "customer/7",
        {"purpose": "marketing", "template": "spring", "body": "Everything must go."},
        "mail-marketing",
        ("customer/7", "consent-store", "consent.marketing_mail", False),
        "NO_CONSENT",
    ),
    "data-access": Play(
        {
            ("dataset/customers", "data-catalogue"): {
                "dataset.classification": "internal",
                "dataset.purposes": ",support,",
                "dataset.personal_columns": ",email,",
            },
            ("ticket/SUP-1", "ticket-system"): {"ticket.state": "open", "ticket.agent": AGENT.id, "ticket.dataset": "customers"},
        },
        "records.query",
        "dataset/customers",
        {"columns": ["email"], "purpose": "support", "ticket": "SUP-1", "rows_max": 1},
        "query",
        ("ticket/SUP-1", "ticket-system", "ticket.agent", "agent-2"),
        "TICKET_OF_ANOTHER",
    ),
    "payments": Play(
        {
            ("payment/1", "ledger"): {
                "payment.amount_minor": 900_000,
                "payment.currency": "EUR",
                "payment.payee": "acme",
                "payment.requested_by": "carol",
            },
            ("payment/1", "approval-desk"): {
                "payment.first_approver": "alice",
                "payment.second_approver": "bob",
                "payment.approved_amount_minor": 900_000,
            },
            ("payee/acme", "sanctions-screening"): {"payee.sanctioned": False},
            ("payee/acme", "ledger"): {"payee.payments_in_24_hours": 0},
        },
        "payment.execute",
        "payment/1",
        {"amount_minor": 900_000, "currency": "EUR", "payee": "acme"},
        "payment",
        ("payment/1", "approval-desk", "payment.second_approver", "alice"),
        "SAME_APPROVER_TWICE",
    ),
}


def _fact(subject: str, source: str, key: str, value: object) -> Envelope:
    producer = Producer(type=common_pb2.PRODUCER_TYPE_DATABASE_SNAPSHOT, id=source)
    return fact_envelope(subject, producer, key=key, value=value)


def _proposal(play: Play, cites: Envelope) -> Envelope:
    return proposal_envelope(
        play.subject,
        AGENT,
        action_type=play.action,
        params=play.params,
        max_fact_age_ms=DAY_MS,
        based_on_events=[reference(cites)],
        risk=0.1,
        confidence=0.9,
    )


def test_every_shipped_set_has_a_play() -> None:
    """Every shipped rule set has a play."""
    assert shipped_names() == tuple(sorted(PLAYS))


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(PLAYS))
async def test_shipped_set(new_bus_clients: tuple[GavelClient, GavelClient], name: str) -> None:
    """A shipped set approves a proposal and, after one more fact, refuses it with its own reason code; both decisions replay."""
    client, other = new_bus_clients
    play = PLAYS[name]
    await client.deploy_rule_set(shipped_rule_set(name), timeout_ms=PATIENT_MS)
    await client.activate_rule_set(name, compile_cached(shipped_rule_set(name)).version)
    events = [
        (await client.publish_event(_fact(subject, source, key, value))).envelope
        for (subject, source), values in play.facts.items()
        for key, value in values.items()
    ]
    cited = next(event for event in events if event.subject == play.subject)

    # A preflight, because an approval would hold the conflict key and so change the second decision.
    expected = (OUTCOME_APPROVED, name, play.approved_by)
    preflight = (await client.preflight(_proposal(play, cited))).decision
    assert expected == (preflight.outcome, preflight.policy_id, preflight.rule_id), preflight
    changed = (await client.publish_event(_fact(*play.change))).envelope
    basis = changed if changed.subject == play.subject else cited
    rejection = (await client.submit_proposal(_proposal(play, basis))).decision.decision
    assert (OUTCOME_REJECTED, name, play.refused_with) == (rejection.outcome, rejection.policy_id, rejection.reason_code), rejection

    subject, source, key, _ = play.change
    before = (await client.publish_event(_fact(subject, source, key, play.facts[subject, source][key]))).envelope
    basis = before if before.subject == play.subject else cited
    approved = (await other.submit_proposal(_proposal(play, basis))).decision.decision
    assert expected == (approved.outcome, approved.policy_id, approved.rule_id), approved
    await prove(client)
