"""The short form of `make intruders`: callers without rights beside one that has them."""

from __future__ import annotations

from pathlib import Path

import pytest
from gavel_server.front.programs import FrontSetting

from tests.campaigns import intruders
from tests.support.fronts import TRANSPORTS


@pytest.mark.long
@pytest.mark.parametrize("front", TRANSPORTS)
async def test_intruders(tmp_path: Path, front: FrontSetting) -> None:
    """Hostile requests leave nothing in the log but a few AccessRefused, are never INTERNAL, and a good caller keeps working."""
    report = await intruders.run(tmp_path, front, requests=320, seed=7)
    assert [] == report.failures
