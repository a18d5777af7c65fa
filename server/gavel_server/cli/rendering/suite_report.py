"""The report of `gavel rules test`: text for people, JUnit XML for continuous integration, JSON for other programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple
from xml.etree import ElementTree

from gavel.v1.decision_pb2 import Decision
from gavel.v1.execution_pb2 import ExecutionStatus
from gavel_rules import reason_codes
from gavel_rules.authoring.suites.coverage import Coverage
from gavel_rules.authoring.suites.runner import CaseResult
from gavel_rules.language.derivation_rules import SUBJECT
from gavel_rules.text import printable

from gavel_server.cli.rendering.events import enum_name, format_value, requirement_line, verdict_line
from gavel_server.cli.rendering.lint_report import invalid_json
from gavel_server.cli.rule_files import InvalidFile

_NO_VALUE: Final = "its expression fails, or gives no string, number or boolean"


class SuiteRun(NamedTuple):
    """The results of one suite."""

    file: str
    rule_set_file: str
    results: tuple[CaseResult, ...]

    @property
    def failures(self) -> list[CaseResult]:
        """The cases whose result differs from the expected one."""
        return [result for result in self.results if not result.passed]


class TestRun(NamedTuple):
    """The results of one run of the command."""

    suites: tuple[SuiteRun, ...]
    invalid: tuple[InvalidFile, ...]
    coverage: dict[str, Coverage]  # by the rule set's file

    @property
    def cases(self) -> int:
        """The number of cases."""
        return sum(len(suite.results) for suite in self.suites)

    @property
    def failures(self) -> int:
        """The number of failed cases."""
        return sum(len(suite.failures) for suite in self.suites)


def failure_line(result: CaseResult, file: str) -> str:
    """Return a failed case as one line: its place, its name and the differences."""
    differences = (f"{one.what}: expected {printable(one.expected)}, found {printable(one.found)}" for one in result.differences)
    return f"{_failure_head(result, file)}: {'; '.join(differences)}"


def failure_lines(result: CaseResult, file: str) -> list[str]:
    """Return the lines on a failed case: its place, the differences, the decisions, the evidence that they lack and its consequences."""
    lines = [_failure_head(result, file)]
    lines += [f"  {one.what}: expected {printable(one.expected)}, found {printable(one.found)}" for one in result.differences]
    for index, run in enumerate(result.earlier):
        if run.decision is not None and any(one.what.startswith(f"earlier.{index}.") for one in result.differences):
            lines += [
                f"  {line}" for line in _decision_lines(f"earlier.{index} decided", run.decision, result.case.part.earlier[index].subject)
            ]
    if not result.error:
        lines += [f"  {line}" for line in _decision_lines("decided", result.decision, result.case.part.subject)]
    return [*lines, *(f"  {line}" for line in consequence_lines(result))]


def _decision_lines(name: str, decision: Decision, subject: str) -> Iterator[str]:
    """Yield a decision on a proposal about a subject, and the evidence that it lacks."""
    yield f"{name}: {verdict_line(decision)}"
    if decision.reason_code == reason_codes.NO_FACT_INPUT:
        missing = f"it cites nothing about its subject, {printable(subject)}, and no declared fact"
        yield f"  without input: {missing}; give the case a fact of that subject, any with a key will do"
    yield from (f"  lacking: {requirement_line(row, with_subject=True)}" for row in decision.retry_hint.fact_requirements)


def _failure_head(result: CaseResult, file: str) -> str:
    return f"{file}:{result.line}:{result.column}: failed: {printable(result.case.name)}"


def earlier_lines(result: CaseResult) -> Iterator[str]:
    """Yield the decisions of a case's earlier proposals that do not compete with its own, and the evidence that they lack."""
    for index, run in enumerate(result.earlier):
        if run.decision is not None:
            yield from _decision_lines(f"earlier.{index} decided", run.decision, result.case.part.earlier[index].subject)


def consequence_lines(result: CaseResult) -> Iterator[str]:
    """Yield the consequences of the report of a case's execution, if it has one."""
    consequences = result.consequences
    if consequences is None:
        return
    yield f"carried out: {enum_name(ExecutionStatus, consequences.report.execution.status)}"
    for envelope in consequences.facts:
        fact = envelope.fact
        about = f" of {printable(envelope.subject)}" if envelope.subject != consequences.report.subject else ""
        tier = f", trust tier {fact.trust_tier}" if fact.trust_tier else ""
        yield f"derived: {fact.key}{about} = {format_value(fact.value)}{tier}"
    for rule_id, problem in consequences.failed:
        wrong = "its subject fails, or is not a subject" if problem == SUBJECT else _NO_VALUE
        yield f"derivation {rule_id} gives no fact: {wrong}"
    if consequences.decision is not None:
        yield f"decided then: {verdict_line(consequences.decision)}"


