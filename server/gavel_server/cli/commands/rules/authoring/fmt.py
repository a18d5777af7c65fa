"""`gavel rules fmt`: formats rule sets and test suites."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gavel_server.cli.errors import EXIT_FAILURE, EXIT_INVALID
from gavel_server.cli.options import Debug, JsonReport, RulePaths

if TYPE_CHECKING:
    from gavel_server.cli.rule_files import InvalidFile


def fmt(
    paths: RulePaths,
    check: Annotated[bool, typer.Option("--check", help="Write nothing; exit with 1 if a file would change.")] = False,
    as_json: JsonReport = False,
    debug: Debug = False,
) -> None:
    """Format rule sets and test suites. Comments and meaning stay, and so does the digest.

    Standard input is formatted to standard output.
    """
    from gavel_rules.authoring.format import format_document
    from gavel_rules.language.rule_set import DocumentError

    from gavel_server.cli import rule_files
    from gavel_server.cli.documents import STANDARD_INPUT, read_document
    from gavel_server.cli.rendering import lint_report, output
    from gavel_server.cli.rule_files import InvalidFile

    changed: list[str] = []
    invalid: list[InvalidFile] = []
    for file in rule_files.find_files(paths):
        text = read_document(file)
        try:
            result = format_document(text)
        except DocumentError as error:
            invalid.append(InvalidFile(file, error.messages))
            continue
        if result != text:
            changed.append(file)
        if file == STANDARD_INPUT and not check:
            output.print_line(result.rstrip("\n"))
        elif result != text and not check:
            Path(file).write_text(result, encoding="utf-8")
    if as_json:
        output.print_line(json.dumps({"changed": changed, "invalid": lint_report.invalid_json(invalid)}, ensure_ascii=False, indent=2))
    else:
        for line in rule_files.mistake_lines(invalid):
            output.print_note(line)
        for file in changed:
            output.print_note(f"{file} {'would be formatted' if check else 'was formatted'}")
    if invalid:
        raise typer.Exit(EXIT_INVALID)
    if changed and check:
        raise typer.Exit(EXIT_FAILURE)
