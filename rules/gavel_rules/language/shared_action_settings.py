"""Settings on which rule sets that share an action have to agree (constitution §6.2, ADR 0021).

Several rule sets may govern one action, each with its own evidence and rules. Some settings belong to the action and cannot have two
values: its conflict key, its score and contest window, its retry policy, its compensation and who resolves its reviews. Rule sets that
disagree on one of them are not activated together. A rule set that says nothing about reviews agrees with every other.

Settings are compared by meaning. Layout and variables do not matter in an expression; the types of the params that it reads, the
declarations of its facts, and the definitions of its counters with their keys do. The names of counters do not.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from google.protobuf.json_format import MessageToDict

from gavel_rules.language.cel.checker import Environment, ScopedExpression
from gavel_rules.language.cel.syntax_tree import Node
from gavel_rules.language.cel.tree_queries import find_presence_tests, find_variables
from gavel_rules.language.counters.canonical_tree import canonical_tree
from gavel_rules.language.rule_set import CompiledAction, CompiledRuleSet
from gavel_rules.text import clip

DISAGREEMENTS_NAMED_MAX: Final = 20
SETTING_LENGTH_MAX: Final = 200

_REVIEW: Final = "review"


class Disagreement(NamedTuple):
    """One setting of one action that differs between two rule sets; its values are shortened for people."""

    action_type: str
    setting: str
    value: str
    other_policy_id: str
    other_version: int
    other_value: str

    def __str__(self) -> str:
        return (
            f"{self.setting} of action {self.action_type} is {self.value}, but {self.other_value} "
            f"in rule set {self.other_policy_id} version {self.other_version}, which is in force"
        )


class _Setting(NamedTuple):
    """A setting as its author wrote it, and its meaning, which is equal for equal settings only."""

    written: str
    meaning: object


def find_disagreements(candidate: CompiledRuleSet, in_force: Iterable[CompiledRuleSet], *, compares_counters: bool) -> list[Disagreement]:
    """Return the disagreements of a rule set with others on the actions they share, by action, rule set and setting.

    The active version of the candidate's own policy is skipped: the candidate would replace it. `compares_counters` is that of the bus's
    semantics: without it, counters that a score reads are compared by their names alone.
    """
    others = sorted((other for other in in_force if other.policy_id != candidate.policy_id), key=lambda other: other.policy_id)
    return [
        disagreement
        for action_type, action in candidate.actions.items()
        for other in others
        if action_type in other.actions
        for disagreement in _compare(action, other.actions[action_type], compares_counters)
    ]


def format_disagreements(disagreements: list[Disagreement]) -> str:
    """Return disagreements as one sentence, with what to do about them."""
    shown = "; ".join(map(str, disagreements[:DISAGREEMENTS_NAMED_MAX]))
    more = len(disagreements) - DISAGREEMENTS_NAMED_MAX
    others = ", ".join(sorted({disagreement.other_policy_id for disagreement in disagreements}))
    return (
        f"{shown}{f'; and {more} more' if more > 0 else ''}. "
        f"Rule sets that share an action must agree on these settings: change one of them, or take {others} out of force first"
    )


def _compare(action: CompiledAction, other: CompiledAction, compares_counters: bool) -> Iterator[Disagreement]:
    other_settings = _settings(other, compares_counters)
    for name, own in _settings(action, compares_counters).items():
        theirs = other_settings[name]
        if name == _REVIEW and (own.meaning is None or theirs.meaning is None):
            continue  # the policy of the one holds for both
        if own.meaning != theirs.meaning:
            value, other_value = _distinguish(own.written, theirs.written)
            yield Disagreement(action.action_type, name, value, other.policy_id, other.version, other_value)


def _distinguish(value: str, other_value: str) -> tuple[str, str]:
    """Return two settings for people. If they have the same text, they read names with different declarations."""
    if value == other_value:
        return clip(value, SETTING_LENGTH_MAX), "the same text, but with other declarations of the names in it"
    return clip(value, SETTING_LENGTH_MAX), clip(other_value, SETTING_LENGTH_MAX)


def _settings(action: CompiledAction, compares_counters: bool) -> Mapping[str, _Setting]:
    part = action.part
    settings = {
        "conflict_key": _expression_setting(action, action.conflict_key_expression),
        "score": _score_setting(action, compares_counters),
        "contest_window_ms": _Setting(str(part.contest_window_ms), part.contest_window_ms),
    }
    for name, value in part.retry.model_dump().items():
        settings[f"retry.{name}"] = _Setting(str(value), value)
    settings["compensation"] = _compensation_setting(action)
    settings[_REVIEW] = _review_setting(action)
    return settings


def _expression_setting(action: CompiledAction, scoped: ScopedExpression) -> _Setting:
    return _Setting(_written(scoped), _meaning(action, scoped.environment, scoped.expression.tree))


def _score_setting(action: CompiledAction, compares_counters: bool) -> _Setting:
    """Return the score, the only one of these settings that may read counters."""
    scoped = action.score_expression
    if scoped is None:
        return _Setting("the default", None)
    if not compares_counters:
        return _expression_setting(action, scoped)
    digests = {counter.name: counter.digest for counter in action.read_counters}
    tree = canonical_tree(scoped.environment, scoped.expression.tree, digests)
    return _Setting(_written(scoped), _meaning(action, scoped.environment, tree))


def _compensation_setting(action: CompiledAction) -> _Setting:
    compensation, part = action.compensation, action.part.compensation
    if compensation is None or part is None:
        return _Setting("none", None)
    written = json.dumps(part.model_dump(), ensure_ascii=False, sort_keys=True)
    params = [
        (name, _meaning(action, report.scoped.environment, report.scoped.expression.tree)) for name, report in compensation.expressions
    ]
    return _Setting(written, (compensation.action_type, params))


def _review_setting(action: CompiledAction) -> _Setting:
    policy = action.review_policy
    if policy is None:
        return _Setting("none", None)
    return _Setting(json.dumps(MessageToDict(policy, preserving_proto_field_name=True), sort_keys=True), policy)


def _written(scoped: ScopedExpression) -> str:
    return json.dumps(scoped.expression.written, ensure_ascii=False)


def _meaning(action: CompiledAction, environment: Environment, tree: Node) -> Any:
    """Return the tree of an expression with the types of the names that it reads, and the declarations of its facts."""
    names = sorted({*(name for name, _ in find_variables(tree, environment.types)), *find_presence_tests(tree)})
    types = [(name, environment.types.get(name)) for name in names]
    declared = {f"facts.{fact.name}": fact for fact in action.facts}
    facts = []
    for name in dict.fromkeys(".".join(name.split(".")[:2]) for name in names):
        fact = declared.get(name)
        if fact is not None:
            template = action.subject_expressions.get(fact.name)
            subject = None if template is None else _meaning(action, template.environment, template.expression.tree)
            facts.append((fact._replace(subject="", subjects=""), subject))
    return tree, types, facts
