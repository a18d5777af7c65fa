"""Derivations that read facts and counters and name another subject, on real servers, executors and a reactor."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from gavel.v1 import execution_pb2
from gavel_client import GavelClient

from tests.e2e.couriers import run_executor, wait_until_idle
from tests.e2e.ledger import Ledger
from tests.e2e.world import ACTION, Server, approve, prove, replay, rule_set

PARCELS = 4
# A number for each depot, derived from the fact and from the counter at each report.
OVER_HISTORY = (
    rule_set().replace("gavel: v1", "gavel: v2")
    + f"""
counters:
  sent: {{of: executions, action: {ACTION}, where: 'execution.status == "SUCCESS"', sum: params.weight, window_ms: 86400000}}
derivations:
  - id: sent
    version: 1
    on: {{action: {ACTION}, status: SUCCESS}}
    key: depot.sent_weight
    subject: '"depot/" + facts.status'
    value: history.sent()
"""
)


@pytest.mark.long
async def test_concurrent_reports_derive_every_number_once(
    pair: tuple[Server, Server], new_bus_clients: tuple[GavelClient, GavelClient], redis_url: str, bus: str, tmp_path: Path
) -> None:
    """Whatever the order of concurrent reports, each derived fact has the number after its own report, and the log replays."""
    first, second = new_bus_clients
    await first.deploy_rule_set(OVER_HISTORY)
    await first.activate_rule_set("parcels", 1)
    with run_executor("succeeds", pair[0], "", bus, "courier-derive", tmp_path / "courier.log"):
        await asyncio.gather(*(approve((first, second)[number % 2], f"parcel/{number}") for number in range(PARCELS)))
        await wait_until_idle(second)
    ledger = await Ledger.read(redis_url, bus)
    reports = [event for event in ledger.of("execution") if event.execution.status == execution_pb2.EXECUTION_STATUS_SUCCESS]
    assert PARCELS == len(reports)
    facts = {event.causation_id: event for event in ledger.of("fact") if event.fact.key == "depot.sent_weight"}
    weights = [facts[report.event_id].fact.value.number_value for report in reports]
    assert weights == [(number + 1) * weights[0] for number in range(PARCELS)]
    assert {"depot/ready"} == {fact.subject for fact in facts.values()}
    assert [[weight] for weight in weights] == [[one.value for one in report.execution.counters] for report in reports]
    last = max(fact.sequence_number for fact in facts.values())  # which the other server may have recorded
    (projected,) = (await first.get_projection("depot/ready", min_sequence_number=last)).projection.facts
    assert weights[-1] == projected.value.number_value
    await prove(second)
    assert 0 == replay(redis_url, bus).returncode
