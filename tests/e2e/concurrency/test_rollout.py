"""Activation of rule sets under load: two servers on one bus, with agents at both."""

from __future__ import annotations

import asyncio
import random

import pytest
from gavel.v1 import decision_pb2, fact_pb2
from gavel_client import GavelClient

from tests.e2e.ledger import Ledger
from tests.e2e.load import Load
from tests.e2e.world import POLICY, approve, proposal, prove, publish_status, replay, rule_set, wait_for_same_head

STRICTER = rule_set(version=2).replace("params.weight <= 30", "params.weight <= 2")
VERSIONS = (2, 1, 2, 1, 2)
# A second rule set on the same action: it never approves.
EMBARGO = (
    rule_set()
    .replace(f"rule_set: {POLICY}", "rule_set: embargo")
    .replace("effect: approve", "effect: reject, reason_code: EMBARGO")
    .replace("params.weight <= 30", "params.weight > 2")
)


@pytest.mark.long
async def test_activation_under_load_takes_effect_at_one_number(clients: tuple[GavelClient, GavelClient], redis_url: str, bus: str) -> None:
    """Under load each version decides from its activation up to the next one, at both servers, and at no other time."""
    first, second = clients
    facts = await publish_status(first, [f"parcel/{number}" for number in range(60)])
    await first.deploy_rule_set(STRICTER)
    load = Load(random.Random(4), facts)
    load.start(clients)
    await load.wait_for_answers(100)
    versions = []
    for number, version in enumerate(VERSIONS):
        client = clients[number % 2]
        versions.append((version, (await client.activate_rule_set(POLICY, version)).sequence_number))
        await load.wait_for_answers(100)
    await load.stop()
    assert ([], {}) == (load.failures, load.unanswered)

    statuses = await wait_for_same_head(clients)
    assert len({status.projection_digest for status in statuses}) == 1
    assert [[(2, versions[-1][1])]] * 2 == [
        [(one.version, one.activated_at_sequence_number) for one in status.active_rule_sets] for status in statuses
    ]
    ledger = await Ledger.read(redis_url, bus)
    load.check(ledger)
    activations = [event for event in ledger.of("fact") if event.fact.HasField("rule_set_activated")]
    assert versions == [(event.fact.rule_set_activated.version, event.sequence_number) for event in activations[1:]]
    in_force = 0
    decided_by: list[int] = []
    for event in ledger.events:
        if event.fact.HasField("rule_set_activated"):
            in_force = event.fact.rule_set_activated.version
        elif event.HasField("decision"):
            assert [(POLICY, in_force)] == [(one.policy_id, one.version) for one in event.decision.active_rule_sets]
            decided_by.append(in_force)
    assert {1, 2} == set(decided_by)
    await prove(second)
    verdict = replay(redis_url, bus)
    assert 0 == verdict.returncode, verdict.stderr


@pytest.mark.long
async def test_a_shadow_under_load_disturbs_nothing(clients: tuple[GavelClient, GavelClient], redis_url: str, bus: str) -> None:
    """A shadow changes no decision; both servers count the same differences, and each follows its decision."""
    first, second = clients
    facts = await publish_status(first, [f"parcel/{number}" for number in range(60)])
    await second.deploy_rule_set(STRICTER)
    load = Load(random.Random(5), facts)
    load.start(clients)
    await load.wait_for_answers(50)
    start = (await second.activate_rule_set(POLICY, 2, mode=fact_pb2.ACTIVATION_MODE_SHADOW)).sequence_number
    heavy = (await publish_status(first, ["parcel/heavy"]))["parcel/heavy"]
    await first.submit_proposal(proposal(heavy, weight=30))
    await load.wait_for_answers(300)
    await load.stop()
    assert ([], {}) == (load.failures, load.unanswered)

    statuses = await wait_for_same_head(clients)
    ledger = await Ledger.read(redis_url, bus)
    load.check(ledger)
    decisions = [event for event in ledger.first_decisions.values() if event.sequence_number > start]
    notices = [event for event in ledger.of("agent_diagnostic") if event.agent_diagnostic.HasField("shadow_difference")]
    assert len(notices) > 0
    for status in statuses:
        (shadow,) = status.shadow_rule_sets
        assert (len(decisions), len(notices)) == (shadow.shadow_decisions, shadow.shadow_differences)
    for notice in notices:
        difference = notice.agent_diagnostic.shadow_difference
        decision = ledger.events[notice.sequence_number - 2]
        assert (decision.event_id, decision.decision.rule_id) == (difference.decision_id, difference.decided.rule_id)
        assert (2, "NO_RULE_MATCHED") == (difference.policy_version, difference.shadowed.reason_code)
    assert {1} == {one.version for event in decisions for one in event.decision.active_rule_sets}
    verdict = replay(redis_url, bus)
    assert 0 == verdict.returncode, verdict.stderr


