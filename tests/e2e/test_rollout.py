"""Rule sets put in force under load: two servers on one bus of one Redis, agents at both."""

from __future__ import annotations

import asyncio
import random

from gavel.v1 import fact_pb2
from gavel_client import GavelClient

from tests.e2e.ledger import Ledger
from tests.e2e.load import Load
from tests.e2e.world import POLICY, caught_up, prove, publish_status, replay, rule_set

STRICTER = rule_set(version=2).replace("params.weight <= 30", "params.weight <= 2")
VERSIONS = (2, 1, 2, 1, 2)


async def test_activation_under_load_takes_effect_at_one_number(clients: tuple[GavelClient, GavelClient], redis_url: str, bus: str) -> None:
    """However often and wherever versions are put in force under load, each decides exactly from its event to the next one's."""
    first, second = clients
    facts = await publish_status(first, [f"parcel/{number}" for number in range(60)])
    await first.deploy_rule_set(STRICTER)
    load = Load(random.Random(4), facts)
    load.start(clients)
    await load.hears(100)
    taken = []
    for number, version in enumerate(VERSIONS):
        client = clients[number % 2]
        taken.append((version, (await client.activate_rule_set(POLICY, version)).sequence_number))
        await load.hears(100)
    await load.stop()
    assert ([], {}) == (load.failures, load.unheard)

    statuses = await caught_up(clients)
    assert len({status.projection_digest for status in statuses}) == 1
    assert [[(2, taken[-1][1])]] * 2 == [
        [(one.version, one.activated_at_sequence_number) for one in status.active_rule_sets] for status in statuses
    ]
    ledger = await Ledger.read(redis_url, bus)
    load.check(ledger)
    activations = [event for event in ledger.of("fact") if event.fact.HasField("rule_set_activated")]
    assert taken == [(event.fact.rule_set_activated.version, event.sequence_number) for event in activations[1:]]
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
    proved = replay(redis_url, bus)
    assert 0 == proved.returncode, proved.stderr


async def test_a_shadow_under_load_disturbs_nothing(clients: tuple[GavelClient, GavelClient], redis_url: str, bus: str) -> None:
    """With a shadow, both servers decide as without it; they count the same, and every difference stands with its decision."""
    first, second = clients
    facts = await publish_status(first, [f"parcel/{number}" for number in range(60)])
    await second.deploy_rule_set(STRICTER)
    load = Load(random.Random(5), facts)
    load.start(clients)
    await load.hears(50)
    began = (await second.activate_rule_set(POLICY, 2, mode=fact_pb2.ACTIVATION_MODE_SHADOW)).sequence_number
    await load.hears(300)
    await load.stop()
    assert ([], {}) == (load.failures, load.unheard)

    statuses = await caught_up(clients)
    ledger = await Ledger.read(redis_url, bus)
    load.check(ledger)
    watched = [event for event in ledger.first_decisions.values() if event.sequence_number > began]
    notices = [event for event in ledger.of("agent_diagnostic") if event.agent_diagnostic.HasField("shadow_difference")]
    assert len(notices) > 0
    for status in statuses:
        (shadow,) = status.shadow_rule_sets
        assert (len(watched), len(notices)) == (shadow.shadow_decisions, shadow.shadow_differences)
    for notice in notices:
        difference = notice.agent_diagnostic.shadow_difference
        decision = ledger.events[notice.sequence_number - 2]
        assert (decision.event_id, decision.decision.rule_id) == (difference.decision_id, difference.decided.rule_id)
        assert (2, "NO_RULE_MATCHED") == (difference.policy_version, difference.shadowed.reason_code)
    assert {1} == {one.version for event in watched for one in event.decision.active_rule_sets}
    proved = replay(redis_url, bus)
    assert 0 == proved.returncode, proved.stderr


async def test_of_two_servers_that_activate_at_once_one_wins(clients: tuple[GavelClient, GavelClient]) -> None:
    """Two operators at two servers who expect the same version: one takes effect, the other is told that it raced."""
    first, second = clients
    await first.deploy_rule_set(STRICTER)
    await second.deploy_rule_set(rule_set(version=3))
    heard = await asyncio.gather(
        first.activate_rule_set(POLICY, 2, expected_active_version=1),
        second.activate_rule_set(POLICY, 3, expected_active_version=1),
        return_exceptions=True,
    )
    assert ["ACTIVATION_RACED"] == [error.reason for error in heard if isinstance(error, Exception)]  # type: ignore[attr-defined]
