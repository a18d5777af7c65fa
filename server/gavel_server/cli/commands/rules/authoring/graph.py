"""`gavel rules graph`: prints a diagram of a rule set."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from gavel_server.cli.options import Debug, JsonReport, RuleSetFile


class GraphFormat(StrEnum):
    """A diagram language, by its name on the command line."""

    MERMAID = "mermaid"
    DOT = "dot"


def graph(
    file: RuleSetFile,
    language: Annotated[GraphFormat, typer.Option("--format", help="The diagram language.")] = GraphFormat.MERMAID,
    as_json: JsonReport = False,
    debug: Debug = False,
) -> None:
    """Print a diagram of a rule set.

    It shows the actions, the facts that their rules read, and the rules in the order of priority.
    """
    from gavel_rules.authoring.graph import graph_data, render_dot, render_mermaid

    from gavel_server.cli import documents
    from gavel_server.cli.rendering import output

    rule_set = documents.read_compiled(file)
    if as_json:
        output.print_report(graph_data(rule_set))
        return
    draw = {GraphFormat.MERMAID: render_mermaid, GraphFormat.DOT: render_dot}[language]
    output.print_line(draw(rule_set))