async def test_one_of_two_concurrent_activations_wins(clients: tuple[GavelClient, GavelClient]) -> None:
    """Of two concurrent activations that expect the same version, one takes effect and the other is ACTIVATION_RACED."""
    first, second = clients
    await first.deploy_rule_set(STRICTER)
    await second.deploy_rule_set(rule_set(version=3))
    outcomes = await asyncio.gather(
        first.activate_rule_set(POLICY, 2, expected_active_version=1),
        second.activate_rule_set(POLICY, 3, expected_active_version=1),
        return_exceptions=True,
    )
    assert ["ACTIVATION_RACED"] == [error.reason for error in outcomes if isinstance(error, Exception)]  # type: ignore[attr-defined]


@pytest.mark.long
async def test_a_second_rule_set_under_load(clients: tuple[GavelClient, GavelClient], redis_url: str, bus: str) -> None:
    """A second rule set that is activated and deactivated under load decides while it is in force, and at no other time."""
    first, second = clients
    facts = await publish_status(first, [f"parcel/{number}" for number in range(60)])
    await first.deploy_rule_set(EMBARGO)
    load = Load(random.Random(6), facts)
    load.start(clients)
    await load.wait_for_answers(50)
    for number, client in enumerate((first, second, first)):
        await client.activate_rule_set("embargo", 1)
        await approve(client, f"parcel/light-{number}")
        heavy = f"parcel/heavy-{number}"
        await client.submit_proposal(proposal((await publish_status(client, [heavy]))[heavy], weight=30))
        await load.wait_for_answers(60)
        await client.deactivate_rule_set("embargo")
        await load.wait_for_answers(60)
    await load.stop()
    assert ([], {}) == (load.failures, load.unanswered)

    assert len({status.projection_digest for status in await wait_for_same_head(clients)}) == 1
    ledger = await Ledger.read(redis_url, bus)
    load.check(ledger)
    in_force: set[str] = set()
    reasons = set()
    for event in ledger.events:
        if event.fact.HasField("rule_set_activated"):
            in_force.add(event.fact.rule_set_activated.policy_id)
        elif event.fact.HasField("rule_set_deactivated"):
            in_force.remove(event.fact.rule_set_deactivated.policy_id)
        elif event.HasField("decision"):
            assert sorted(in_force) == list(event.decision.active_policy_ids)
            if event.decision.outcome == decision_pb2.OUTCOME_APPROVED:
                assert event.decision.params.fields["weight"].number_value <= 2 or "embargo" not in in_force
            reasons.add((event.decision.policy_id, len(in_force)))
    assert {(POLICY, 1), (POLICY, 2), ("embargo", 2)} <= reasons
    verdict = replay(redis_url, bus)
    assert 0 == verdict.returncode, verdict.stderr


async def test_one_of_two_disagreeing_activations_wins(clients: tuple[GavelClient, GavelClient], redis_url: str, bus: str) -> None:
    """Of two concurrent activations of rule sets that disagree, one takes effect and the other names the setting."""
    first, second = clients
    await first.deactivate_rule_set(POLICY)
    await second.deploy_rule_set(EMBARGO.replace("max_attempts: 20", "max_attempts: 21"))
    outcomes = await asyncio.gather(first.activate_rule_set(POLICY, 1), second.activate_rule_set("embargo", 1), return_exceptions=True)
    (refusal,) = [error for error in outcomes if isinstance(error, Exception)]
    assert "RULE_SETS_DISAGREE" == refusal.reason  # type: ignore[attr-defined]
    assert "retry.max_attempts" in str(refusal)
    for status in await wait_for_same_head(clients):
        assert 1 == len(status.active_rule_sets)
    assert 0 == replay(redis_url, bus).returncode
