"""Every scenario on the core alone, at given times."""

from __future__ import annotations

import pytest
from gavel_rules.language.network import Network

from tests.scenarios.layers import CoreLayer
from tests.scenarios.playing import play
from tests.scenarios.reading import Scenario, all_scenarios


@pytest.mark.parametrize("scenario", [pytest.param(scenario, id=scenario.id) for scenario in all_scenarios()])
async def test_scenario(scenario: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the file says comes about, and a replay proves it."""
    if scenario.engines_disagree:
        monkeypatch.setattr(Network, "match", lambda network, text: [])
    await play(scenario, CoreLayer(scenario.id))
