"""What a candidate would have changed, as the command line says it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest
from gavel.v1.rule_set_service_pb2 import ChangedDecision, SimulateRuleSetResponse
from gavel_rules.authoring.shipped import shipped_rule_set
from gavel_rules.language.ruleset import compile_rule_set
from gavel_server.cli import impact
from gavel_server.cli.errors import CommandError


@pytest.mark.parametrize("as_json", [False, True])
def test_an_answer_without_its_end(as_json: bool) -> None:
    """An answer that ends before its summary is said to be none, for people and for machines."""

    async def broken_off() -> AsyncGenerator[SimulateRuleSetResponse, None]:
        yield SimulateRuleSetResponse(changed=ChangedDecision(sequence_number=3))

    with pytest.raises(CommandError, match="ended before its summary"):
        asyncio.run(impact.show(broken_off(), compile_rule_set(shipped_rule_set("refunds")), as_json))
