"""What `gavel rules lint` and `test` say: text for people, JUnit's XML for continuous integration, JSON for other programs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple
from xml.etree import ElementTree

from gavel.v1.execution_pb2 import ExecutionStatus
from gavel_rules.authoring.coverage import Coverage
from gavel_rules.authoring.testing import CaseResult
from gavel_rules.language.ruleset import DocumentMessage

from gavel_server.cli import author_files
from gavel_server.cli.author_files import Checked, Invalid
from gavel_server.cli.describe import printable, short, value_text, verdict_line


class SuiteRun(NamedTuple):
    """What the cases of one suite came to."""

    file: str
    rule_set_file: str
    results: tuple[CaseResult, ...]

    @property
    def failed(self) -> list[CaseResult]:
        """The cases that came out otherwise than expected."""
        return [result for result in self.results if not result.passed]


class TestRun(NamedTuple):
    """Everything that one run of the command found."""

    suites: tuple[SuiteRun, ...]
    invalid: tuple[Invalid, ...]
    coverage: dict[str, Coverage]  # by the rule set's file

    @property
    def cases(self) -> int:
        """How many cases ran."""
        return sum(len(suite.results) for suite in self.suites)

    @property
    def failures(self) -> int:
        """How many of them failed."""
        return sum(len(suite.failed) for suite in self.suites)


def checked_lines(checked: Sequence[Checked]) -> Iterator[str]:
    """Yield what people need to know of files that were checked."""
    yield from author_files.lines(invalid for one in checked for invalid in one.invalid)
    for one in checked:
        for warning in one.warnings:
            place, _, rest = warning.format(one.file).partition(": ")
            yield f"{place}: warning: {rest}"
        if not one.invalid:
            yield f"{one.file}: {one.summary}"


def checked_json(one: Checked) -> dict[str, Any]:
    """Return what was checked as plain data, shaped like the contract's ValidateRuleSetResponse."""
    return {
        "file": one.file,
        "valid": not one.invalid,
        "errors": [{"file": invalid.file, **message_json(message)} for invalid in one.invalid for message in invalid.messages],
        "warnings": [message_json(warning) for warning in one.warnings],
        "digest": one.digest,
    }


def failure_lines(result: CaseResult, file: str) -> list[str]:
    """Return what people need to know of a failed case: where it stands, what differs, what was decided."""
    head = f"{file}:{result.line}:{result.column}: failed: {printable(result.case.name)}"
    differences = [f"  {one.what}: expected {printable(one.expected)}, found {printable(one.found)}" for one in result.differences]
    return [head, *differences, f"  decided: {verdict_line(result.decision)}", *(f"  {line}" for line in consequence_lines(result))]


def consequence_lines(result: CaseResult) -> Iterator[str]:
    """Yield what followed from the report of a case's execution, if it has one."""
    carried_out = result.carried_out
    if carried_out is None:
        return
    yield f"carried out: {short(ExecutionStatus, carried_out.report.execution.status)}"
    for fact in carried_out.facts:
        yield f"derived: {fact.key} = {value_text(fact.value)}"
    for rule_id in carried_out.failed:
        yield f"derivation {rule_id} gives no fact: its expression errs, or gives no string, number or boolean"
    if carried_out.decision is not None:
        yield f"decided then: {verdict_line(carried_out.decision)}"


def explanation_lines(result: CaseResult) -> Iterator[str]:
    """Yield every rule of a failed case's action, by falling priority, with its condition's parts and values.

    Nothing if the decision is as expected, and only what followed from it is not.
    """
    if not result.decided_otherwise:
        return
    if not result.explanations:
        yield "  no rule was asked: the params do not fit the action's schema"
    for rule in result.explanations:
        whole = rule.terms[0].value
        yield f"  rule {rule.rule_id}: {'matches' if rule.matched else 'does not match' if whole == 'false' else 'errs'}"
        for term in rule.terms:
            yield f"      {printable(term.expression)}  is  {printable(term.value)}"


def coverage_lines(file: str, coverage: Coverage, *, full: bool) -> Iterator[str]:
    """Yield how much of a rule set was tried, and what was not; with `full`, every rule and every part of its condition."""
    rules, branches = coverage.of_rules(), coverage.of_branches()
    consequences = coverage.of_consequences()
    after = f", derivations and compensations {consequences.seen} of {consequences.total} ({consequences.percent} %)"
    yield (
        f"{file}: rules {rules.seen} of {rules.total} ({rules.percent} %), "
        f"outcomes of conditions {branches.seen} of {branches.total} ({branches.percent} %)" + (after if consequences.total else "")
    )
    for rule in coverage.rules():
        missing = [
            f"  {rule.rule_id}: {printable(branch.expression)} was never {outcome}"
            for branch in rule.branches
            for outcome, count in (("true", branch.true), ("false", branch.false))
            if not count
        ]
        if full:
            yield f"  {rule.rule_id}: matched {rule.matched}, decided {rule.decided}"
            yield from (f"      true {branch.true:>4}, false {branch.false:>4}  {printable(branch.expression)}" for branch in rule.branches)
        if not rule.decided:
            yield f"  {rule.rule_id} never decided"
        yield from missing
    for one in coverage.consequences():
        if full:
            yield f"  {one.name}: made {one.made}, failed {one.failed}"
        if not one.made:
            yield f"  {one.name}: no case reports what it is made of"


