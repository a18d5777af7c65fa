"""What a candidate rule set would have changed, for `gavel replay --rules` and `gavel rules simulate`: the same answer in words.

The decisions come one by one. For machines each is a line as soon as it is known; for people they are a table at the end, of
which only the beginning is kept.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING, Final

from gavel_server.cli.errors import CommandError
from gavel_server.cli.options import explained
from gavel_server.cli.passes import Passes

if TYPE_CHECKING:
    from gavel.v1.rule_set_service_pb2 import ChangedDecision, SimulateRuleSetResponse, SimulationSummary
    from gavel_rules.language.ruleset import CompiledRuleSet

# Changed decisions that a table shows; --json lists all of them.
CHANGES_SHOWN_MAX: Final = 1_000


async def show(responses: AsyncGenerator[SimulateRuleSetResponse, None], candidate: CompiledRuleSet, as_json: bool) -> None:
    """Print the decisions that the candidate would change, and how many by transition; progress on a terminal.

    Raises CommandError if the answer ends before its summary.
    """
    from gavel_server.cli import output

    changed: list[ChangedDecision] = []
    summary: SimulationSummary | None = None
    with Passes() as passes:
        async with aclosing(responses):
            async for response in responses:
                if response.HasField("progress"):
                    passes.show(response.progress)
                    continue
                if as_json:
                    output.print_json(response, one_line=True)
                if response.HasField("summary"):
                    summary = response.summary
                elif not as_json and len(changed) < CHANGES_SHOWN_MAX:
                    changed.append(response.changed)
    if summary is None:
        raise CommandError("the answer ended before its summary, so what was shown may not be all; try again")
    if not as_json:
        _print_table(changed)
        _print_summary(summary, candidate, len(changed))


async def simulated_by_server(
    server: str, bus: str, file: str, document: str, from_sequence_number: int, to_sequence_number: int
) -> AsyncGenerator[SimulateRuleSetResponse, None]:
    """Have a server try a candidate on its log. Raises CommandError."""
    from gavel_client import GavelClient, GavelError

    try:
        async with GavelClient(server, bus=bus) as client:
            async for response in client.simulate_rule_set(
                document, from_sequence_number=from_sequence_number, to_sequence_number=to_sequence_number
            ):
                yield response
    except GavelError as error:
        raise explained(error, server, file) from error


def _print_table(changed: list[ChangedDecision]) -> None:
    from gavel_server.cli import output
    from gavel_server.cli.describe import outcome_line, struct_text

    output.print_table(
        ("#", "action", "recorded", "would be"),
        (
            (
                str(change.sequence_number),
                f"{change.recorded.action_type} {struct_text(change.recorded.params)}",
                outcome_line(change.recorded),
                outcome_line(change.simulated),
            )
            for change in changed
        ),
    )


def _print_summary(summary: SimulationSummary, candidate: CompiledRuleSet, shown: int) -> None:
    from gavel_server.cli import output

    if summary.changed > shown:
        output.note(f"gavel: {summary.changed - shown} more would change; --json lists all of them")
    name = f"{candidate.policy_id} version {candidate.version}"
    output.say(f"{name} would change {summary.changed} of {summary.decisions} decisions")
    if summary.decisions and not summary.replaced:
        output.note(
            f"gavel: no version of {candidate.policy_id} was in force for any of them: the candidate stood beside the rule sets that were. "
            "Is its name right?"
        )
    for transition, count in sorted(summary.transitions.items()):
        output.say(f"  {transition}: {count}")
