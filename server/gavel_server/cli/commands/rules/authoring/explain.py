"""`gavel rules explain`: shows how the rules decide one case, without a server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from gavel_server.cli.errors import InvalidInputError
from gavel_server.cli.options import Debug, JsonReport

if TYPE_CHECKING:
    from gavel_rules.authoring.suites.runner import CaseResult
    from gavel_rules.authoring.suites.suite import Suite
    from gavel_rules.language.rule_set import CompiledRuleSet

    from gavel_server.cli.rule_files import SuiteFile


def explain(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A suite, with --case; or a rule set, with PROPOSAL.")],
    proposal: Annotated[
        str, typer.Argument(metavar="PROPOSAL", help="One case: action, subject, params, facts, …; - is standard input.")
    ] = "",
    case: Annotated[str, typer.Option("--case", metavar="NAME", help="The name of a case in the suite.")] = "",
    as_json: JsonReport = False,
    debug: Debug = False,
) -> None:
    """Show how the rules decide one case.

    Prints the decision, those on the case's earlier proposals, every rule of the action, and the value of every part of its condition. It
    needs no server. FILE is a suite and --case names one of its cases, or FILE is a rule set and PROPOSAL is the case.
    """
    from gavel.v1.arbitration_service_pb2 import PreflightResponse
    from gavel_rules.text import printable

    from gavel_server.cli.rendering import output
    from gavel_server.cli.rendering.decision import print_decision, print_explanations
    from gavel_server.cli.rendering.suite_report import consequence_lines, earlier_lines

    result = _run_case(file, proposal, case)
    if as_json:
        output.print_json(PreflightResponse(decision=result.decision, explanations=result.explanations))
        return
    print_decision(result.decision, [("case", printable(result.case.name))])
    for line in (*earlier_lines(result), *consequence_lines(result)):
        output.print_line(line)
    print_explanations(result.explanations)


def _run_case(file: str, proposal: str, case: str) -> CaseResult:
    from gavel_rules.authoring.suites.runner import run_cases
    from gavel_rules.text import suggestion

    from gavel_server.cli.rule_files import is_suite

    if is_suite(file) and case and not proposal:
        suite_file = _load_suite(file)
        cases = [one for one in suite_file.suite.cases if one.name == case]
        if not cases:
            correction = suggestion(case, [one.name for one in suite_file.suite.cases])
            raise InvalidInputError(f"{file} has no case {case!r}" + (f"; {correction}" if correction else ""))
        suite = suite_file.suite._replace(cases=tuple(cases))
        rule_set = suite_file.rule_set
        others = tuple(suite_file.others.values())
    elif not is_suite(file) and proposal and not case:
        rule_set, suite = _load_proposal(file, proposal)
        others = ()
    else:
        raise InvalidInputError("give either SUITE --case NAME, or RULE_SET PROPOSAL")
    (result,) = run_cases(suite, rule_set, others)
    if result.error:
        raise InvalidInputError(f"the case cannot be run: {result.error}")
    return result


def _load_suite(file: str) -> SuiteFile:
    from gavel_server.cli.rule_files import SuiteFile, load_suite, mistake_lines

    suite_file = load_suite(file, {})
    if not isinstance(suite_file, SuiteFile):
        raise InvalidInputError("\n".join(["the suite cannot be run; fix these mistakes and try again", *mistake_lines(suite_file)]))
    return suite_file


def _load_proposal(file: str, proposal: str) -> tuple[CompiledRuleSet, Suite]:
    from gavel_rules.authoring.suites.reader import read_case
    from gavel_rules.authoring.suites.runner import check_suite
    from gavel_rules.language.rule_set import DocumentError

    from gavel_server.cli.documents import display_name, invalid_rule_set, read_document
    from gavel_server.cli.rule_files import InvalidFile, load_rule_set, mistake_lines

    rule_set = load_rule_set(file)
    if isinstance(rule_set, InvalidFile):
        raise invalid_rule_set(file, mistake_lines([rule_set]))
    try:
        suite = read_case(read_document(proposal), "proposal")
        check_suite(suite, rule_set)
    except DocumentError as error:
        mistakes = mistake_lines([InvalidFile(proposal, error.messages)])
        title = f"{display_name(proposal)} is not a valid case; fix these mistakes and try again"
        raise InvalidInputError("\n".join([title, *mistakes])) from error
    return rule_set, suite