def explanation_lines(result: CaseResult) -> Iterator[str]:
    """Yield every rule of a failed case's action, by descending priority, with the parts of its condition and their values.

    Yield nothing if no rule was evaluated, or if the decision is as expected and only its consequences differ.
    """
    if not result.decision_differs or not result.rules_evaluated:
        return
    for rule in result.explanations:
        whole = rule.terms[0].value
        yield f"  rule {rule.rule_id}: {'matches' if rule.matched else 'does not match' if whole == 'false' else 'fails'}"
        for term in rule.terms:
            yield f"      {printable(term.expression)}  is  {printable(term.value)}"


def coverage_lines(file: str, coverage: Coverage, *, with_rules: bool) -> Iterator[str]:
    """Yield the coverage of a rule set and its gaps; with `with_rules`, also every rule and every part of its condition."""
    rules, branches = coverage.rule_ratio(), coverage.branch_ratio()
    consequences, sides = coverage.consequence_ratio(), coverage.threshold_ratio()
    after = f", derivations and compensations {consequences.covered} of {consequences.total} ({consequences.percent} %)"
    yield (
        f"{file}: rules {rules.covered} of {rules.total} ({rules.percent} %), "
        f"outcomes of conditions {branches.covered} of {branches.total} ({branches.percent} %)"
        + (after if consequences.total else "")
        + (f", sides of thresholds {sides.covered} of {sides.total} ({sides.percent} %)" if sides.total else "")
    )
    rules_covered = coverage.rules()
    counts = Counter(rule.rule_id for rule in rules_covered)
    for rule in rules_covered:
        name = rule.rule_id if counts[rule.rule_id] == 1 else f"{rule.rule_id} of {rule.action}"  # a rule of several actions
        missing = [
            f"  {name}: {printable(branch.expression)} was never {outcome}"
            for branch in rule.branches
            for outcome, count in (("true", branch.true), ("false", branch.false))
            if not count
        ]
        if with_rules:
            yield f"  {name}: matched {rule.matched}, decided {rule.decided}"
            yield from (f"      true {branch.true:>4}, false {branch.false:>4}  {printable(branch.expression)}" for branch in rule.branches)
            for one in rule.thresholds:
                comparison = printable(f"{one.expression} {one.operator} {one.value:.12g}")
                yield f"      just below {one.below}, at {one.at}, just above {one.above}  {comparison}"
        if not rule.decided:
            yield f"  {name} never decided"
        yield from missing
        for one in rule.thresholds:
            comparison = printable(f"{one.expression} {one.operator} {one.value:.12g}")
            yield from (f"  {name}: {comparison} has no case {place} {one.value:.12g}" for place in one.missing())
    for consequence in coverage.consequences():
        if with_rules:
            yield f"  {consequence.name}: made {consequence.made}, failed {consequence.failed}"
        if not consequence.made:
            yield f"  {consequence.name}: no case has a report that triggers it"


def as_json(run: TestRun) -> dict[str, Any]:
    """Return a run as JSON values."""
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


def as_junit(run: TestRun) -> str:
    """Return a run as JUnit XML: a suite per file, an error per mistake in an invalid file."""
    root = ElementTree.Element("testsuites", name="gavel rules test")
    for suite in run.suites:
        element = _suite(root, suite.file, len(suite.results), failures=len(suite.failures))
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
        "outcome": enum_name(Outcome, result.decision.outcome),
        "reason_code": result.decision.reason_code,
        "rule_id": result.decision.rule_id,
        "differences": [difference._asdict() for difference in result.differences],
        "consequences": list(consequence_lines(result)),
    }


def _coverage(file: str, coverage: Coverage) -> dict[str, Any]:
    return {
        "rule_set_file": file,
        "rules_percent": coverage.rule_ratio().percent,
        "conditions_percent": coverage.branch_ratio().percent,
        "consequences_percent": coverage.consequence_ratio().percent,
        "thresholds_percent": coverage.threshold_ratio().percent,
        "rules": [
            {
                "action": rule.action,
                "rule_id": rule.rule_id,
                "matched": rule.matched,
                "decided": rule.decided,
                "conditions": [branch._asdict() for branch in rule.branches],
                "thresholds": [one._asdict() for one in rule.thresholds],
            }
            for rule in coverage.rules()
        ],
        "consequences": [one._asdict() for one in coverage.consequences()],
    }


def summary(run: TestRun) -> str:
    """Return the run's counts as one line."""
    counts = [_counted(len(run.suites), "suite"), _counted(run.cases, "case")]
    verdict = f"{run.failures} failed" if run.failures else "all passed" if run.cases else "nothing was tested"
    broken = f", {_counted(len(run.invalid), 'file')} not valid" if run.invalid else ""
    return f"{', '.join(counts)}: {verdict}{broken}"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def below(run: TestRun, percent_min: int) -> Sequence[str]:
    """Return the rule sets whose rules, conditions, consequences or thresholds are covered less than `percent_min`."""

    def percent(coverage: Coverage) -> int:
        ratios = (coverage.rule_ratio(), coverage.branch_ratio(), coverage.consequence_ratio(), coverage.threshold_ratio())
        return min(ratio.percent for ratio in ratios)

    return [file for file, coverage in run.coverage.items() if percent(coverage) < percent_min]
