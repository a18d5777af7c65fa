"""The output of a simulation."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest
from gavel.v1.rule_set_service_pb2 import ChangedDecision, ChangedFacts, SimulatedFact, SimulateRuleSetResponse, SimulationSummary
from gavel_rules.authoring.shipped_rule_sets import shipped_rule_set
from gavel_rules.language.rule_set import compile_rule_set
from gavel_server.cli.errors import CommandError
from gavel_server.cli.rendering import simulation
from google.protobuf.struct_pb2 import Value
from typer import Exit


@pytest.mark.parametrize("as_json", [False, True])
def test_response_without_summary(as_json: bool) -> None:
    """Responses that end before the summary are an error, with and without --json."""

    async def responses() -> AsyncGenerator[SimulateRuleSetResponse, None]:
        yield SimulateRuleSetResponse(changed=ChangedDecision(sequence_number=3))

    with pytest.raises(CommandError, match="ended before its summary"):
        asyncio.run(simulation.print_simulation(responses(), compile_rule_set(shipped_rule_set("refunds")), as_json))


def test_changed_facts(capsys: pytest.CaptureFixture[str]) -> None:
    """Reports with other facts are a table of their own and counted in a line; they alone are exit status 1."""
    before = SimulatedFact(key="team.unstable", subject="team/red", value=Value(bool_value=False))
    changed = ChangedFacts(sequence_number=7, action_type="service.deploy", decision_id="d", recorded=[before])

    async def responses() -> AsyncGenerator[SimulateRuleSetResponse, None]:
        yield SimulateRuleSetResponse(changed_facts=changed)
        yield SimulateRuleSetResponse(summary=SimulationSummary(decisions=3, replaced=3, reports=2, changed_reports=1))

    with pytest.raises(Exit) as ended:
        asyncio.run(simulation.print_simulation(responses(), compile_rule_set(shipped_rule_set("refunds")), False))
    assert 1 == ended.value.exit_code
    out = " ".join(capsys.readouterr().out.split())
    assert "7 service.deploy team.unstable = false of team/red nothing" in out
    assert out.endswith("would change 0 of 3 decisions other facts would be derived from 1 of 2 reports")


@pytest.mark.parametrize(("count", "line"), [(0, ""), (2, "left as recorded because a person decided: 2")])
def test_decisions_of_people(count: int, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The summary says how many decisions stay because a person made them, and nothing if there are none."""

    async def responses() -> AsyncGenerator[SimulateRuleSetResponse, None]:
        yield SimulateRuleSetResponse(summary=SimulationSummary(decisions=3, replaced=3, human_decisions=count))

    asyncio.run(simulation.print_simulation(responses(), compile_rule_set(shipped_rule_set("refunds")), False))
    assert line == "".join(capsys.readouterr().out.splitlines()[1:])


@pytest.mark.parametrize(("name", "is_noted"), [("refunds", False), ("refund-budgets", True)])
def test_counters(name: str, is_noted: bool, capsys: pytest.CaptureFixture[str]) -> None:
    """If the candidate reads counters, a note says that they hold what was recorded."""

    async def responses() -> AsyncGenerator[SimulateRuleSetResponse, None]:
        yield SimulateRuleSetResponse(summary=SimulationSummary(decisions=3, changed=2, replaced=3))

    with pytest.raises(Exit):
        asyncio.run(simulation.print_simulation(responses(), compile_rule_set(shipped_rule_set(name)), False))
    assert is_noted == ("gavel: the counters hold what was recorded;" in capsys.readouterr().err)
