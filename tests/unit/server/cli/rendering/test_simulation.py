"""The output of a simulation."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest
from gavel.v1.rule_set_service_pb2 import ChangedDecision, SimulateRuleSetResponse
from gavel_rules.authoring.shipped_rule_sets import shipped_rule_set
from gavel_rules.language.rule_set import compile_rule_set
from gavel_server.cli.errors import CommandError
from gavel_server.cli.rendering import simulation


@pytest.mark.parametrize("as_json", [False, True])
def test_response_without_summary(as_json: bool) -> None:
    """Responses that end before the summary are an error, with and without --json."""

    async def responses() -> AsyncGenerator[SimulateRuleSetResponse, None]:
        yield SimulateRuleSetResponse(changed=ChangedDecision(sequence_number=3))

    with pytest.raises(CommandError, match="ended before its summary"):
        asyncio.run(simulation.print_simulation(responses(), compile_rule_set(shipped_rule_set("refunds")), as_json))
