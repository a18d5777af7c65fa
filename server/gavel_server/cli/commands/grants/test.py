"""`gavel grants test`: runs the tests of grants documents, without a server."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gavel_server.cli.errors import EXIT_FAILURE, EXIT_INVALID
from gavel_server.cli.options import Debug

if TYPE_CHECKING:
    from gavel_rules.authoring.grants.suite import GrantSuite
    from gavel_rules.identity.grants import CompiledGrants

    from gavel_server.cli.rule_files import InvalidFile


def run_grant_suites(
    paths: Annotated[list[str], typer.Argument(metavar="PATH…", help="Tests of grants (*_test.yaml), or folders of them.")],
    debug: Debug = False,
) -> None:
    """Run tests of grants documents. Below a folder, the test suites of rule sets are left out.

    Exit status: 0 all cases passed, 1 a case failed, 2 a file is not valid. docs/security.md describes the files.
    """
    from gavel_rules.text import printable

    from gavel_server.cli.rendering import output
    from gavel_server.cli.rule_files import InvalidFile, find_grant_suites, mistake_lines

    invalid: list[InvalidFile] = []
    has_failed = False
    for file in find_grant_suites(paths):
        loaded = _load(file)
        if isinstance(loaded, InvalidFile):
            invalid.append(loaded)
            continue
        suite, grants = loaded
        results = list(suite.run(grants))
        failures = [result for result in results if result.failure]
        for result in failures:
            output.print_line(printable(f"{file}:{result.line}: {result.case.name}: {result.failure}"))
        has_failed = has_failed or bool(failures)
        output.print_line(f"{file}: {len(results) - len(failures)} of {len(results)} passed")
    for line in mistake_lines(invalid):
        output.print_line(line)
    if invalid:
        raise typer.Exit(EXIT_INVALID)
    if has_failed:
        raise typer.Exit(EXIT_FAILURE)


def _load(file: str) -> tuple[GrantSuite, CompiledGrants] | InvalidFile:
    """Return the suite of a file with the grants that it tests, or the file with mistakes. Raises InvalidInputError."""
    from gavel_rules.authoring.grants.suite import read_grant_suite
    from gavel_rules.identity.grants import compile_grants
    from gavel_rules.language.document.diagnostics import DocumentError, DocumentMessage

    from gavel_server.cli.documents import read_document
    from gavel_server.cli.errors import InvalidInputError
    from gavel_server.cli.rule_files import InvalidFile

    try:
        suite = read_grant_suite(read_document(file))
    except DocumentError as error:
        return InvalidFile(file, error.messages)
    tested = str(Path(file).parent / suite.part.tests)
    try:
        return suite, compile_grants(read_document(tested))
    except InvalidInputError as error:
        message = (str(error), "give the path of the grants relative to the suite's folder")
        return InvalidFile(file, (DocumentMessage(*suite.source.locate(("tests",)), "no-grants", *message),))
    except DocumentError as error:
        return InvalidFile(tested, error.messages)
