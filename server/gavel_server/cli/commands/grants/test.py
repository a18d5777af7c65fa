"""`gavel grants test`: runs the tests of grants documents, without a server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gavel_server.cli.errors import EXIT_FAILURE
from gavel_server.cli.options import Debug


def run_grant_suites(
    paths: Annotated[list[str], typer.Argument(metavar="PATH…", help="Tests of grants (*_test.yaml), or folders of them.")],
    debug: Debug = False,
) -> None:
    """Run tests of grants documents. Below a folder, the test suites of rule sets are left out.

    Exit status: 0 all cases passed, 1 a case failed, 2 a file is not valid. docs/security.md describes the files.
    """
    from gavel_rules.authoring.grants.suite import read_grant_suite
    from gavel_rules.language.document.diagnostics import DocumentError

    from gavel_server.cli.documents import read_document, read_grants
    from gavel_server.cli.errors import InvalidInputError
    from gavel_server.cli.rendering import output
    from gavel_server.cli.rule_files import find_grant_suites

    has_failed = False
    for file in find_grant_suites(paths):
        try:
            suite = read_grant_suite(read_document(file))
        except DocumentError as error:
            raise InvalidInputError("\n".join(message.format(file) for message in error.messages)) from error
        grants = read_grants(str(Path(file).parent / suite.part.tests))[1]
        results = list(suite.run(grants))
        for result in results:
            if not result.passed:
                answer = "allowed" if result.is_allowed else f"denied: {result.explanation}"
                output.print_line(f"{file}:{result.line}: {result.case.name}: expected {result.case.expect}, but it is {answer}")
        passed = sum(result.passed for result in results)
        has_failed = has_failed or passed < len(results)
        output.print_line(f"{file}: {passed} of {len(results)} passed")
    if has_failed:
        raise typer.Exit(EXIT_FAILURE)
