"""`gavel rules test`: runs test suites of rule sets, without a server."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gavel_server.cli.errors import EXIT_FAILURE, EXIT_INVALID
from gavel_server.cli.options import Debug, JsonReport

if TYPE_CHECKING:
    from gavel_rules.language.rule_set import CompiledRuleSet

    from gavel_server.cli.rendering.suite_report import TestRun


def run_suites(
    paths: Annotated[list[str], typer.Argument(metavar="PATH…", help="Suites (*_test.yaml), or folders of them.")],
    case: Annotated[list[str] | None, typer.Option("--case", metavar="NAME", help="Run only the cases of this name; repeatable.")] = None,
    short: Annotated[bool, typer.Option("--short", help="Print one line for each failed case.")] = False,
    coverage: Annotated[
        bool, typer.Option("--coverage", help="Show how often each rule and each part of its condition was exercised.")
    ] = False,
    min_coverage: Annotated[
        int,
        typer.Option(
            "--min-coverage",
            min=0,
            max=100,
            metavar="PERCENT",
            help="Fail if less of a rule set is covered: of its rules, its conditions, or its derivations and compensations.",
        ),
    ] = 0,
    junit: Annotated[Path | None, typer.Option("--junit", metavar="FILE", help="Also write the results as JUnit XML.")] = None,
    as_json: JsonReport = False,
    debug: Debug = False,
) -> None:
    """Run test suites of rule sets.

    It needs no server. docs/rule-tests.md describes suites.
    Exit status: 0 all cases passed, 1 a case failed or coverage is too low, 2 a file is not valid.
    """
    from gavel_server.cli import rule_files
    from gavel_server.cli.rendering import output, suite_report

    run = _run(rule_files.find_files(paths, suites_only=True), set(case or ()))
    if junit is not None:
        junit.write_text(suite_report.as_junit(run), encoding="utf-8")
    if as_json:
        output.print_report(suite_report.as_json(run))
    else:
        _print_run(run, short=short, coverage=coverage)
    below_minimum = suite_report.below(run, min_coverage)
    for file in below_minimum:
        output.print_note(f"gavel: coverage of {file} is below {min_coverage} %; --coverage shows what no case exercises")
    if run.invalid:
        raise typer.Exit(EXIT_INVALID)
    if run.failures or below_minimum:
        raise typer.Exit(EXIT_FAILURE)


def _run(files: list[str], names: set[str]) -> TestRun:
    """Run the cases of these names, or all if no name is given. Raises InvalidInputError if no suite has a case of a name."""
    from gavel_rules.authoring.suites.coverage import Coverage
    from gavel_rules.authoring.suites.runner import run_cases
    from gavel_rules.text import suggestion

    from gavel_server.cli.errors import InvalidInputError
    from gavel_server.cli.rendering.suite_report import SuiteRun, TestRun
    from gavel_server.cli.rule_files import InvalidFile, SuiteFile, load_suite

    rule_sets: dict[str, CompiledRuleSet | InvalidFile] = {}
    invalid: dict[InvalidFile, None] = {}
    suites: list[SuiteRun] = []
    coverage: dict[str, Coverage] = {}
    all_names: set[str] = set()
    for file in files:
        suite_file = load_suite(file, rule_sets)
        if not isinstance(suite_file, SuiteFile):
            invalid.update(dict.fromkeys(suite_file))
            continue
        suite = suite_file.suite
        all_names.update(one.name for one in suite.cases)
        if names:
            suite = suite._replace(cases=tuple(one for one in suite.cases if one.name in names))
        results = tuple(run_cases(suite, suite_file.rule_set, tuple(suite_file.others.values())))
        suites.append(SuiteRun(file, suite_file.rule_set_file, results))
        for rule_set_file, rule_set in {suite_file.rule_set_file: suite_file.rule_set, **suite_file.others}.items():
            coverage.setdefault(rule_set_file, Coverage(rule_set)).add(results)
    for name in sorted(names - all_names if not invalid else ()):
        correction = suggestion(name, sorted(all_names))
        raise InvalidInputError(f"no suite has a case {name!r}" + (f"; {correction}" if correction else ""))
    return TestRun(tuple(suites), tuple(invalid), coverage)


def _print_run(run: TestRun, *, short: bool, coverage: bool) -> None:
    from gavel_server.cli import rule_files
    from gavel_server.cli.rendering import output, suite_report

    for line in rule_files.mistake_lines(run.invalid):
        output.print_line(line)
    for suite in run.suites:
        for result in suite.failures:
            if short:
                output.print_line(suite_report.failure_line(result, suite.file))
                continue
            for line in (*suite_report.failure_lines(result, suite.file), *suite_report.explanation_lines(result)):
                output.print_line(line)
        passed = len(suite.results) - len(suite.failures)
        output.print_line(f"{suite.file}: {passed} of {len(suite.results)} passed")
    if coverage:
        for file, of_file in run.coverage.items():
            for line in suite_report.coverage_lines(file, of_file, with_rules=True):
                output.print_line(line)
    output.print_line(suite_report.summary(run))
