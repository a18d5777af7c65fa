"""A decision for people: fields and tables, the rules' explanations, and its exit status."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Final

from gavel.v1 import decision_pb2
from gavel.v1.arbitration_service_pb2 import RuleExplanation
from gavel.v1.decision_pb2 import CounterReading, Decision, FactRequirementState, Remedy
from gavel_client.meanings import REASON_CODE_MEANINGS, remedy_meaning
from gavel_rules.codec.rule_set_fragments import read_effect
from gavel_rules.events.kinds import GAVEL
from gavel_rules.state.counters import NOT_COUNTING
from gavel_rules.text import printable

from gavel_server.cli.errors import EXIT_FAILURE, EXIT_NEEDS_HUMAN_REVIEW, EXIT_REJECTED
from gavel_server.cli.rendering import output
from gavel_server.cli.rendering.events import (
    enum_name,
    format_delay,
    format_duration,
    format_number,
    format_struct,
    format_time,
    outcome_words,
    policy_line,
)

# A dry run with a rule set that is not in force has no numbers for its new counters.
_ACTIVATE: Final = "activate the rule set, which counts the past of its counters; gavel rules simulate counts it without activating"


def print_decision(decision: Decision, rows: list[tuple[str, str]]) -> None:
    """Print a decision; `rows` follow its outcome."""
    output.print_fields([*_outcome_rows(decision), *rows, *_detail_rows(decision)])
    output.print_table(
        ("fact", "subject", "state", "tier", "at most old", "sources"),
        (
            (
                row.key,
                printable(row.subject),
                enum_name(FactRequirementState, row.state),
                str(int(row.required_trust_tier) or "any"),
                format_duration(row.max_age_ms) if row.max_age_ms else "any",
                ", ".join(row.sources) or "any",
            )
            for row in decision.retry_hint.fact_requirements
        ),
        title="Required facts",
    )
    output.print_table(
        ("fact", "subject", "event", "tier", "fresh until"),
        (
            (fact.key, printable(fact.subject), f"#{fact.sequence_number}", str(int(fact.trust_tier)), format_time(fact.fresh_until))
            for fact in decision.pinned_facts
        ),
        title="Evidence",
    )
    output.print_table(("counter", "of", "value", "next event leaves"), map(counter_row, decision.counters), title="Counters")


def counter_row(reading: CounterReading) -> tuple[str, ...]:
    """Return the cells of a counter: its name, the group that was read, its value, and when the next event stops counting."""
    return (
        printable(f"{reading.policy_id} {reading.counter}"),
        printable(json.dumps(reading.key, ensure_ascii=False)) if reading.key else "all",
        format_number(reading.value),
        format_time(reading.frees_at) if reading.HasField("frees_at") else "-",
    )


def print_explanations(explanations: Iterable[RuleExplanation]) -> None:
    """Print every rule with the parts of its condition and their values."""
    rows: list[tuple[str, str, str, str]] = []
    for rule in explanations:
        rows.append((f"{rule.policy_id} {rule.rule_id}", "yes" if rule.matched else "no", "", ""))
        rows += [("", "", printable(term.expression), printable(term.value)) for term in rule.terms]
    output.print_table(("rule", "matched", "condition", "value"), rows, title="Rules", empty="No rule was evaluated.", fold="condition")


def exit_status(decision: Decision) -> int:
    """Return the exit status of a decision's outcome, for --exit-code."""
    return {
        decision_pb2.OUTCOME_APPROVED: 0,
        decision_pb2.OUTCOME_REJECTED: EXIT_REJECTED,
        decision_pb2.OUTCOME_NEEDS_HUMAN_REVIEW: EXIT_NEEDS_HUMAN_REVIEW,
    }.get(decision.outcome, EXIT_FAILURE)


def contest_text(decision: Decision) -> str:
    """Return how a proposal fared in its contest, or until when it would compete."""
    contest = decision.contest
    if not decision.decision_id:
        return f"it would compete until {format_time(contest.closed_at)}, with a score of {contest.candidates[0].score:g}"
    place, own = next((place, one) for place, one in enumerate(contest.candidates, 1) if one.proposal_id == decision.proposal_id)
    result = own.reason_code or f"with a score of {own.score:g}"
    return f"place {place} of {len(contest.candidates)}, {result}; closed {format_time(contest.closed_at)}"


def _outcome_rows(decision: Decision) -> list[tuple[str, str]]:
    rows = [("outcome", " ".join(outcome_words(decision)))]
    if decision.reason_code in REASON_CODE_MEANINGS:
        rows.append(("means", REASON_CODE_MEANINGS[decision.reason_code]))
    return rows


def _detail_rows(decision: Decision) -> list[tuple[str, str]]:
    rows = [("action", f"{decision.action_type} {format_struct(decision.params)}")]
    if decision.rule_id:
        rows.append(("rule", f"{decision.rule_id} of {decision.policy_id} version {decision.policy_version}"))
    elif decision.policy_id == GAVEL:
        rows.append(("decided by", f"Gavel itself, arbiter version {decision.policy_version}"))
    elif decision.policy_id:
        rows.append(("decided by", f"{decision.policy_id} version {decision.policy_version}"))
    if len(decision.rule_matches) > 1:
        rows.append(("matched", ", ".join(f"{match.rule_id} ({read_effect(match)})" for match in decision.rule_matches)))
    if len(decision.active_rule_sets) > 1:
        rows.append(("rule sets", ", ".join(f"{one.policy_id} version {one.version}" for one in decision.active_rule_sets)))
    if decision.conflict_with_proposal_ids:
        rows.append(("conflicts with", ", ".join(decision.conflict_with_proposal_ids)))
    if decision.HasField("details"):
        rows.append(("details", printable(format_struct(decision.details))))
    if decision.HasField("contest"):
        rows.append(("contest", contest_text(decision)))
    if decision.HasField("review_policy"):
        rows.append(("review", policy_line(decision.review_policy)))
    if decision.HasField("valid_until"):
        rows.append(("valid until", format_time(decision.valid_until)))
    if decision.terminal:
        rows.append(("terminal", "no proposal of this trace for this action and subject can succeed as things stand"))
    elif decision.HasField("retry_hint"):
        rows.append(("what helps" if decision.retry_hint.remedy else "retry", _retry_text(decision)))
    rows += [("warning", printable(f"{warning.code} {warning.message}")) for warning in decision.warnings]
    return rows


def _retry_text(decision: Decision) -> str:
    """Return what helps; decisions of arbiter_version 2 say only whether a retry can help."""
    hint = decision.retry_hint
    if hint.remedy:
        return "; ".join(_remedy_text(remedy, decision) for remedy in hint.remedy)
    if not hint.retryable:
        return "cannot help"
    if hint.retry_after_ms:
        return f"can help, {_delay_text(decision)}"
    if hint.fact_requirements:
        return "can help, with the required facts"
    return "only a different proposal can help"


def _remedy_text(remedy: Remedy.ValueType, decision: Decision) -> str:
    if remedy == decision_pb2.REMEDY_WAIT and decision.retry_hint.retry_after_ms:
        return f"propose again {_delay_text(decision)}"
    if remedy == decision_pb2.REMEDY_WAIT and any(warning.message.endswith(NOT_COUNTING.cause) for warning in decision.warnings):
        return _ACTIVATE
    return remedy_meaning(remedy, decision) or f"remedy {remedy}, which this version of gavel does not know"


def _delay_text(decision: Decision) -> str:
    delay = f"after {format_delay(decision.retry_hint.retry_after_ms)}"
    return f"when the conflicting work has ended, or {delay}" if decision.conflict_with_proposal_ids else f"{delay} or more"
