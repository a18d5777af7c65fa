"""The differences between two versions of a rule set: edits of the document, and sample cases that the versions decide differently.

Conditions are compared by meaning and not by layout. Cases are sought where an edit can matter: cases that a changed rule decides now and
did not match before, cases that it decided and does not match now, and cases that it took over from another rule. Then follow cases at
every threshold of either version, which show the effect of changed declarations. Both engines evaluate each case in both versions, and only
a case with different decisions is shown.

A case holds what rules can read. Arbitration checks the age and the source of evidence before it asks the rules, so changes of
ages, tiers, sources and limits appear among the edits and in no case.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any, Final, NamedTuple

from gavel_rules import reason_codes
from gavel_rules.authoring.meanings import CounterLabels, ReadMeaning, detail_meanings, label_counters, read_meanings, rule_meanings
from gavel_rules.authoring.samples.attributes import attribute_name, attribute_value, is_attribute
from gavel_rules.authoring.samples.budget import Budget
from gavel_rules.authoring.samples.builder import SampleCase
from gavel_rules.authoring.samples.cases import WORK_MAX, WORK_MIN, CaseGenerator, Witness, generate_cases
from gavel_rules.authoring.samples.seeds import Seed
from gavel_rules.language.cel.syntax_tree import Constant, Node, children
from gavel_rules.language.cel.tree_queries import find_variables
from gavel_rules.language.cel.vocabulary import COUNTER_READS
from gavel_rules.language.document.canonical_form import is_same
from gavel_rules.language.document.composition import compose
from gavel_rules.language.engines.lowering import Formula
from gavel_rules.language.fact_declaration import case_value, is_case_value
from gavel_rules.language.rule_set import CompiledAction, CompiledRuleSet

THRESHOLD_CASES_MAX: Final = 200  # of one version of an action
CASES_SHOWN_MAX: Final = 500
APPROVALS_MAX: Final = 4  # approving rules of the other version that are tried against an edited rule
OVERTAKEN_MAX: Final = 16  # rules overtaken by an edited rule for which a case is sought

_OUTCOMES: Final = {"approve": "APPROVED", "reject": "REJECTED", "review": "NEEDS_HUMAN_REVIEW"}
_REJECTED: Final = _OUTCOMES["reject"]
# Keys of a document that are not compared: they differ in any two versions or decide nothing. Rules are compared one by one.
_KEYS_NOT_COMPARED: Final = ("version", "description", "rules")
_RULE_KEYS: Final = ("action", "actions", "priority", "when", "effect", "reason_code", "review", "detail", "retry_after")


class CaseDecision(NamedTuple):
    """The decision of a version on a case: outcome and reason code as in a Decision, and the rule, "" if none decides."""

    outcome: str
    reason_code: str
    rule_id: str


class CaseChange(NamedTuple):
    """A case that the versions decide differently. `context` holds what conditions read besides params and facts."""

    action: str
    params: Mapping[str, object]
    facts: Mapping[str, object]  # by declared name: the newer version's, if both have one
    context: Mapping[str, object]
    before: CaseDecision
    after: CaseDecision


class Edit(NamedTuple):
    """One difference between the documents, at `path`. A value that one of them does not have is None."""

    path: str
    before: object
    after: object


class RuleSetDiff(NamedTuple):
    """All differences between two versions, except number and description. False if there are none."""

    added: tuple[str, ...]  # rule ids
    removed: tuple[str, ...]
    changed: tuple[str, ...]
    edits: tuple[Edit, ...]
    cases: tuple[CaseChange, ...]
    not_analysed: tuple[str, ...] = ()  # ids of edited rules for which neither a differing case nor a proof was found

    def __bool__(self) -> bool:
        return any(self)


def diff_rule_sets(old: CompiledRuleSet, new: CompiledRuleSet, seeds: Sequence[Seed] = ()) -> RuleSetDiff:
    """Return the differences between two versions, which may be of different rule sets. `seeds` are known cases of either."""
    before, after = json.loads(old.canonical_json), json.loads(new.canonical_json)
    labels = label_counters(old, new)
    old_rules, new_rules = _rules(old, before, labels.old), _rules(new, after, labels.new)
    both = [rule_id for rule_id in new_rules if rule_id in old_rules]
    changed = tuple(rule_id for rule_id in both if not _is_same(old_rules[rule_id], new_rules[rule_id]))
    edits = [*_edits("", _declarations(before), _declarations(after))]
    for rule_id in changed:
        edits.extend(_rule_edits(rule_id, old_rules[rule_id], new_rules[rule_id]))
    actions = [_ActionVersions(name, old, new, _actions(before), _actions(after), labels) for name in sorted({*old.actions, *new.actions})]
    edited = [action for action in actions if action.may_differ()]
    work_max = max(2 * WORK_MAX // max(len(edited), 1), WORK_MIN)
    cases = tuple(islice(chain.from_iterable(action.case_changes(work_max, seeds) for action in edited), CASES_SHOWN_MAX))
    return RuleSetDiff(
        tuple(rule_id for rule_id in new_rules if rule_id not in old_rules),
        tuple(rule_id for rule_id in old_rules if rule_id not in new_rules),
        changed,
        tuple(edits),
        cases,
        tuple(dict.fromkeys(rule_id for action in edited for rule_id in action.not_analysed)),
    )


# Edits of the documents


class _Rule(NamedTuple):
    """A rule with its keys as written, its condition as parsed, and what its expressions mean, by key."""

    keys: Mapping[str, object]
    tree: Node
    meanings: Mapping[str, object]

    def differs(self, other: _Rule, key: str) -> bool:
        """Return whether a key differs, for an expression in more than its layout."""
        if key in self.meanings and key in other.meanings:
            return self.meanings[key] != other.meanings[key]
        return self.keys.get(key) != other.keys.get(key)


def _rules(rule_set: CompiledRuleSet, document: Mapping[str, Any], labels: Mapping[str, str]) -> dict[str, _Rule]:
    trees: dict[str, Node] = {}
    meanings: dict[str, dict[str, object]] = {}
    for action in rule_set.actions.values():
        for rule_id, *_, tree in rule_meanings(action, labels):
            trees[rule_id] = tree
            meanings[rule_id] = {"when": tree}
            if rule_id in action.retries:
                meanings[rule_id]["retry_after"] = action.retries[rule_id].meaning(labels)
            if rule_id in action.details:
                meanings[rule_id]["detail"] = detail_meanings(action.details[rule_id], labels)
    return {rule["id"]: _Rule(rule, trees[rule["id"]], meanings[rule["id"]]) for rule in document["rules"]}


def _is_same(before: _Rule, after: _Rule) -> bool:
    """Return whether two rules mean the same. Conditions are compared without layout, with variables replaced by their definitions."""
    return not any(before.differs(after, key) for key in _RULE_KEYS)


def _rule_edits(rule_id: str, before: _Rule, after: _Rule) -> Iterator[Edit]:
    for key in _RULE_KEYS:
        if before.differs(after, key):
            yield from _edits(f"rules.{rule_id}.{key}", before.keys.get(key), after.keys.get(key))
    thresholds = _thresholds(before.tree, after.tree)
    if thresholds is not None:
        yield from (Edit(f"rules.{rule_id}.threshold", _literal(one), _literal(other)) for one, other in thresholds)


def _literal(constant: Constant) -> object:
    """Return a literal as a JSON value; its text, if JSON has no such value."""
    if isinstance(constant.value, bytes):
        return repr(constant.value)
    return f"{constant.value}u" if constant.kind == "uint64" else constant.value


def _thresholds(before: Node, after: Node) -> list[tuple[Constant, Constant]] | None:
    """Return the literals in which two conditions differ; None if they differ in more than literals."""
    if isinstance(before, Constant) and isinstance(after, Constant):
        return [] if before == after else [(before, after)]
    if type(before) is not type(after) or _shape(before) != _shape(after):
        return None
    thresholds: list[tuple[Constant, Constant]] = []
    for one, other in zip(children(before), children(after), strict=True):
        below = _thresholds(one, other)
        if below is None:
            return None
        thresholds.extend(below)
    return thresholds


def _shape(node: Node) -> tuple[object, ...]:
    """Return the properties of a node, without its children."""
    names = ("name", "field_name", "test_only", "function", "variable", "second_variable", "message_name")
    return (*(getattr(node, name, None) for name in names), sum(1 for _ in children(node)))


def _actions(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the actions of a document, with what they share written out."""
    actions: Mapping[str, Any] = compose(document, lambda *_: None).data["actions"]
    return actions


