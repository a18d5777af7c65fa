"""`gavel rules lint`, `fmt`, `test`, `explain` and `schema`: what authors of rule sets run offline, on files.

Exit status: 0 all is well, 1 tests failed, too little is covered or a file would be formatted, 2 a document is not valid.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from gavel_server.cli.errors import EXIT_FAILURE, EXIT_INVALID, InvalidInputError
from gavel_server.cli.options import Debug, JsonReport

if TYPE_CHECKING:
    from gavel_rules.authoring.suite import Suite
    from gavel_rules.authoring.testing import CaseResult
    from gavel_rules.language.ruleset import CompiledRuleSet

    from gavel_server.cli.author_files import TestedRuleSet
    from gavel_server.cli.author_reports import TestRun

Files = Annotated[
    list[str], typer.Argument(metavar="PATH…", help="Rule sets and suites (*_test.yaml), or folders of them; - is standard input.")
]


def lint(files: Files, as_json: JsonReport = False, debug: Debug = False) -> None:
    """Check rule sets and their test suites without a server, and whether rule sets that share an action agree on it.

    Every mistake is a line, file:line:column: code: message; exit status 2 if there is one. Warnings leave it at 0.
    """
    from gavel_server.cli import agreeing, author_files, author_reports, output

    checked = agreeing.compared(author_files.checked(file) for file in author_files.found(files))
    if as_json:
        output.say(json.dumps({"files": [author_reports.checked_json(one) for one in checked]}, ensure_ascii=False, indent=2))
    else:
        for line in author_reports.checked_lines(checked):
            output.say(line)
    if any(one.invalid for one in checked):
        raise typer.Exit(EXIT_INVALID)


def run_tests(
    paths: Annotated[list[str], typer.Argument(metavar="PATH…", help="Suites (*_test.yaml), or folders of them.")],
    coverage: Annotated[bool, typer.Option("--coverage", help="Show what the cases tried of every rule and its condition.")] = False,
    min_coverage: Annotated[
        int,
        typer.Option(
            "--min-coverage",
            min=0,
            max=100,
            metavar="PERCENT",
            help="Fail if less of a rule set is tried: rules, conditions, or what follows.",
        ),
    ] = 0,
    junit: Annotated[Path | None, typer.Option("--junit", metavar="FILE", help="Write the results as JUnit XML, too.")] = None,
    as_json: JsonReport = False,
    debug: Debug = False,
) -> None:
    """Run test suites of rule sets, without a server; see docs/rule-tests.md.

    Exit status 1 if a case fails or too little is covered, 2 if a file is not valid.
    """
    from gavel_server.cli import author_files, author_reports, output

    run = _tested(author_files.found(paths, suites_only=True))
    if junit is not None:
        junit.write_text(author_reports.as_junit(run), encoding="utf-8")
    if as_json:
        output.say(json.dumps(author_reports.as_json(run), ensure_ascii=False, indent=2))
    else:
        _say_tested(run, coverage=coverage)
    lacking = author_reports.below(run, min_coverage)
    for file in lacking:
        output.note(f"gavel: {file} is covered less than {min_coverage} %; --coverage says what no case tries")
    if run.invalid:
        raise typer.Exit(EXIT_INVALID)
    if run.failures or lacking:
        raise typer.Exit(EXIT_FAILURE)


def _tested(files: list[str]) -> TestRun:
    from gavel_rules.authoring.coverage import Coverage
    from gavel_rules.authoring.testing import run_cases

    from gavel_server.cli.author_files import Invalid, TestedRuleSet, suite_in
    from gavel_server.cli.author_reports import SuiteRun, TestRun

    known: dict[str, CompiledRuleSet | Invalid] = {}
    invalid: dict[Invalid, None] = {}
    suites: list[SuiteRun] = []
    coverage: dict[str, Coverage] = {}
    for file in files:
        tested = suite_in(file, known)
        if not isinstance(tested, TestedRuleSet):
            invalid.update(dict.fromkeys(tested))
            continue
        results = tuple(run_cases(tested.suite, tested.rule_set))
        suites.append(SuiteRun(file, tested.rule_set_file, results))
        coverage.setdefault(tested.rule_set_file, Coverage(tested.rule_set)).add(results)
    return TestRun(tuple(suites), tuple(invalid), coverage)


def _say_tested(run: TestRun, *, coverage: bool) -> None:
    from gavel_server.cli import author_files, author_reports, output

    for line in author_files.lines(run.invalid):
        output.say(line)
    for suite in run.suites:
        for result in suite.failed:
            for line in (*author_reports.failure_lines(result, suite.file), *author_reports.explanation_lines(result)):
                output.say(line)
        passed = len(suite.results) - len(suite.failed)
        output.say(f"{suite.file}: {passed} of {len(suite.results)} passed")
    if coverage:
        for file, of_file in run.coverage.items():
            for line in author_reports.coverage_lines(file, of_file, full=True):
                output.say(line)
    output.say(author_reports.summary(run))


def explain(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A suite, with --case; or a rule set, with a proposal.")],
    proposal: Annotated[
        str, typer.Argument(metavar="PROPOSAL", help="A case by itself: action, subject, params, facts, …; - is standard input.")
    ] = "",
    case: Annotated[str, typer.Option("--case", metavar="NAME", help="The case of the suite, by its name.")] = "",
    as_json: JsonReport = False,
    debug: Debug = False,
) -> None:
    """Show what is decided on one proposal, every rule of its action, and the value of every part of its condition.

    Without a server: FILE is a suite and --case names one of its cases, or FILE is a rule set and PROPOSAL one case.
    """
    from gavel.v1.arbitration_service_pb2 import PreflightResponse

    from gavel_server.cli import author_reports, output
    from gavel_server.cli.proposing import print_decision, print_explanations

    result = _explained(file, proposal, case)
    if as_json:
        output.print_json(PreflightResponse(decision=result.decision, explanations=result.explanations))
        return
    print_decision(result.decision, [("case", result.case.name)])
    for line in author_reports.consequence_lines(result):
        output.say(line)
    print_explanations(list(result.explanations))


def _explained(file: str, proposal: str, case: str) -> CaseResult:
    from gavel_rules.authoring.testing import run_cases
    from gavel_rules.language.suggestions import suggestion

    from gavel_server.cli.author_files import is_suite

    if is_suite(file) and case and not proposal:
        tested = _valid_suite(file)
        cases = [one for one in tested.suite.cases if one.name == case]
        if not cases:
            meant = suggestion(case, [one.name for one in tested.suite.cases])
            raise InvalidInputError(f"{file} has no case {case!r}" + (f"; {meant}" if meant else ""))
        suite = tested.suite._replace(cases=tuple(cases))
        rule_set = tested.rule_set
    elif not is_suite(file) and proposal and not case:
        rule_set, suite = _valid_proposal(file, proposal)
    else:
        raise InvalidInputError("say either SUITE --case NAME, or RULE_SET PROPOSAL")
    (result,) = run_cases(suite, rule_set)
    return result


def _valid_suite(file: str) -> TestedRuleSet:
    from gavel_server.cli.author_files import TestedRuleSet, lines, suite_in

    tested = suite_in(file, {})
    if not isinstance(tested, TestedRuleSet):
        raise InvalidInputError("\n".join(["the suite cannot be run; mend what follows and try again", *lines(tested)]))
    return tested


def _valid_proposal(file: str, proposal: str) -> tuple[CompiledRuleSet, Suite]:
    from gavel_rules.authoring.suite import read_case
    from gavel_rules.authoring.testing import check_suite
    from gavel_rules.language.ruleset import DocumentError

    from gavel_server.cli.author_files import Invalid, lines, rule_set_in
    from gavel_server.cli.documents import invalid_rule_set, read_document, shown

    rule_set = rule_set_in(file)
    if isinstance(rule_set, Invalid):
        raise invalid_rule_set(file, lines([rule_set]))
    try:
        suite = read_case(read_document(proposal), "proposal")
        check_suite(suite, rule_set)
    except DocumentError as error:
        invalid = Invalid(proposal, error.messages)
        raise InvalidInputError(
            "\n".join([f"{shown(proposal)} is not a valid case; mend what follows and try again", *lines([invalid])])
        ) from error
    return rule_set, suite


def fmt(
    files: Files,
    check: Annotated[bool, typer.Option("--check", help="Write nothing; exit status 1 if a file would change.")] = False,
    as_json: JsonReport = False,
    debug: Debug = False,
) -> None:
    """Lay out rule sets and test suites alike. Comments stay, and so does what they say: the digest does not change.

    Standard input goes to standard output.
    """
    from gavel_rules.authoring.formatting import formatted
    from gavel_rules.language.ruleset import DocumentError

    from gavel_server.cli import author_files, author_reports, output
    from gavel_server.cli.author_files import Invalid
    from gavel_server.cli.documents import STANDARD_INPUT, read_document

    changed: list[str] = []
    invalid: list[Invalid] = []
    for file in author_files.found(files):
        text = read_document(file)
        try:
            laid_out = formatted(text)
        except DocumentError as error:
            invalid.append(Invalid(file, error.messages))
            continue
        if laid_out != text:
            changed.append(file)
        if file == STANDARD_INPUT and not check:
            output.say(laid_out.rstrip("\n"))
        elif laid_out != text and not check:
            Path(file).write_text(laid_out, encoding="utf-8")
    if as_json:
        output.say(json.dumps({"changed": changed, "invalid": author_reports.invalid_json(invalid)}, ensure_ascii=False, indent=2))
    else:
        for line in author_files.lines(invalid):
            output.note(line)
        for file in changed:
            output.note(f"{file} {'would be' if check else 'is'} laid out anew")
    if invalid:
        raise typer.Exit(EXIT_INVALID)
    if changed and check:
        raise typer.Exit(EXIT_FAILURE)


def schema(
    name: Annotated[Literal["rule-set", "test"], typer.Argument(metavar="rule-set|test", help="Of which kind of document.")],
    debug: Debug = False,
) -> None:
    """Print the JSON Schema (2020-12) of rule sets or of their tests, for editors."""
    from gavel_rules.authoring.editor_schemas import shipped_schema

    from gavel_server.cli import output

    output.say(shipped_schema(name).rstrip("\n"))