def as_json(run: TestRun) -> dict[str, Any]:
    """Return a run as plain data."""
    return {
        "cases": run.cases,
        "failures": run.failures,
        "suites": [
            {"file": suite.file, "rule_set_file": suite.rule_set_file, "cases": [_case(result) for result in suite.results]}
            for suite in run.suites
        ],
        "invalid": invalid_json(run.invalid),
        "coverage": [_coverage(file, coverage) for file, coverage in run.coverage.items()],
    }


def invalid_json(invalid: Iterable[Invalid]) -> list[dict[str, Any]]:
    """Return files that are not valid as plain data."""
    return [{"file": one.file, "errors": [message_json(message) for message in one.messages]} for one in invalid]


def message_json(message: DocumentMessage) -> dict[str, Any]:
    """Return one mistake or warning as plain data, shaped like the contract's DocumentMessage."""
    return {name: getattr(message, name) for name in ("line", "column", "code", "message", "suggestion")}


def as_junit(run: TestRun) -> str:
    """Return a run as JUnit XML: a suite per file, an error for a file that is not valid."""
    root = ElementTree.Element("testsuites", name="gavel rules test")
    for suite in run.suites:
        element = _suite(root, suite.file, len(suite.results), failures=len(suite.failed))
        for result in suite.results:
            case = _testcase(element, suite.file, result.case.name, result.line)
            if not result.passed:
                text = [*failure_lines(result, suite.file), *explanation_lines(result)]
                message = "; ".join(f"{one.what}: expected {one.expected}, found {one.found}" for one in result.differences)
                ElementTree.SubElement(case, "failure", message=printable(message)).text = "\n".join(text)
    for one in run.invalid:
        element = _suite(root, one.file, len(one.messages), errors=len(one.messages))
        for problem in one.messages:
            case = _testcase(element, one.file, f"{problem.code} at {problem.line}:{problem.column}", problem.line)
            ElementTree.SubElement(case, "error", message=printable(problem.message)).text = printable(problem.format(one.file))
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _suite(root: ElementTree.Element, name: str, tests: int, *, failures: int = 0, errors: int = 0) -> ElementTree.Element:
    return ElementTree.SubElement(
        root, "testsuite", name=printable(name), tests=str(tests), failures=str(failures), errors=str(errors), skipped="0"
    )


def _testcase(suite: ElementTree.Element, file: str, name: str, line: int) -> ElementTree.Element:
    return ElementTree.SubElement(suite, "testcase", classname=printable(file), name=printable(name), file=printable(file), line=str(line))


def _case(result: CaseResult) -> dict[str, Any]:
    from gavel.v1.decision_pb2 import Outcome

    return {
        "name": result.case.name,
        "line": result.line,
        "column": result.column,
        "action": result.action,
        "passed": result.passed,
        "outcome": short(Outcome, result.decision.outcome),
        "reason_code": result.decision.reason_code,
        "rule_id": result.decision.rule_id,
        "differences": [difference._asdict() for difference in result.differences],
        "consequences": list(consequence_lines(result)),
    }


def _coverage(file: str, coverage: Coverage) -> dict[str, Any]:
    return {
        "rule_set_file": file,
        "rules_percent": coverage.of_rules().percent,
        "conditions_percent": coverage.of_branches().percent,
        "consequences_percent": coverage.of_consequences().percent,
        "rules": [
            {
                "action": rule.action,
                "rule_id": rule.rule_id,
                "matched": rule.matched,
                "decided": rule.decided,
                "conditions": [branch._asdict() for branch in rule.branches],
            }
            for rule in coverage.rules()
        ],
        "consequences": [one._asdict() for one in coverage.consequences()],
    }


def summary(run: TestRun) -> str:
    """Return the run in a sentence."""
    counts = [_counted(len(run.suites), "suite"), _counted(run.cases, "case")]
    verdict = f"{run.failures} failed" if run.failures else "all passed" if run.cases else "nothing was tested"
    broken = f", {_counted(len(run.invalid), 'file')} not valid" if run.invalid else ""
    return f"{', '.join(counts)}: {verdict}{broken}"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def below(run: TestRun, percent_min: int) -> Sequence[str]:
    """Return the rule sets of whose rules, conditions or consequences less than this is covered."""
    return [
        file
        for file, coverage in run.coverage.items()
        if min(coverage.of_rules().percent, coverage.of_branches().percent, coverage.of_consequences().percent) < percent_min
    ]
