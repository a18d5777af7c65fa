"""What is worth a second look in a rule set that is valid: rules that never decide, and approvals that overrule refusals.

This is for authors, who ask for it with `gavel rules lint` or ValidateRuleSet, and it takes its time; compiling for a deployment
does not. Everything said here is proved or shown. That a rule never decides is said only where the conditions above it
certainly leave it no case (`constraints`). That two rules overlap is said with a case on which both engines match both.

Overlaps are normal, for priorities settle them. Most are as they should be, the stricter rule being the higher one, or are
deliberate: a rule that asks a person before one that refuses outright. What is worth a warning is a rule that approves what a
lower one would refuse or send to a person.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from gavel_rules.authoring.cases import WORK_MAX, CaseMaker, Generated, Witness, makers
from gavel_rules.language.attributes import ATTRIBUTES, NOW
from gavel_rules.language.ruleset import CompiledAction, CompiledRuleSet, Rule
from gavel_rules.language.source import DocumentMessage, Messages, Source
from gavel_rules.texts import clipped

RULES_ANALYSED_MAX: Final = 200  # of one action
PAIRS_ANALYSED_MAX: Final = 400  # of one action
VALUE_LENGTH_MAX: Final = 400

_WOULD: Final = {"reject": "refuse", "review": "send to a person"}


def analyse(rule_set: CompiledRuleSet, work_max: int = WORK_MAX) -> tuple[DocumentMessage, ...]:
    """Return the warnings about a rule set's rules, sorted by place. They come beside `CompiledRuleSet.warnings`.

    The work that it may take is bounded, in steps of a Budget; of an action for which it is too little, a warning says so.
    """
    return _Analysis(rule_set, work_max).warnings()


def shown(generated: Generated) -> str:
    """Return a case as authors read it: its params and facts, and what else of it was chosen on purpose."""
    parts = [f"params {_json(generated.params)}"]
    if generated.facts:
        parts.append(f"facts {_json(generated.facts)}")
    parts.extend(f"{path} {_json(attribute(path, generated))}" for path in sorted(generated.assigned) if path in ATTRIBUTES)
    return ", ".join(parts)


def attribute(path: str, generated: Generated) -> object:
    """Return what a case has for a variable that is neither param nor fact; times as text."""
    case = generated.case
    kind, _, identity = case.subject.partition("/")
    values: dict[str, object] = {
        "subject": case.subject,
        "subject.type": kind,
        "subject.id": identity,
        NOW: datetime.fromtimestamp(case.now_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
    }
    root, _, name = path.rpartition(".")
    field = {"proposal": name, "trace": name}.get(root, f"{root}_{name}")
    return values[path] if path in values else getattr(case, field)


def _json(value: object) -> str:
    return clipped(json.dumps(value, ensure_ascii=False, sort_keys=True), VALUE_LENGTH_MAX)


class _Analysis:
    def __init__(self, rule_set: CompiledRuleSet, work_max: int) -> None:
        self._rule_set = rule_set
        self._work_max = work_max
        self._messages = Messages()
        self._source = Source(rule_set.document, Messages())
        data = self._source.data
        rules = data["rules"] if isinstance(data, dict) else []
        self._index_of = {rule["id"]: index for index, rule in enumerate(rules)}

    def warnings(self) -> tuple[DocumentMessage, ...]:
        for maker in makers(self._rule_set, self._work_max):
            action = maker.action
            name = action.action_type
            if maker.base is None and not maker.budget.spent:
                self._not_analysed(name, "no params were found that fit its schema", "give `examples` in the schema")
                continue
            if len(action.rules) > RULES_ANALYSED_MAX:
                self._not_analysed(name, f"only its {RULES_ANALYSED_MAX} highest rules were looked at", "split the action")
            unreachable = self._check_reachable(maker, action)
            self._check_overlaps(maker, action, unreachable)
            if maker.budget.spent:
                self._not_analysed(
                    name, "it takes too much work", "simplify its conditions and its schema, or split the action or the rule set"
                )
        return self._messages.sorted()

    def _not_analysed(self, action_type: str, why: str, what_to_do: str) -> None:
        place = self._source.key_place(("actions", action_type))
        self._messages.add(place, "not-analysed", f"{action_type} was not analysed in full: {why}", what_to_do)

    def _warn(self, rule: Rule, code: str, message: str, suggestion: str) -> None:
        self._messages.add(self._source.place(("rules", self._index_of[rule.id], "id")), code, message, suggestion)

    def _check_reachable(self, maker: CaseMaker, action: CompiledAction) -> set[int]:
        """Warn of rules that certainly never decide; return their indexes."""
        unreachable = set()
        for index, rule in enumerate(action.rules[:RULES_ANALYSED_MAX]):
            witness = maker.decided_by(index)
            if not witness.impossible:
                continue
            unreachable.add(index)
            higher = [action.rules[other].id for other in witness.others if other < index]
            if higher:
                message = f"{rule.id} never decides: wherever it matches, {_listed(higher)} decides before it"
                self._warn(rule, "unreachable-rule", message, "give it a higher priority, or remove it")
            else:
                self._warn(rule, "unreachable-rule", f"{rule.id} never matches: no case fulfils its condition", "correct or remove it")
        return unreachable

    def _check_overlaps(self, maker: CaseMaker, action: CompiledAction, unreachable: set[int]) -> None:
        """Warn of rules that approve although a lower one, which matches too, would not."""
        pairs = PAIRS_ANALYSED_MAX
        rules = action.rules[:RULES_ANALYSED_MAX]
        for higher, rule in enumerate(rules):
            if rule.effect != "approve" or higher in unreachable:
                continue
            stricter = [index for index in range(higher + 1, len(rules)) if rules[index].effect != "approve" and index not in unreachable]
            overruled = []
            for lower in stricter[:pairs]:
                witness = maker.decided_by(higher, [maker.formula(action, lower, True)])
                if witness.found is not None and self._both_match(action, (higher, lower), witness):
                    overruled.append((lower, witness.found))
            pairs -= min(pairs, len(stricter))
            if overruled:
                lower, example = overruled[0]
                more = f", and so for {_listed([rules[other].id for other, _ in overruled[1:]])}" if len(overruled) > 1 else ""
                self._warn(
                    rule,
                    "overlapping-rules",
                    f"{rule.id} approves what {rules[lower].id}, which is lower, would {_WOULD[rules[lower].effect]}: "
                    f"{shown(example)}{more}",
                    "give the stricter rule the higher priority, or keep its cases out of this condition",
                )

    def _both_match(self, action: CompiledAction, indexes: Sequence[int], witness: Witness) -> bool:
        """Whether both engines say that both rules match."""
        assert witness.found is not None  # noqa: S101  # for the type checker
        verdict = action.evaluate(witness.found.case, both=True)
        return verdict.disagreement is None and {action.rules[index] for index in indexes} <= set(verdict.matched)


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"
