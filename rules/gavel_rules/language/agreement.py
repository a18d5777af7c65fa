"""What rule sets that share an action have to agree on, and where they do not (seeds 002 §6.2).

Several rule sets may govern one action: each asks for its own evidence and has its own say. Some settings are the action's
and not one rule set's: what an approval holds alone, how proposals are ranked and for how long they are waited for, how an
execution may be tried again, and what makes it good. With two answers to these nobody could say what holds, so rule sets that
answer differently do not come into force together.

Settings are compared by what they mean. The layout of an expression does not matter, nor whether a variable names a part of
it; the type of a param that it reads does, and so does what the fact is that a name stands for.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from gavel_rules.language.conditions import Expression
from gavel_rules.language.ruleset import CompiledAction, CompiledRuleSet
from gavel_rules.texts import clipped

DISAGREEMENTS_NAMED_MAX: Final = 20
SETTING_LENGTH_MAX: Final = 200


class Disagreement(NamedTuple):
    """One setting of one action that two rule sets want differently, as far as people are to be told."""

    action_type: str
    setting: str
    wanted: str
    other_policy_id: str
    other_version: int
    in_force: str

    def __str__(self) -> str:
        return (
            f"{self.setting} of action {self.action_type} is {self.wanted}, but {self.in_force} "
            f"in rule set {self.other_policy_id} version {self.other_version}, which is in force"
        )


class _Setting(NamedTuple):
    """A setting as its author wrote it, and what it means: equal if and only if that is the same."""

    written: str
    meaning: object


def disagreements(candidate: CompiledRuleSet, in_force: Iterable[CompiledRuleSet]) -> list[Disagreement]:
    """Return where a rule set disagrees with others about the actions that it shares with them, by action, rule set and setting.

    What has the candidate's own policy_id is what it would replace, and is not asked.
    """
    others = sorted((other for other in in_force if other.policy_id != candidate.policy_id), key=lambda other: other.policy_id)
    return [
        disagreement
        for action_type, action in candidate.actions.items()
        for other in others
        if action_type in other.actions
        for disagreement in _between(action, other.actions[action_type])
    ]


def described(found: list[Disagreement]) -> str:
    """Return disagreements as one sentence, with what to do about them."""
    named = "; ".join(map(str, found[:DISAGREEMENTS_NAMED_MAX]))
    more = len(found) - DISAGREEMENTS_NAMED_MAX
    others = ", ".join(sorted({one.other_policy_id for one in found}))
    return (
        f"{named}{f'; and {more} more' if more > 0 else ''}. "
        f"Rule sets that share an action have to agree on this: write it alike, or take {others} out of force first"
    )


def _between(action: CompiledAction, other: CompiledAction) -> Iterator[Disagreement]:
    theirs = _settings(other)
    for name, own in _settings(action).items():
        if own.meaning != theirs[name].meaning:
            wanted, in_force = _told_apart(own.written, theirs[name].written)
            yield Disagreement(action.action_type, name, wanted, other.policy_id, other.version, in_force)


def _told_apart(one: str, other: str) -> tuple[str, str]:
    """Return two settings for people: where they read alike, it is what they read that differs."""
    if one == other:
        return clipped(one, SETTING_LENGTH_MAX), "the same text over params or facts that are declared differently"
    return clipped(one, SETTING_LENGTH_MAX), clipped(other, SETTING_LENGTH_MAX)


def _settings(action: CompiledAction) -> Mapping[str, _Setting]:
    part = action.part
    settings = {
        "conflict_key": _expression(action, action.conflict_key_expression),
        "score": _Setting("the default", None) if action.score_expression is None else _expression(action, action.score_expression),
        "contest_window_ms": _Setting(str(part.contest_window_ms), part.contest_window_ms),
    }
    for name, value in part.retry.model_dump().items():
        settings[f"retry.{name}"] = _Setting(str(value), value)
    settings["compensation"] = _compensation(action)
    return settings


def _expression(action: CompiledAction, expression: Expression) -> _Setting:
    return _Setting(json.dumps(expression.condition.written, ensure_ascii=False), _meaning(action, expression))


def _compensation(action: CompiledAction) -> _Setting:
    compensation, part = action.compensation, action.part.compensation
    if compensation is None or part is None:
        return _Setting("none", None)
    written = json.dumps(part.model_dump(), ensure_ascii=False, sort_keys=True)
    params = [(name, _meaning(action, one.expression)) for name, one in compensation.expressions]
    return _Setting(written, (compensation.action_type, params))


def _meaning(action: CompiledAction, expression: Expression) -> Any:
    """Return the tree of an expression with the type of all that it reads and, of a fact, which one that is."""
    names = sorted(expression.names())
    types = [(name, expression.environment.types.get(name)) for name in names]
    declared = {f"facts.{fact.name}": fact for fact in action.facts}
    facts = []
    for name in names:
        fact = declared.get(name)
        if fact is not None:
            template = action.subject_expressions.get(fact.name)
            whose = None if template is None else _meaning(action, template)
            facts.append((fact._replace(subject=""), whose))
    return expression.condition.tree, types, facts
