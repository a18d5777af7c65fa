"""What two versions of a rule set decide differently: what was edited, and made cases that tell the versions apart.

Edits are found by comparing the two documents, and conditions by what they mean rather than how they are laid out. Cases are
then looked for where an edit can matter: one that a changed rule decides now and did not match before, one that it decided and
does not match now, one that it took over from another rule. Last come cases at every threshold of either version, for what
declarations change. Each case is really put to both engines in both versions, and is shown only if the versions differ on it.

A case holds what the rules may see. How old evidence is, and who said it, is settled before rules are asked: changes of ages,
tiers, sources and limits are listed, and no case shows them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, Final, NamedTuple

from gavel_rules import reasons
from gavel_rules.authoring.analysis import attribute
from gavel_rules.authoring.cases import WORK_MAX, WORK_MIN, CaseMaker, Generated, generated_cases
from gavel_rules.language.attributes import ATTRIBUTES
from gavel_rules.language.cel_syntax import Constant, Node, children
from gavel_rules.language.constraints import Budget
from gavel_rules.language.declarations import is_of_type
from gavel_rules.language.lowering import Formula
from gavel_rules.language.reading import reads
from gavel_rules.language.ruleset import CompiledAction, CompiledRuleSet

SWEPT_CASES_MAX: Final = 200  # of one version of an action
CASES_SHOWN_MAX: Final = 500
APPROVALS_MAX: Final = 4  # rules that may approve in one version what another rule decides in the other
OVERTAKEN_MAX: Final = 16  # rules that one edited rule has overtaken, of which a case is looked for

_OUTCOMES: Final = {"approve": "APPROVED", "reject": "REJECTED", "review": "NEEDS_HUMAN_REVIEW"}
_REJECTED: Final = _OUTCOMES["reject"]
# Keys of a document in which two versions differ anyway, or that decide nothing.
_NOT_COMPARED: Final = ("version", "description", "rules")
_OF_RULES: Final = ("action", "priority", "when", "effect", "reason_code")


class Decided(NamedTuple):
    """What a version decides: the outcome as decisions name it, the reason code, and the rule, "" where none decides."""

    outcome: str
    reason_code: str
    rule_id: str


class TellingCase(NamedTuple):
    """A case that the versions decide differently. `context` is what conditions read beside params and facts."""

    action: str
    params: Mapping[str, object]
    facts: Mapping[str, object]  # by declared name: the newer version's, where both have one
    context: Mapping[str, object]
    before: Decided
    after: Decided


class Edit(NamedTuple):
    """One difference between the documents. `path` is where; a value that one of them does not have is None."""

    path: str
    before: object
    after: object


class Difference(NamedTuple):
    """Everything in which two versions differ, apart from number and description; all empty where they do not."""

    added: tuple[str, ...]  # rule ids
    removed: tuple[str, ...]
    changed: tuple[str, ...]
    edits: tuple[Edit, ...]
    cases: tuple[TellingCase, ...]

    def __bool__(self) -> bool:
        return any(self)


def difference(older: CompiledRuleSet, newer: CompiledRuleSet) -> Difference:
    """Return in what two versions differ. They may be of different rule sets."""
    before, after = json.loads(older.canonical_json), json.loads(newer.canonical_json)
    old_rules, new_rules = _rules(older, before), _rules(newer, after)
    both = [rule_id for rule_id in new_rules if rule_id in old_rules]
    changed = tuple(rule_id for rule_id in both if not _same(old_rules[rule_id], new_rules[rule_id]))
    edits = [*_edits("", _declarations(before), _declarations(after))]
    for rule_id in changed:
        edits.extend(_rule_edits(rule_id, old_rules[rule_id], new_rules[rule_id]))
    actions = [_Versions(name, older, newer, before, after) for name in sorted({*older.actions, *newer.actions})]
    edited = [action for action in actions if action.may_differ()]
    work_max = max(2 * WORK_MAX // max(len(edited), 1), WORK_MIN)
    cases = chain.from_iterable(action.telling_cases(work_max) for action in edited)
    return Difference(
        tuple(rule_id for rule_id in new_rules if rule_id not in old_rules),
        tuple(rule_id for rule_id in old_rules if rule_id not in new_rules),
        changed,
        tuple(edits),
        tuple(case for _, case in zip(range(CASES_SHOWN_MAX), cases, strict=False)),
    )


class _Written(NamedTuple):
    """A rule with its keys as written and its condition as understood."""

    keys: Mapping[str, object]
    tree: Node


def _rules(rule_set: CompiledRuleSet, document: Mapping[str, Any]) -> dict[str, _Written]:
    trees = {
        rule.id: condition.tree
        for action in rule_set.actions.values()
        for rule, condition in zip(action.rules, action.conditions, strict=True)
    }
    return {rule["id"]: _Written(rule, trees[rule["id"]]) for rule in document["rules"]}


def _same(before: _Written, after: _Written) -> bool:
    """Whether two rules mean the same. The layout of a condition does not matter; a variable that it names does."""
    return before.tree == after.tree and all(before.keys.get(key) == after.keys.get(key) for key in _OF_RULES if key != "when")


def _rule_edits(rule_id: str, before: _Written, after: _Written) -> Iterator[Edit]:
    for key in _OF_RULES:
        if before.keys.get(key) != after.keys.get(key) and (key != "when" or before.tree != after.tree):
            yield Edit(f"rules.{rule_id}.{key}", before.keys.get(key), after.keys.get(key))
    thresholds = _thresholds(before.tree, after.tree)
    if thresholds is not None:
        yield from (Edit(f"rules.{rule_id}.threshold", one.value, other.value) for one, other in thresholds)


def _thresholds(before: Node, after: Node) -> list[tuple[Constant, Constant]] | None:
    """Return the literals in which two conditions differ; None where they differ in more."""
    if isinstance(before, Constant) and isinstance(after, Constant):
        return [] if before == after else [(before, after)]
    if type(before) is not type(after) or _shape(before) != _shape(after):
        return None
    found: list[tuple[Constant, Constant]] = []
    for one, other in zip(children(before), children(after), strict=True):
        below = _thresholds(one, other)
        if below is None:
            return None
        found.extend(below)
    return found


def _shape(node: Node) -> tuple[object, ...]:
    """Return what a node is, apart from its parts."""
    names = ("name", "field_name", "test_only", "function", "variable", "second_variable", "message_name")
    return (*(getattr(node, name, None) for name in names), sum(1 for _ in children(node)))


def _declarations(document: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in document.items() if key not in _NOT_COMPARED}


def _edits(path: str, before: Any, after: Any) -> Iterator[Edit]:
    if isinstance(before, dict) and isinstance(after, dict):
        for key in sorted({*before, *after}):
            yield from _edits(f"{path}.{key}" if path else key, before.get(key), after.get(key))
    elif before != after:
        yield Edit(path, before, after)


class _Versions:
    """One action in two versions; either may be missing."""

    def __init__(
        self, name: str, older: CompiledRuleSet, newer: CompiledRuleSet, before: Mapping[str, Any], after: Mapping[str, Any]
    ) -> None:
        self._name = name
        self._older = older.actions.get(name)
        self._newer = newer.actions.get(name)
        # Evidence is the same where it has the same key and subject, whatever the versions call it.
        old, new = before["actions"].get(name, {}), after["actions"].get(name, {})
        self._of_older, self._of_newer = _evidence(old), _evidence(new)
        self._same_declarations = old == new
        self._seen: set[tuple[str, Decided, Decided]] = set()

    def may_differ(self) -> bool:
        """Whether anything that decides was edited."""
        if self._older is None or self._newer is None:
            return True
        return not self._same_declarations or _meanings(self._older) != _meanings(self._newer)

    def telling_cases(self, work_max: int) -> Iterator[TellingCase]:
        """Yield cases that the versions decide differently: one for each rule that was edited, and for each other such pair.

        The work to find them is bounded, in steps of a Budget.
        """
        if self._older is None or self._newer is None:
            yield from self._only_one(work_max)
            return
        old, new = self._older, self._newer
        for_old, for_new = CaseMaker(old, [new], Budget(work_max // 2)), CaseMaker(new, [old], Budget(work_max // 2))
        for maker, version, other in ((for_new, new, old), (for_old, old, new)):
            unedited = _meanings(other)
            for index, meaning in enumerate(_meanings(version)):
                if meaning not in unedited:
                    yield from self._told(meaning[0], version, _around_an_edit(maker, version, index, other))
        yield from self._told("", new, generated_cases(new, SWEPT_CASES_MAX, for_new))
        yield from self._told("", old, generated_cases(old, SWEPT_CASES_MAX, for_old))

    def _only_one(self, work_max: int) -> Iterator[TellingCase]:
        version = self._newer or self._older
        assert version is not None  # noqa: S101  # the name is one of either's
        yield from self._told("", version, generated_cases(version, len(version.rules) + 1, CaseMaker(version, budget=Budget(work_max))))

    def _told(self, rule_id: str, version: CompiledAction, cases: Iterable[Generated]) -> Iterator[TellingCase]:
        """Yield the cases, made for a version, on which the versions differ: one for each pair of decisions and edited rule."""
        for case in cases:
            evidence = {self._identity(name, version): value for name, value in case.facts.items()}
            before = _decide(self._older, self._of_older, case, evidence)
            after = _decide(self._newer, self._of_newer, case, evidence)
            if before != after and (rule_id, before, after) not in self._seen:
                self._seen |= {(rule_id, before, after), ("", before, after)}
                yield TellingCase(self._name, case.params, self._named(evidence), self._context(case), before, after)

    def _identity(self, name: str, version: CompiledAction) -> Evidence:
        first, second = (self._of_newer, self._of_older) if version is self._newer else (self._of_older, self._of_newer)
        return first.get(name) or second[name]

    def _named(self, evidence: Mapping[Evidence, object]) -> dict[str, object]:
        names = {identity: name for of_version in (self._of_older, self._of_newer) for name, identity in of_version.items()}
        return {names[identity]: value for identity, value in evidence.items()}

    def _context(self, case: Generated) -> dict[str, object]:
        read = {
            path
            for version in (self._older, self._newer)
            if version is not None
            for condition in version.conditions
            for path, _ in reads(condition.tree, version.environment.types)
        }
        return {path: attribute(path, case) for path in sorted(read) if path in ATTRIBUTES}


Evidence = tuple[str, str]  # a fact's key and the expression of its subject: what it is, whatever it is called


def _evidence(action: Mapping[str, Any]) -> dict[str, Evidence]:
    return {name: (fact["key"], fact.get("subject", "subject")) for name, fact in action.get("facts", {}).items()}


def _meanings(version: CompiledAction) -> list[tuple[str, int, str, str, Node]]:
    """Return what each rule means, whatever the layout of its condition: id, priority, effect, reason code, tree."""
    return [
        (rule.id, rule.priority, rule.effect, rule.reason_code, condition.tree)
        for rule, condition in zip(version.rules, version.conditions, strict=True)
    ]


def _around_an_edit(maker: CaseMaker, version: CompiledAction, index: int, other: CompiledAction) -> Iterator[Generated]:
    """Yield cases that an edited rule decides in its version, and that the other version may well decide otherwise.

    Those come first that the other version may approve: they tell most.
    """
    ranks = {rule.id: rank for rank, rule in enumerate(other.rules)}
    twin = ranks.get(version.rules[index].id)
    conditions: list[list[Formula]] = [[]]
    if twin is not None:
        fails = maker.formula(other, twin, False)
        approvals = [number for number, rule in enumerate(other.rules) if rule.effect == "approve" and number != twin]
        conditions = [*([fails, maker.formula(other, number, True)] for number in approvals[:APPROVALS_MAX]), [fails], []]
        overtaken = [lower for lower in range(index + 1, len(version.rules)) if ranks.get(version.rules[lower].id, twin) < twin]
        conditions.extend([maker.formula(version, lower, True)] for lower in overtaken[:OVERTAKEN_MAX])
    for also in conditions:
        witness = maker.decided_by(index, also)
        if witness.found is not None:
            yield witness.found


def _decide(version: CompiledAction | None, names: Mapping[str, Evidence], made: Generated, evidence: Mapping[Evidence, object]) -> Decided:
    """Return what a version decides on a case, as arbitration would: params first, then evidence, then the rules of both engines."""
    if version is None:
        return Decided(_REJECTED, reasons.NO_ACTIVE_POLICY, "")
    if version.violations(made.params):
        return Decided(_REJECTED, reasons.INVALID_PARAMS, "")
    facts = {name: evidence[identity] for name, identity in names.items() if identity in evidence}
    if any(not fact.optional and fact.name not in facts for fact in version.facts):
        return Decided(_REJECTED, reasons.NEED_MORE_FACTS, "")
    if any(fact.name in facts and not is_of_type(facts[fact.name], fact.value_type) for fact in version.facts):
        return Decided(_REJECTED, reasons.FACT_TYPE_MISMATCH, "")
    count = made.case.evidence_count + len(facts) - len(made.facts)
    case = made.case.with_params(version.typed_params(made.params), facts, count)
    verdict = version.evaluate(case, both=True)
    if verdict.error:
        return Decided(_REJECTED, reasons.EVALUATION_ERROR, verdict.error)
    if verdict.disagreement is not None or verdict != version.evaluate_reference(case):
        return Decided(_REJECTED, reasons.ENGINE_DISAGREEMENT, "")
    if not verdict.matched:
        return Decided(_REJECTED, reasons.NO_RULE_MATCHED, "")
    rule = verdict.matched[0]
    return Decided(_OUTCOMES[rule.effect], rule.reason_code, rule.id)
