"""`gavel rules schema`: prints the JSON Schemas of rule sets and their tests."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from gavel_server.cli.options import Debug


def schema(
    name: Annotated[
        Literal["rule-set", "test", "grants", "grants-test"],
        typer.Argument(metavar="rule-set|test|grants|grants-test", help="The kind of document."),
    ],
    debug: Debug = False,
) -> None:
    """Print the JSON Schema of rule sets, of grants, or of the tests of either.

    Editors use it to check and complete the documents. Its dialect is 2020-12.
    """
    from gavel_rules.authoring.json_schemas import shipped_schema

    from gavel_server.cli.rendering import output

    output.print_line(shipped_schema(name).rstrip("\n"))
