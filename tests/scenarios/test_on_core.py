"""Every scenario on the core alone."""

from __future__ import annotations

import pytest
from gavel_rules.language.engines.rete import Network

from tests.scenarios.layers import CoreLayer
from tests.scenarios.player import play
from tests.scenarios.reader import Scenario, load_scenarios


@pytest.mark.parametrize("scenario", [pytest.param(scenario, id=scenario.id) for scenario in load_scenarios()])
async def test_scenario(scenario: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    """The scenario comes out as its file says, and its log replays."""
    if scenario.engines_disagree:
        monkeypatch.setattr(Network, "match", lambda network, text: [])
    await play(scenario, CoreLayer(scenario.id))