def _declarations(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts of a document besides its rules. Derivations are by id, so that each is compared by itself."""
    parts = {key: value for key, value in document.items() if key not in _KEYS_NOT_COMPARED}
    if "derivations" in parts:
        parts["derivations"] = {derivation["id"]: derivation for derivation in parts["derivations"]}
    return parts


def _edits(path: str, before: Any, after: Any) -> Iterator[Edit]:
    if isinstance(before, dict) and isinstance(after, dict):
        for key in sorted({*before, *after}):
            yield from _edits(f"{path}.{key}" if path else key, before.get(key), after.get(key))
    elif not is_same(before, after):
        yield Edit(path, before, after)


# Cases that the versions decide differently

# A fact's key and the expression of its subject. It identifies evidence that versions declare under different names.
_EvidenceKey = tuple[str, str]


class _ActionVersions:
    """An action in two versions, one of which may lack it."""

    def __init__(
        self,
        name: str,
        old: CompiledRuleSet,
        new: CompiledRuleSet,
        before: Mapping[str, Any],
        after: Mapping[str, Any],
        labels: CounterLabels,
    ) -> None:
        self._name = name
        self._old = old.actions.get(name)
        self._new = new.actions.get(name)
        old_action, new_action = before.get(name, {}), after.get(name, {})
        self._old_keys, self._new_keys = _evidence_keys(old_action), _evidence_keys(new_action)
        self._old_meanings, self._new_meanings = rule_meanings(self._old, labels.old), rule_meanings(self._new, labels.new)
        self._old_reads, self._new_reads = read_meanings(self._old, labels.old), read_meanings(self._new, labels.new)
        self._same_declarations = is_same(old_action, new_action)
        self._seen: set[tuple[str, CaseDecision, CaseDecision]] = set()
        self.not_analysed: list[str] = []  # complete when `case_changes` has ended

    def may_differ(self) -> bool:
        """Return whether anything that decides was edited."""
        if self._old is None or self._new is None:
            return True
        return not self._same_declarations or self._old_meanings != self._new_meanings

    def case_changes(self, work_max: int, seeds: Sequence[Seed]) -> Iterator[CaseChange]:
        """Yield one case for each edited rule and pair of different decisions. `work_max` is in steps of a Budget."""
        if self._old is None or self._new is None:
            version = self._new or self._old
            assert version is not None  # noqa: S101  # one of the two has the action
            generator = CaseGenerator(version, budget=Budget(work_max), seeds=seeds)
            yield from self._changes("", version, generate_cases(version, len(version.rules) + 1, generator))
            return
        old, new = self._old, self._new
        of_old = CaseGenerator(old, [new], Budget(work_max // 2), seeds)
        of_new = CaseGenerator(new, [old], Budget(work_max // 2), seeds)
        # A name that reads something else in each version: conditions of both must not be searched together.
        is_ambiguous = any(self._old_reads.get(name, meaning) != meaning for name, meaning in self._new_reads.items())
        shown: set[str] = set()
        unknown: list[str] = []
        sides = (of_new, new, old, self._new_meanings, self._old_meanings), (of_old, old, new, self._old_meanings, self._new_meanings)
        for generator, version, other, meanings, unedited in sides:
            for index, meaning in enumerate(meanings):
                if meaning not in unedited:
                    witnesses = list(_cases_around_edit(generator, version, index, None if is_ambiguous else other))
                    changes = list(self._changes(meaning[0], version, (one.sample for one in witnesses if one.sample is not None)))
                    yield from changes
                    if changes:
                        shown.add(meaning[0])
                    elif is_ambiguous or any(one.sample is None and not one.impossible for one in witnesses):
                        unknown.append(meaning[0])
        for version, generator in ((new, of_new), (old, of_old)):
            for change in self._changes("", version, generate_cases(version, THRESHOLD_CASES_MAX, generator)):
                shown.update(rule_id for rule_id in unknown if _shows(change, rule_id, old, new))
                yield change
        self.not_analysed = [rule_id for rule_id in unknown if rule_id not in shown]

    def _changes(self, rule_id: str, version: CompiledAction, samples: Iterable[SampleCase]) -> Iterator[CaseChange]:
        """Yield samples on which the two versions decide differently: one for each edited rule and pair of decisions."""
        for sample in samples:
            evidence = {self._evidence_key(name, version): value for name, value in sample.facts.items()}
            own = self._new_reads if version is self._new else self._old_reads
            histories = [_translate_history(reads, sample, own) for reads in (self._old_reads, self._new_reads)]
            before = _decide(self._old, self._old_keys, sample, evidence, histories[0])
            after = _decide(self._new, self._new_keys, sample, evidence, histories[1])
            if before != after and (rule_id, before, after) not in self._seen:
                self._seen |= {(rule_id, before, after), ("", before, after)}
                yield CaseChange(self._name, sample.params, self._facts(evidence), self._context(sample, histories), before, after)

    def _evidence_key(self, name: str, version: CompiledAction) -> _EvidenceKey:
        own, other = (self._new_keys, self._old_keys) if version is self._new else (self._old_keys, self._new_keys)
        return own.get(name) or other[name]

    def _facts(self, evidence: Mapping[_EvidenceKey, object]) -> dict[str, object]:
        names = {key: name for keys in (self._old_keys, self._new_keys) for name, key in keys.items()}
        return {names[key]: value for key, value in evidence.items()}

    def _context(self, sample: SampleCase, histories: Sequence[Mapping[str, float]]) -> dict[str, object]:
        """Return what the conditions read besides params and facts, by name. `histories` has the numbers of each version's counters.

        A name that means another counter in each version has two numbers: `NAME before` and `NAME after`.
        """
        context: dict[str, object] = {}
        numbers: list[dict[str, object]] = [{}, {}]
        for version, history, of_version in zip((self._old, self._new), histories, numbers, strict=True):
            if version is None:
                continue
            for condition in version.conditions:
                for path, _ in find_variables(condition.tree, version.environment.types):
                    if path in history:
                        of_version[attribute_name(path, version.counter_reads)] = history[path]
                    elif is_attribute(path) and not path.startswith(f"{COUNTER_READS}."):
                        context[path] = attribute_value(path, sample.case)
        before, after = numbers
        for name in {**before, **after}:
            if before.get(name, after.get(name)) == after.get(name, before.get(name)):
                context[name] = before.get(name, after.get(name))
            else:
                context.update({f"{name} before": before[name], f"{name} after": after[name]})
        return dict(sorted(context.items()))


def _translate_history(reads: Mapping[str, ReadMeaning], sample: SampleCase, own: Mapping[str, ReadMeaning]) -> dict[str, float]:
    """Return the numbers of a version's `reads` in a sample, by variable. `own` are the reads of the version that the sample is of.

    A read has the number of the read in `own` with the same meaning. If `own` has none, it has the number that the search for the sample
    gave its variable, or else that of an empty group.
    """
    variables = {meaning: variable for variable, meaning in own.items()}
    numbers: dict[str, float] = {}
    for read, meaning in reads.items():
        variable = variables.get(meaning, read if read not in own else "")
        if variable in sample.case.history:
            numbers[read] = sample.case.history[variable]
        elif variable not in own:
            numbers[read] = 0
    return numbers


def _evidence_keys(action: Mapping[str, Any]) -> dict[str, _EvidenceKey]:
    return {name: (fact["key"], fact.get("subjects", fact.get("subject", "subject"))) for name, fact in action.get("facts", {}).items()}


def _shows(change: CaseChange, rule_id: str, old: CompiledAction, new: CompiledAction) -> bool:
    """Return whether an edited rule decides a case in one version, and in the other one otherwise or not at all."""
    for decision, other, version in ((change.before, change.after, new), (change.after, change.before, old)):
        if decision.rule_id != rule_id or (other.reason_code == reason_codes.EVALUATION_ERROR and other.rule_id != rule_id):
            continue
        order = [rule.id for rule in version.rules]
        # A rule below it decides only if it does not match.
        below = order[order.index(rule_id) :] if rule_id in order else order
        if other.rule_id in below or other.reason_code == reason_codes.NO_RULE_MATCHED:
            return True
    return False


def _cases_around_edit(generator: CaseGenerator, version: CompiledAction, index: int, other: CompiledAction | None) -> Iterator[Witness]:
    """Yield the results of searches for cases that an edited rule decides in its version and the other version may decide differently.

    Cases that the other version may approve come first, because such a change matters most. Without `other`, the search knows nothing of
    the conditions of the other version.
    """
    ranks = {rule.id: rank for rank, rule in enumerate(other.rules)} if other is not None else {}
    twin = ranks.get(version.rules[index].id)
    conditions: list[list[Formula]] = [[]]
    if other is not None and twin is not None:
        fails = generator.formula(other, twin, False)
        approvals = [number for number, rule in enumerate(other.rules) if rule.effect == "approve" and number != twin]
        conditions = [*([fails, generator.formula(other, number, True)] for number in approvals[:APPROVALS_MAX]), [fails], []]
        overtaken = [lower for lower in range(index + 1, len(version.rules)) if ranks.get(version.rules[lower].id, twin) < twin]
        conditions.extend([generator.formula(version, lower, True)] for lower in overtaken[:OVERTAKEN_MAX])
    for also in conditions:
        yield generator.find_decided_case(index, also)


def _decide(
    version: CompiledAction | None,
    keys: Mapping[str, _EvidenceKey],
    sample: SampleCase,
    evidence: Mapping[_EvidenceKey, object],
    history: Mapping[str, float],
) -> CaseDecision:
    """Return the decision of a version on a case, as arbitration makes it: params, then evidence, then the rules of both engines."""
    if version is None:
        return CaseDecision(_REJECTED, reason_codes.NO_ACTIVE_POLICY, "")
    if version.violations(sample.params):
        return CaseDecision(_REJECTED, reason_codes.INVALID_PARAMS, "")
    facts = {name: evidence[key] for name, key in keys.items() if key in evidence}
    if any(not fact.optional and fact.name not in facts for fact in version.facts):
        return CaseDecision(_REJECTED, reason_codes.NEED_MORE_FACTS, "")
    if any(fact.name in facts and not is_case_value(facts[fact.name], fact) for fact in version.facts):
        return CaseDecision(_REJECTED, reason_codes.FACT_TYPE_MISMATCH, "")
    count = sample.case.evidence_count + len(facts) - len(sample.facts)
    of_name = {fact.name: fact for fact in version.facts}
    facts = {name: case_value(value, of_name[name]) if name in of_name else value for name, value in facts.items()}
    case = sample.case.with_params(version.typed_params(sample.params), facts, count).with_history(history)
    verdict = version.evaluate(case, cross_check=True)
    if verdict.error:
        return CaseDecision(_REJECTED, reason_codes.EVALUATION_ERROR, verdict.error)
    if verdict.disagreement is not None or verdict != version.evaluate_reference(case):
        return CaseDecision(_REJECTED, reason_codes.ENGINE_DISAGREEMENT, "")
    if not verdict.matches:
        return CaseDecision(_REJECTED, reason_codes.NO_RULE_MATCHED, "")
    rule = verdict.matches[0]
    return CaseDecision(_OUTCOMES[rule.effect], rule.reason_code, rule.id)
