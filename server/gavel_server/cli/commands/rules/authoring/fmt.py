"""`gavel rules fmt`: formats rule sets and test suites."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gavel_server.cli.errors import EXIT_FAILURE, EXIT_INVALID, InvalidInputError
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
    from gavel_server.cli.documents import STANDARD_INPUT, read_document, write_document
    from gavel_server.cli.rendering import lint_report, output
    from gavel_server.cli.rule_files import InvalidFile

    files = rule_files.find_files(paths)
    if STANDARD_INPUT in files and as_json and not check:
        raise InvalidInputError("with --json the report takes standard output, where the formatted standard input goes; omit --json")
    changed: list[str] = []
    invalid: list[InvalidFile] = []
    # All are read before one is written: a path that names no file changes nothing.
    for file, text in [(file, read_document(file)) for file in files]:
        try:
            result = format_document(text)
        except DocumentError as error:
            invalid.append(InvalidFile(file, error.messages))
            continue
        if file == STANDARD_INPUT and not check:
            output.print_line(result.rstrip("\n"))
        elif result != text and not check:
            write_document(Path(file), result)
        if result != text:
            changed.append(file)
            if not as_json:
                output.print_note(f"{file} {'would be formatted' if check else 'was formatted'}")
    if as_json:
        output.print_report({"changed": changed, "invalid": lint_report.invalid_json(invalid)})
    else:
        for line in rule_files.mistake_lines(invalid):
            output.print_note(line)
    if invalid:
        raise typer.Exit(EXIT_INVALID)
    if changed and check:
        raise typer.Exit(EXIT_FAILURE)
