"""Short forms of `make faults` on each kind of log, and of `make failover`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.campaigns import failover
from tests.campaigns.faults import kinds
from tests.campaigns.faults.__main__ import checker_program, run_campaign
from tests.campaigns.faults.losses import LOSSES

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

# Every fault on a Redis, and those that depend on the log on the others.
FAULTS = {
    "redis": kinds.FAULTS,
    "postgresql": (kinds.kill_log, kinds.kill_all, kinds.stop_log, kinds.fill_log_disk, kinds.exhaust_log_memory),
    "cluster": (kinds.kill_log, kinds.stop_log, kinds.kill_server),
}


@pytest.mark.parametrize("log", FAULTS)
async def test_clients_see_one_log_without_failures(log: str, tmp_path: Path) -> None:
    """Under every fault, what clients see is linearizable and replays; a loss of acknowledged events is found by all servers."""
    report = await run_campaign(log, tmp_path, checker_program(), FAULTS[log], len(FAULTS[log]), seed=1)
    assert {fault.__name__: 1 for fault in FAULTS[log]} == report.cycles
    assert {loss.__name__: 1 for loss in LOSSES[log]} == report.losses


async def test_a_failover_concerns_the_buses_of_its_master(tmp_path: Path) -> None:
    """When a master dies, no call on another master's bus fails, its own buses come back, and all that was answered is in the logs."""
    assert await failover.run_campaign(tmp_path, buses=9, kills=1, seconds=1.0) > 0
