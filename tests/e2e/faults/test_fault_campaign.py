"""A short form of `make faults` on each kind of log."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.campaigns.faults.__main__ import checker_program, run_campaign
from tests.campaigns.faults.kinds import FAULTS

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


@pytest.mark.parametrize(("log", "cycles"), [("redis", len(FAULTS)), ("postgresql", len(FAULTS)), ("cluster", 6)])
async def test_clients_see_one_log_without_failures(log: str, cycles: int, tmp_path: Path) -> None:
    """Under kills, stops, slow and full disks, scarce memory, wrong clocks and bad links, what clients see is linearizable, and replays."""
    report = await run_campaign(log, tmp_path, checker_program(), FAULTS, cycles, seed=1)
    assert cycles == sum(report.cycles.values())
