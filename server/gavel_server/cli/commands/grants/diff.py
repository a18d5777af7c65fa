"""`gavel grants diff`: shows the differences between two versions of the grants."""

from __future__ import annotations

from typing import Annotated

import typer

from gavel_server.cli.errors import EXIT_FAILURE
from gavel_server.cli.options import Debug, JsonReport


def diff_grants_files(
    old: Annotated[str, typer.Argument(metavar="OLD", help="Grants in YAML or JSON.")],
    new: Annotated[str, typer.Argument(metavar="NEW", help="Another version of them; - is standard input.")],
    as_json: JsonReport = False,
    debug: Debug = False,
) -> None:
    """Show the differences between two versions of the grants. Exit status: 0 no difference, 1 differences, 2 a document is not valid."""
    from gavel_rules.authoring.grants.diff import diff_grants
    from gavel_rules.text import printable

    from gavel_server.cli.documents import read_grants
    from gavel_server.cli.rendering import output

    changes = diff_grants(read_grants(old)[1], read_grants(new)[1])
    if as_json:
        output.print_report(changes._asdict())
    else:
        for sign, lines in (("-", changes.removed), ("+", changes.added)):
            for line in lines:
                output.print_line(printable(f"{sign} {line}"))
        for verb, rights in (("loses", changes.lost), ("gains", changes.gained)):
            for caller, right in rights:
                output.print_line(printable(f"{caller} {verb} {right}"))
    if changes:
        raise typer.Exit(EXIT_FAILURE)
