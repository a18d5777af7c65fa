"""The decisions and derived facts that a candidate rule set would change, for `gavel replay --rules` and `gavel rules simulate`.

They arrive one by one. For programs each is printed at once as a line of JSON; for people the first ones are a table at
the end.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from typing import TYPE_CHECKING, Final

import typer

from gavel_server.cli.connection import command_error, open_client
from gavel_server.cli.errors import EXIT_DIFFERENT, CommandError
from gavel_server.cli.rendering.progress import SIMULATION_PASSES, Passes

if TYPE_CHECKING:
    from gavel.v1.rule_set_service_pb2 import ChangedDecision, ChangedFacts, SimulatedFact, SimulateRuleSetResponse, SimulationSummary
    from gavel_rules.language.rule_set import CompiledRuleSet

# The rows of the table; --json lists all changed decisions.
CHANGES_SHOWN_MAX: Final = 1_000


async def print_simulation(responses: AsyncGenerator[SimulateRuleSetResponse, None], candidate: CompiledRuleSet, as_json: bool) -> None:
    """Print the decisions that the candidate would change and their number by transition, and the reports with other derived facts.

    Shows progress on a terminal. Raises CommandError if the responses end before the summary, and typer.Exit if anything would change.
    """
    from gavel_server.cli.rendering import output

    changed: list[ChangedDecision] = []
    changed_facts: list[ChangedFacts] = []
    summary: SimulationSummary | None = None
    with Passes(SIMULATION_PASSES) as passes:
        async with aclosing(responses):
            async for response in responses:
                if response.HasField("progress"):
                    passes.show(response.progress)
                    continue
                if as_json:
                    output.print_json(response, one_line=True)
                if response.HasField("summary"):
                    summary = response.summary
                elif as_json:
                    continue
                elif response.HasField("changed_facts"):
                    if len(changed_facts) < CHANGES_SHOWN_MAX:
                        changed_facts.append(response.changed_facts)
                elif len(changed) < CHANGES_SHOWN_MAX:
                    changed.append(response.changed)
    if summary is None:
        raise CommandError("the response ended before its summary, so the list may be incomplete; try again")
    if not as_json:
        _print_table(changed)
        _print_facts(changed_facts)
        _print_summary(summary, candidate, len(changed) + len(changed_facts))
    if summary.changed or summary.changed_reports:
        raise typer.Exit(EXIT_DIFFERENT)


async def simulate_on_server(
    server: str, bus: str, file: str, document: str, from_sequence_number: int, to_sequence_number: int
) -> AsyncGenerator[SimulateRuleSetResponse, None]:
    """Let a server replay its log with a candidate rule set. Raises CommandError."""
    from gavel_client import GavelError

    try:
        async with open_client(server, bus) as client:
            async for response in client.simulate_rule_set(
                document, from_sequence_number=from_sequence_number, to_sequence_number=to_sequence_number
            ):
                yield response
    except GavelError as error:
        raise command_error(error, server, bus, file) from error


def _print_table(changes: list[ChangedDecision]) -> None:
    from gavel_server.cli.rendering import output
    from gavel_server.cli.rendering.events import format_struct, outcome_line

    output.print_table(
        ("#", "action", "recorded", "would be"),
        (
            (
                str(change.sequence_number),
                f"{change.recorded.action_type} {format_struct(change.recorded.params)}",
                outcome_line(change.recorded),
                outcome_line(change.simulated),
            )
            for change in changes
        ),
    )


def _print_facts(changes: list[ChangedFacts]) -> None:
    from gavel_server.cli.rendering import output

    output.print_table(
        ("#", "report of", "derived", "would derive"),
        ((str(change.sequence_number), change.action_type, _facts(change.recorded), _facts(change.simulated)) for change in changes),
    )


def _facts(facts: Iterable[SimulatedFact]) -> str:
    from gavel_rules.text import printable
    from gavel_rules.values import value_to_python

    texts = (f"{fact.key} = {json.dumps(value_to_python(fact.value), ensure_ascii=False)} of {fact.subject}" for fact in facts)
    return printable(", ".join(texts) or "nothing")


def _print_summary(summary: SimulationSummary, candidate: CompiledRuleSet, row_count: int) -> None:
    from gavel_server.cli.rendering import output

    more = summary.changed + summary.changed_reports - row_count
    if more > 0:
        output.print_note(f"gavel: {more} more would change; --json lists all of them")
    name = f"{candidate.policy_id} version {candidate.version}"
    output.print_line(f"{name} would change {summary.changed} of {summary.decisions} decisions")
    if summary.decisions and not summary.replaced:
        output.print_note(
            f"gavel: no version of {candidate.policy_id} was in force for any of them, so the candidate was added to the rule sets that "
            "were; check that its name is right"
        )
    if summary.changed and any(action.counter_reads for action in candidate.actions.values()):
        output.print_note(
            "gavel: the counters hold what was recorded; a changed decision does not change them for the decisions after it, so in force "
            "the candidate may change more or fewer"
        )
    for transition, count in sorted(summary.transitions.items()):
        output.print_line(f"  {transition}: {count}")
    if summary.reports:
        output.print_line(f"other facts would be derived from {summary.changed_reports} of {summary.reports} reports")
    if summary.human_decisions:
        output.print_line(f"left as recorded because a person decided: {summary.human_decisions}")
