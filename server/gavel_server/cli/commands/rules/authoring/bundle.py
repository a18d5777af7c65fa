"""`gavel rules bundle`: prints a rule set with the documents that it imports."""

from __future__ import annotations

from gavel_server.cli.options import Debug, RuleSetFile


def bundle(file: RuleSetFile, debug: Debug = False) -> None:
    """Print a rule set with the documents that it imports.

    Every command that reads a rule set bundles it by itself; this one shows the text that `gavel rules deploy` records.
    """
    from gavel_server.cli import documents
    from gavel_server.cli.rendering import output

    output.print_line(documents.read_rule_set(file).rstrip("\n"))
