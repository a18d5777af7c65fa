"""`gavel rules diff`: shows what two versions of a rule set decide differently."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from gavel_server.cli.documents import STANDARD_INPUT
from gavel_server.cli.errors import EXIT_DIFFERENT, InvalidInputError
from gavel_server.cli.options import Debug, JsonReport

if TYPE_CHECKING:
    from gavel_rules.authoring.derived_facts import DerivedFact
    from gavel_rules.authoring.diff import CaseDecision, RuleSetDiff
    from gavel_rules.authoring.samples.seeds import Seed
    from gavel_rules.authoring.suites.histories.compare import HistoryChange, HistoryDiff
    from gavel_rules.authoring.suites.suite import Suite
    from gavel_rules.authoring.suites.versions import SuiteCaseChange
    from gavel_rules.language.rule_set import CompiledRuleSet


def diff(
    old: Annotated[str, typer.Argument(metavar="OLD", help="A rule set in YAML or JSON; - is standard input.")],
    new: Annotated[str, typer.Argument(metavar="NEW", help="Another version of the rule set.")],
    suites: Annotated[
        list[str] | None,
        typer.Option("--suite", metavar="SUITE", help="A suite whose cases are decided by both versions too; repeatable."),
    ] = None,
    as_json: JsonReport = False,
    debug: Debug = False,
) -> None:
    """Show what two versions of a rule set decide differently.

    Lists edited rules, thresholds and declarations, and generated cases on which the versions differ. If a counter or a derivation was
    edited, also generated histories: earlier proposals, their reports, and the time since. Exit status: 0 nothing differs but the version
    and the description, 1 something else differs, 2 a document is not valid.
    """
    from gavel_rules.authoring.diff import diff_rule_sets
    from gavel_rules.authoring.suites.histories.compare import compare_histories
    from gavel_rules.authoring.suites.versions import compare_versions
    from gavel_rules.text import printable

    from gavel_server.cli import documents
    from gavel_server.cli.rendering import output

    if old == new == STANDARD_INPUT:
        raise InvalidInputError("standard input can be only one of the two versions; name a file for the other")
    older, newer = documents.read_compiled(old), documents.read_compiled(new)
    tested = [_load_suite(file, older, newer) for file in suites or ()]
    seeds = [seed for one in tested for seed in _seeds(one, older, newer)]
    changes = diff_rule_sets(older, newer, seeds)
    histories = compare_histories(older, newer, seeds)
    of_suites = [(one.file, change) for one in tested for change in compare_versions(one.suite, one.old, one.new)]
    if as_json:
        data = {
            **_as_json(older, newer, changes),
            "not_analysed": [*changes.not_analysed, *(one.name for one in histories.not_analysed)],
            "reasons": {one.name: one.reason for one in histories.not_analysed},
            "histories": [_history_json(change) for change in histories.changes],
            "suite_cases": [_suite_case_json(file, change) for file, change in of_suites],
        }
        output.print_report(data)
    else:
        for line in (*_lines(changes), *_history_lines(histories), *_suite_lines(of_suites)):
            output.print_line(printable(line))
        if older.policy_id != newer.policy_id:
            output.print_note(f"gavel: these are versions of different rule sets, {older.policy_id} and {newer.policy_id}")
        output.print_note(f"gavel: {_summary(changes, histories, of_suites)}")
    if changes or of_suites:
        raise typer.Exit(EXIT_DIFFERENT)


class _TestedVersions(NamedTuple):
    """A suite, and the rule sets that it tests with either version, in its order."""

    file: str
    suite: Suite
    old: tuple[CompiledRuleSet, ...]
    new: tuple[CompiledRuleSet, ...]


def _load_suite(file: str, older: CompiledRuleSet, newer: CompiledRuleSet) -> _TestedVersions:
    """Return a suite with the versions in place of its own. Raises InvalidInputError if it is not valid or tests no version."""
    from gavel_server.cli.rule_files import SuiteFile, load_suite, mistake_lines

    suite_file = load_suite(file, {})
    if not isinstance(suite_file, SuiteFile):
        raise InvalidInputError("\n".join(mistake_lines(suite_file)))
    in_force = suite_file.in_force
    policy_id = next((one.policy_id for one in in_force if one.policy_id in (older.policy_id, newer.policy_id)), None)
    if policy_id is None:
        tested = ", ".join(one.policy_id for one in in_force)
        raise InvalidInputError(f"{file} tests {tested}, not {older.policy_id}; give a suite that names a version of it under tests")
    old, new = (tuple(version if one.policy_id == policy_id else one for one in in_force) for version in (older, newer))
    return _TestedVersions(file, suite_file.suite, old, new)


def _seeds(tested: _TestedVersions, older: CompiledRuleSet, newer: CompiledRuleSet) -> list[Seed]:
    """Return what the rules of either version read in the cases of a suite; nothing of a version that the suite does not fit."""
    from gavel_rules.authoring.suites.case_bus import CaseBusError
    from gavel_rules.authoring.suites.seeds import find_seeds
    from gavel_rules.language.rule_set import DocumentError

    seeds: list[Seed] = []
    for version, in_force in ((older, tested.old), (newer, tested.new)):
        try:
            seeds.extend(find_seeds(tested.suite, version, in_force))
        except (DocumentError, CaseBusError):
            continue
    return seeds


def _history_json(change: HistoryChange) -> dict[str, Any]:
    return {
        **change._asdict(),
        "earlier": change.earlier and change.earlier._asdict(),
        "before": change.before._asdict(),
        "after": change.after._asdict(),
        "derived_before": [fact._asdict() for fact in change.derived_before],
        "derived_after": [fact._asdict() for fact in change.derived_after],
        "earlier_facts": [facts._asdict() for facts in change.earlier_facts],
    }


def _history_lines(histories: HistoryDiff) -> Iterator[str]:
    for change in histories.changes:
        yield f"history of {change.action}:"
        earlier = change.earlier
        if earlier is not None:
            result = f" with result {_value(earlier.result)}" if earlier.result else ""
            report = f", each reported as {earlier.status}{result}" if earlier.status else ", not carried out"
            parts = [f"params {_value(earlier.params)}", f"subject {earlier.subject}", f"producer.id {earlier.producer}"]
            parts.extend([f"each with another {earlier.numbered}"] if earlier.numbered else [])
            yield f"  {_age(earlier.age_ms)}, {earlier.proposals} x {', '.join(parts)}{report}"
        for group in change.earlier_facts:
            kind = "observation" if group.tier > 1 else "fact"
            source = "" if group.tier > 1 else f" from {group.source}"
            what = f"{group.facts} x {kind} {group.key} = {_value(group.value)} of {group.subject}{source}"
            yield f"  {_age(group.age_ms)}, {what}"
        facts = [f"facts {_value(change.facts)}"] if change.facts else []
        report = f", reported as {_value(change.execution)}" if change.execution is not None else ""
        parts = [f"params {_value(change.params)}", *facts, f"subject {change.subject}", f"producer.id {change.producer}"]
        yield f"  then at {change.now} {', '.join(parts)}{report}"
        yield from _verdict_lines(change.before, change.after, change.derived_before, change.derived_after)
    for name, reason in histories.not_analysed:
        yield f"not-analysed: no history shows the edit of {name}: {reason}; it may still change decisions or derived facts"


def _age(age_ms: int) -> str:
    """Return the age of an earlier event, without rounding it: a millisecond decides whether it counts."""
    from gavel_server.cli.rendering.events import DURATION_UNITS

    parts: list[str] = []
    for unit, size in (*DURATION_UNITS, ("ms", 1)):
        count, age_ms = divmod(age_ms, size)
        parts.extend([f"{count} {unit}"] if count else [])
    return f"{' '.join(parts)} before" if parts else "just before"


def _verdict_lines(
    before: CaseDecision | None, after: CaseDecision | None, derived_before: Sequence[DerivedFact], derived_after: Sequence[DerivedFact]
) -> Iterator[str]:
    for name, decision, derived in (("before: ", before, derived_before), ("after:  ", after, derived_after)):
        facts = "".join(f", derives {fact.key} = {_value(fact.value)} of {fact.subject}" for fact in derived)
        yield f"  {name}{_verdict(decision) if decision is not None else 'the case does not fit this version'}{facts}"


def _suite_case_json(file: str, change: SuiteCaseChange) -> dict[str, Any]:
    decisions = {"before": change.before, "after": change.after}
    derived = {"derived_before": change.derived_before, "derived_after": change.derived_after}
    return {
        "suite": file,
        "case": change.case,
        **{name: one and one._asdict() for name, one in decisions.items()},
        **{name: [fact._asdict() for fact in facts] for name, facts in derived.items()},
    }


def _suite_lines(changes: Sequence[tuple[str, SuiteCaseChange]]) -> Iterator[str]:
    for file, change in changes:
        yield f"case {change.case!r} of {file}"
        yield from _verdict_lines(change.before, change.after, change.derived_before, change.derived_after)


def _as_json(older: CompiledRuleSet, newer: CompiledRuleSet, changes: RuleSetDiff) -> dict[str, Any]:
    return {
        "old": _identity(older),
        "new": _identity(newer),
        "added": changes.added,
        "removed": changes.removed,
        "changed": changes.changed,
        "edits": [edit._asdict() for edit in changes.edits],
        "cases": [{**case._asdict(), "before": case.before._asdict(), "after": case.after._asdict()} for case in changes.cases],
        "not_analysed": changes.not_analysed,
    }


def _identity(rule_set: CompiledRuleSet) -> dict[str, object]:
    return {"policy_id": rule_set.policy_id, "version": rule_set.version, "digest": rule_set.digest}


def _lines(changes: RuleSetDiff) -> Sequence[str]:
    lines = [f"+ rule {rule_id}" for rule_id in changes.added]
    lines.extend(f"- rule {rule_id}" for rule_id in changes.removed)
    lines.extend(f"~ rule {rule_id}" for rule_id in changes.changed)
    lines.extend(f"  {edit.path}: {_value(edit.before)} -> {_value(edit.after)}" for edit in changes.edits)
    for case in changes.cases:
        parts = [f"params {_value(case.params)}", *([f"facts {_value(case.facts)}"] if case.facts else [])]
        parts.extend(f"{name} {_value(value)}" for name, value in case.context.items())
        lines.extend([f"case {case.action}: {', '.join(parts)}", f"  before: {_verdict(case.before)}", f"  after:  {_verdict(case.after)}"])
    lines.extend(
        f"not-analysed: no case was found that shows the edit of rule {rule_id}; it may still change decisions"
        for rule_id in changes.not_analysed
    )
    return lines


def _value(value: object) -> str:
    return "(none)" if value is None else json.dumps(value, ensure_ascii=False, sort_keys=True)


def _verdict(verdict: CaseDecision) -> str:
    return " ".join(filter(None, (verdict.outcome, verdict.reason_code, f"by {verdict.rule_id}" if verdict.rule_id else "")))


def _summary(changes: RuleSetDiff, histories: HistoryDiff, of_suites: Sequence[tuple[str, SuiteCaseChange]]) -> str:
    if not changes and not of_suites:
        return "the two versions make the same decisions"
    if not changes.cases and not histories.changes and not of_suites:
        return "no case was found that the two decide differently"
    more = f"; histories: {len(histories.changes)}" if histories.changes else ""
    more += f"; cases of suites: {len(of_suites)}" if of_suites else ""
    return f"kinds of cases decided differently: {len(changes.cases)}{more}"
