"""Warnings about a valid rule set: texts that compile and probably do not mean what their author intended."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from gavel_rules.language.action_checker import CheckedAction
from gavel_rules.language.cel.tree_queries import find_presence_tests, find_variables
from gavel_rules.language.cel.variables import is_literal
from gavel_rules.language.counters.counter import CompiledCounter
from gavel_rules.language.counters.lint import (
    CounterWarning,
    find_exact_thresholds,
    find_other_counters,
    find_other_keys,
    find_other_limits,
    find_unguarded_results,
    find_unknown_values,
    find_windows_in_seconds,
)
from gavel_rules.language.document.diagnostics import DocumentMessage, Messages, Path
from gavel_rules.language.document.models import ActionPart, ReviewPart, RuleSetPart
from gavel_rules.language.document.source import Source
from gavel_rules.language.expression_checker import ExpressionChecker
from gavel_rules.language.subject_templates import find_dependencies


class DocumentWarning(NamedTuple):
    """A warning without its line and column: finding them means reading the text as YAML, and only authors need them."""

    path: Path
    at_key: bool
    code: str
    message: str
    suggestion: str


def find_warnings(
    part: RuleSetPart, actions: Mapping[str, CheckedAction], counters: Mapping[str, CompiledCounter], expressions: ExpressionChecker
) -> Iterator[DocumentWarning]:
    """Yield the warnings about a valid document."""
    calendars = [counter.calendar for counter in getattr(part, "counters", {}).values()]
    zones = {calendar.time_zone for calendar in calendars if calendar is not None}
    for name in expressions.unused_variables():
        if name in zones:
            continue
        if is_literal(name):
            yield DocumentWarning(tuple(name.split(".")), True, "constant-never-used", f"no expression uses {name}", "remove it")
            continue
        yield DocumentWarning(("variables", name), True, "variable-never-used", f"no expression uses {name}", "remove it")
    imported = {name for library in part.documents.values() for name in library.shared}
    used = {name for action in part.actions.values() for name in action.use}
    for name in part.shared:
        if name not in used and name not in imported:
            yield DocumentWarning(("shared", name), True, "shared-never-used", f"no action uses {name}", "remove it")
    read = {one.counter for action in actions.values() for one in action.environment.counter_reads.all()}
    read.update(one.counter for action in actions.values() for rule in action.derivations for one in rule.counter_reads)
    for name in part.counters:
        if name not in read:
            hint = "it is still counted; remove it, or read it in a condition"
            message = f"no rule, no score and no derivation reads {name}"
            yield DocumentWarning(("counters", name), True, "counter-never-read", message, hint)
    for path, code, message, hint in _counter_warnings(part, actions, counters):
        yield DocumentWarning(path, False, code, message, hint)
    compensating = {action.compensation.action for action in part.actions.values() if action.compensation is not None}
    for name, action in actions.items():
        # A compensation is approved without evaluating rules.
        is_compensation = name in compensating and not action.rules
        yield from _action_warnings(name, part.actions[name], action, is_compensation=is_compensation)
    for index, rule in enumerate(part.rules):
        if rule.review is not None:
            yield from _review_warnings(("rules", index, "review"), rule.review)


def _counter_warnings(
    part: RuleSetPart, actions: Mapping[str, CheckedAction], counters: Mapping[str, CompiledCounter]
) -> Iterator[CounterWarning]:
    """Yield the warnings about counters and what rules compare them with."""
    if not counters:
        return
    yield from find_windows_in_seconds(part.counters)
    reason_codes = [rule.reason_code for rule in part.rules if rule.reason_code is not None]
    for name, counter in counters.items():
        reads = [
            (read.key, action.environment)
            for action_type, action in actions.items()
            if action_type in counter.actions
            for read in action.environment.counter_reads.all()
            if read.counter == name
        ]
        yield from find_other_keys(("counters", name), counter, reads)
        schemas = [part.actions[action_type].params for action_type in sorted(counter.actions)]
        yield from find_unknown_values(("counters", name), counter, schemas, reason_codes)
        yield from find_unguarded_results(("counters", name), counter, part.counters[name])
    index_of = {rule.id: index for index, rule in enumerate(part.rules)}
    for action in actions.values():
        for rule, condition in action.rules:
            path: Path = ("rules", index_of[rule.id])
            yield from find_exact_thresholds((*path, "when"), condition, action.environment, part.counters)
            if rule.id in action.retries:
                call = action.retries[rule.id]
                yield from find_other_limits((*path, "retry_after"), condition, action.environment, part.counters, call)
                yield from find_other_counters((*path, "retry_after"), condition, action.environment, call)


def locate_warnings(warnings: Iterable[DocumentWarning], text: str) -> tuple[DocumentMessage, ...]:
    """Return warnings about the document with this text, sorted by place."""
    source, messages = Source(text, Messages()), Messages()
    for warning in warnings:
        place = source.locate_key(warning.path) if warning.at_key else source.locate(warning.path)
        messages.add(place, warning.code, warning.message, warning.suggestion)
    return messages.sorted()


def _action_warnings(name: str, part: ActionPart, action: CheckedAction, *, is_compensation: bool) -> Iterator[DocumentWarning]:
    """Yield the warnings about an action. `is_compensation`: it is only the target of a compensation."""
    path: Path = ("actions", name)
    names = _names_in_use(action)
    for fact in action.facts:
        if f"facts.{fact.name}" not in names:
            message, hint = f"no rule reads facts.{fact.name}", "it is still required as evidence, unless optional"
            yield DocumentWarning((*path, "facts", fact.name), True, "fact-never-read", message, hint)
    window_ms = part.contest_window_ms
    for fact in action.facts:
        if fact.max_age_ms <= window_ms:
            message = f"facts.{fact.name} is stale after {fact.max_age_ms} ms, but a contest takes {window_ms} ms"
            hint = "raise max_age_ms above contest_window_ms, by the time needed to get the fact"
            yield DocumentWarning((*path, "facts", fact.name, "max_age_ms"), False, "contest-outlasts-fact", message, hint)
    if part.review is not None:
        yield from _review_warnings((*path, "review"), part.review)
    if not is_compensation and all(rule.effect == "reject" for rule, _ in action.rules):
        hint = "alone, the rule set refuses every proposal; another one must approve"
        yield DocumentWarning(path, True, "never-approves", f"no rule approves {name} or requests a review", hint)


def _review_warnings(path: Path, review: ReviewPart) -> Iterator[DocumentWarning]:
    """Yield the warnings about who resolves a review."""
    place = (*path, "escalate_to")
    if not review.escalate_to:
        return
    if review.escalate_after_ms is None:
        message, hint = "the review is never escalated, so escalate_to lets nobody vote", "add escalate_after_ms, or remove escalate_to"
        yield DocumentWarning(place, True, "never-escalates", message, hint)
    elif not review.groups:
        message = "everybody may vote from the start, so escalate_to lets nobody else vote"
        yield DocumentWarning(place, True, "needless-escalation", message, "name those who vote first under groups, or remove escalate_to")
    elif set(review.escalate_to) <= set(review.groups):
        message = "escalate_to names only groups that vote from the start"
        yield DocumentWarning(place, True, "needless-escalation", message, "name other groups, or remove escalate_to")


def _names_in_use(action: CheckedAction) -> set[str]:
    """Return every name that the rules, the score, the keys of counters, the subject templates and the derivations read or test."""
    expressions = [condition for _, condition in action.rules]
    expressions.extend(expression for details in action.details.values() for expression in details.values())
    if action.score is not None:
        expressions.append(action.score)
    names = {name for expression in expressions for name, _ in find_variables(expression.tree, action.environment.types)}
    names.update(path for expression in expressions for path in find_presence_tests(expression.tree))
    for read in action.environment.counter_reads.all():
        key = action.environment.tree(read.key or '""')
        names.update(name for name, _ in find_variables(key, action.environment.types))
    for subject in action.subjects.values():
        names.update(f"facts.{name}" for name in find_dependencies(action.subject_environment, subject))
    names.update(f"facts.{name}" for rule in action.derivations for name in rule.facts)
    # An expression that reads a part of a fact reads the fact.
    names.update(".".join(name.split(".")[:2]) for name in tuple(names) if name.startswith("facts."))
    return names
