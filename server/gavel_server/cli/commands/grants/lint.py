"""`gavel grants lint`: checks grants documents, without a server."""

from __future__ import annotations

from typing import Annotated

import typer

from gavel_server.cli.errors import EXIT_INVALID
from gavel_server.cli.options import Debug, JsonReport


def lint_grants_files(
    files: Annotated[list[str], typer.Argument(metavar="FILE…", help="Grants in YAML or JSON; - is standard input.")],
    rules: Annotated[
        list[str] | None,
        typer.Option(
            "--rules", metavar="FILE", help="A rule set: warn of groups that its reviews name and that may not review. Repeatable."
        ),
    ] = None,
    as_json: JsonReport = False,
    debug: Debug = False,
) -> None:
    """Check grants documents.

    Prints each mistake and warning as file:line:column: code: message, and exits with 2 if there is a mistake.
    """
    from gavel_rules.authoring.grants.lint import lint_grants
    from gavel_rules.identity.grants import check_grants

    from gavel_server.cli.documents import read_compiled, read_document
    from gavel_server.cli.rendering import output

    rule_sets = [read_compiled(name) for name in rules or ()]
    reports = []
    is_valid = True
    for file in files:
        text = read_document(file)
        grants, messages = check_grants(text)
        errors = messages.sorted()
        warnings = () if grants is None else lint_grants(text, grants, rule_sets)
        is_valid = is_valid and grants is not None
        reports.append(
            {
                "file": file,
                "valid": grants is not None,
                "digest": "" if grants is None else grants.digest,
                "errors": [_fields(message) for message in errors],
                "warnings": [_fields(message) for message in warnings],
            }
        )
        if not as_json:
            for message in errors:
                output.print_line(message.format(file))
            for message in warnings:
                output.print_line(f"warning: {message.format(file)}")
            if grants is not None:
                output.print_line(f"{file}: {grants.name} version {grants.version} is valid, {grants.digest}")
    if as_json:
        output.print_report({"files": reports})
    if not is_valid:
        raise typer.Exit(EXIT_INVALID)


def _fields(message: object) -> dict[str, object]:
    return {name: getattr(message, name) for name in ("line", "column", "code", "message", "suggestion")}
