"""The runner of rule tests: every case goes through the real core, and what comes out is compared with what must.

A suite is first held against its rule set: what that does not know is named, and what a case leaves to the declarations is
filled in. Then each case is played on a bus of its own (`case_bus`) and compared (`expectations`). Nothing here decides.

Pure: the same suite and rule set always give the same results.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import Final, NamedTuple

from gavel.v1.arbitration_service_pb2 import RuleExplanation
from gavel.v1.decision_pb2 import Decision, Outcome
from gavel.v1.envelope_pb2 import Envelope

from gavel_rules.authoring.case_bus import CarriedOut, CaseBus, Evidence
from gavel_rules.authoring.expectations import CONSEQUENCES, Difference, differences
from gavel_rules.authoring.suite import Suite, SuiteCase, mistaken
from gavel_rules.authoring.suite_parts import FactCase
from gavel_rules.errors import CaseError
from gavel_rules.language.ruleset import CompiledAction, CompiledRuleSet, FactDeclaration
from gavel_rules.language.source import Path
from gavel_rules.language.suggestions import suggestion

SOURCE_DEFAULT: Final = "test-source"


class CaseResult(NamedTuple):
    """What a case came to. It passed if there are no differences."""

    case: SuiteCase
    line: int  # of the case in the suite
    column: int
    action: str
    proposal: Envelope
    decision: Decision
    carried_out: CarriedOut | None  # None: the case says nothing of it, or nothing was approved
    differences: tuple[Difference, ...]
    explanations: tuple[RuleExplanation, ...]  # by falling priority; none if its params fit no schema, or nobody asked

    @property
    def passed(self) -> bool:
        """Whether everything came out as expected."""
        return not self.differences

    @property
    def decided_otherwise(self) -> bool:
        """Whether the decision itself differs, and not only what followed from it."""
        return any(one.what not in CONSEQUENCES for one in self.differences)


def run_cases(suite: Suite, rule_set: CompiledRuleSet, *, explained: bool = True) -> Iterator[CaseResult]:
    """Yield what each case of a suite comes to, in their order, both engines asked.

    DocumentError: the suite does not fit the rule set, with every mistake. RefusedError: the rule set cannot be deployed. With
    `explained`, each result carries how every rule came out; without, running is faster.
    """
    planned = _planned(suite, rule_set)
    bus = CaseBus(rule_set)
    for case, facts, action in planned:
        played = bus.play(case, facts, action, explained=explained)
        line, column = suite.source.place(case.path)
        found = [
            Difference(
                f"earlier.{index}", "APPROVED, to be carried out", f"{Outcome.Name(one.outcome).removeprefix('OUTCOME_')} {one.reason_code}"
            )
            for index, one in played.not_approved
        ]
        found += differences(case.part.expect, played.decision, played.carried_out)
        yield CaseResult(
            case, line, column, action.action_type, played.proposal, played.decision, played.carried_out, tuple(found), played.explanations
        )


def check_suite(suite: Suite, rule_set: CompiledRuleSet) -> None:
    """Raise what `run_cases` would raise before its first case: the suite fits the rule set, which can be deployed."""
    _planned(suite, rule_set)
    CaseBus(rule_set)


Mistake = tuple[Path, str, str, str]  # where in the suite, code, message, suggestion
_Planned = tuple[SuiteCase, tuple[Evidence, ...], CompiledAction]


def _planned(suite: Suite, rule_set: CompiledRuleSet) -> list[_Planned]:
    """Return the cases with what the rule set makes of them; DocumentError with everything that it does not know."""
    mistakes: list[Mistake] = []
    planned: list[_Planned] = []
    for case in suite.cases:
        part = case.part
        if part.action is None and len(rule_set.actions) > 1:
            mistakes.append((case.path, "missing-key", "the key action is missing", f"say which: {', '.join(rule_set.actions)}"))
            continue
        named = part.action if part.action is not None else next(iter(rule_set.actions))
        action = rule_set.actions.get(named)
        if action is None:
            mistakes.append(
                (
                    case.origin(("action",)),
                    "undeclared-action",
                    f"the rule set does not govern {named}",
                    suggestion(named, sorted(rule_set.actions), len(mistakes)),
                )
            )
            continue
        facts = []
        for name, fact in part.facts.items():
            try:
                evidence = _evidence(case, name, fact, action, rule_set)
            except LookupError:
                hint = suggestion(name, [declared.name for declared in action.facts], len(mistakes)) or "give it a key"
                mistakes.append((case.origin(("facts", name)), "unknown-name", f"{named} declares no fact {name}", hint))
                continue
            if evidence is not None:
                facts.append(evidence)
        mistakes.extend(_mistakes_of_execution(case, action, rule_set))
        planned.append((_with_own_params(case, action, rule_set), tuple(facts), action))
    if mistakes:
        raise mistaken(suite.source, mistakes)
    return planned


def _mistakes_of_execution(case: SuiteCase, action: CompiledAction, rule_set: CompiledRuleSet) -> Iterator[Mistake]:
    """Yield what a case says of executions that its rule set does not allow, and facts that nothing derives."""
    part = case.part
    if part.execution is not None:
        yield from _too_many_attempts(case, ("execution", "attempt"), part.execution.attempt, action)
    for index, earlier in enumerate(part.earlier):
        if earlier.execution is None:
            continue
        path: Path = ("earlier", index, "execution")
        before = action if earlier.action is None else rule_set.actions.get(earlier.action)
        if before is None:
            continue  # not governed: its proposal is refused, which the run will say
        yield from _too_many_attempts(case, (*path, "attempt"), earlier.execution.attempt, before)
        if before.contest_window_ms:
            message = f"{before.action_type} has a contest_window_ms: nothing is decided yet when this case proposes"
            yield case.origin(path), "not-carried-out", message, "take execution away"
    keys = sorted({rule.key for rule in rule_set.derivations if rule.action_type == action.action_type})
    for index, row in enumerate(part.expect.derived or ()):
        if row.key not in keys:
            message = f"no derivation of {action.action_type} gives {row.key}"
            yield case.origin(("expect", "derived", index, "key")), "unknown-name", message, suggestion(row.key, keys)


def _too_many_attempts(case: SuiteCase, path: Path, attempt: int, action: CompiledAction) -> Iterator[Mistake]:
    most = action.retry.max_attempts
    if attempt > most:
        yield case.origin(path), "out-of-range", f"{action.action_type} allows {most} attempts", "see retry.max_attempts in the rule set"


def _with_own_params(case: SuiteCase, action: CompiledAction, rule_set: CompiledRuleSet) -> SuiteCase:
    """Return the case without the default params that only other actions declare, here and in its earlier proposals."""
    part = case.part
    declared = {action_type: other.params_schema.get("properties", {}) for action_type, other in rule_set.actions.items()}
    everywhere = {name for names in declared.values() for name in names}

    def own(params: dict[str, object], action_type: str, said: Container[str]) -> dict[str, object]:
        foreign = everywhere.difference(declared.get(action_type, everywhere))
        return {name: value for name, value in params.items() if name not in foreign or name in said}

    earlier = []
    for index, one in enumerate(part.earlier):
        said = {name for name in one.params if ("earlier", index, "params", name) in case.origins}
        earlier.append(one.model_copy(update={"params": own(one.params, one.action or action.action_type, said)}))
    said = {name for name in part.params if case.says(("params", name))}
    return case._replace(part=part.model_copy(update={"params": own(part.params, action.action_type, said), "earlier": earlier}))


def _evidence(case: SuiteCase, name: str, fact: FactCase, action: CompiledAction, rule_set: CompiledRuleSet) -> Evidence | None:
    """Return a fact with what its declaration adds; None for a default that only other actions declare. LookupError: nobody does."""
    declared = _declaration(name, fact, action)
    if declared is None and fact.key is None:
        if not case.says(("facts", name)) and any(_declaration(name, fact, other) for other in rule_set.actions.values()):
            return None
        raise LookupError(name)
    return Evidence(
        name=name,
        key=fact.key or (declared.key if declared else ""),
        subject=fact.subject or _subject(case, declared, action),
        source=fact.source or (min(declared.sources) if declared and declared.sources else SOURCE_DEFAULT),
        tier=fact.tier or (declared.min_trust if declared else 1),
        part=fact,
    )


def _declaration(name: str, fact: FactCase, action: CompiledAction) -> FactDeclaration | None:
    """Return the declaration that a fact of a case stands for: that of its name, else the first of its key."""
    of_name = (declared for declared in action.facts if declared.name == name)
    of_key = (declared for declared in action.facts if declared.key == fact.key)
    return next(of_name, None) or next(of_key, None)


def _subject(case: SuiteCase, declared: FactDeclaration | None, action: CompiledAction) -> str:
    """Return whom the declaration asks about, by the case's facts as they stand; where that names nobody, the case's subject."""
    part = case.part
    if declared is None or not declared.subject or action.violations(part.params):
        return part.subject
    facts = {name: fact.value for name, fact in part.facts.items() if not fact.retracted}
    try:
        named = action.subject_templates[declared.subject].subject(action.typed_params(part.params), facts, part.subject)
    except CaseError:
        named = None  # a fact of another type than declared, which is what the case is about
    return named or part.subject
