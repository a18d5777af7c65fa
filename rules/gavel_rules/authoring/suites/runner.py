"""The runner of test suites: every case goes through the real core, and its result is compared with what it expects.

A suite is first resolved against its rule set: unknown names are reported, and what a case leaves to the declarations is filled
in. Then each case runs on a bus of its own (`case_bus`) and is compared (`expectations`).

The same suite and rule set always give the same results.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from typing import Final, NamedTuple

from gavel.v1.arbitration_service_pb2 import RuleExplanation
from gavel.v1.decision_pb2 import Decision
from gavel.v1.envelope_pb2 import Envelope

from gavel_rules import reason_codes
from gavel_rules.authoring.suites.case_bus import CaseBus, CaseBusError, CaseEvidence, CaseRun, Consequences, EarlierRun
from gavel_rules.authoring.suites.expectations import CONSEQUENCE_PARTS, Difference, compare
from gavel_rules.authoring.suites.models import ExpectCase, FactCase
from gavel_rules.authoring.suites.reader import Mistake, suite_error
from gavel_rules.authoring.suites.suite import Suite, SuiteCase
from gavel_rules.errors import CaseError
from gavel_rules.language.document.diagnostics import Path
from gavel_rules.language.engines.case import Case, Proposer
from gavel_rules.language.rule_set import CompiledAction, CompiledRuleSet, FactDeclaration
from gavel_rules.text import suggestion

SOURCE_DEFAULT: Final = "test-source"

# Reason codes of decisions for which the rules were evaluated although none matched.
_RULES_EVALUATED: Final = frozenset(reason_codes.codes_of_stage(16))


class CaseResult(NamedTuple):
    """The result of a case. It passed if there are no differences.

    A case that cannot be run has an `error`, one difference, and an empty proposal and decision.
    """

    case: SuiteCase
    line: int  # of the case in the suite
    column: int
    action: str
    proposal: Envelope
    decision: Decision
    consequences: Consequences | None  # None if the case has no execution or the proposal was not approved
    earlier: tuple[EarlierRun, ...]
    differences: tuple[Difference, ...]
    explanations: tuple[RuleExplanation, ...]  # by falling priority; () if not requested or if the params are invalid
    cases: tuple[tuple[CompiledAction, Case], ...]  # what the rules of each governing rule set read; () likewise
    error: str = ""  # why the case cannot be run

    @property
    def passed(self) -> bool:
        """Whether everything is as expected."""
        return not self.differences

    @property
    def rules_evaluated(self) -> bool:
        """Whether the decision reached the rules. A refusal of an earlier stage does not."""
        codes = {self.decision.reason_code, *(warning.code for warning in self.decision.warnings)}
        return bool(self.decision.rule_matches or codes & _RULES_EVALUATED)

    @property
    def decision_differs(self) -> bool:
        """Whether the decision itself differs, and not only its consequences."""
        return any(one.what not in CONSEQUENCE_PARTS for one in self.differences)


def run_cases(
    suite: Suite, rule_set: CompiledRuleSet, others: Sequence[CompiledRuleSet] = (), *, explain: bool = True
) -> Iterator[CaseResult]:
    """Yield the result of each case, in order, evaluated by both engines. With `explain`, results carry explanations and take longer.

    `others` are in force too. Raises DocumentError with every mistake if the suite does not fit the rule sets, and CaseBusError if the core
    rejects one of them.
    """
    cases = resolve_cases(suite, rule_set, others)
    bus = CaseBus(rule_set, others)
    for case, facts, action in cases:
        line, column = suite.source.locate(case.path)
        try:
            run = bus.run(case, facts, action, explain=explain)
        except CaseBusError as error:
            difference = Difference("decision", "one", f"none: {error}")
            yield CaseResult(case, line, column, action.action_type, Envelope(), Decision(), None, (), (difference,), (), (), str(error))
            continue
        yield CaseResult(
            case=case,
            line=line,
            column=column,
            action=action.action_type,
            proposal=run.proposal,
            decision=run.decision,
            consequences=run.consequences,
            earlier=run.earlier,
            differences=tuple(_compare_run(case, run)),
            explanations=run.explanations,
            cases=run.cases,
        )


def check_suite(suite: Suite, rule_set: CompiledRuleSet, others: Sequence[CompiledRuleSet] = ()) -> None:
    """Raise what `run_cases` would raise before its first case."""
    resolve_cases(suite, rule_set, others)
    CaseBus(rule_set, others)


def _compare_run(case: SuiteCase, run: CaseRun) -> Iterator[Difference]:
    """Yield the differences of the earlier proposals, as "earlier.0.outcome", and then those of the case's own."""
    for index, (earlier, earlier_run) in enumerate(zip(case.part.earlier, run.earlier, strict=True)):
        if earlier_run.decision is not None:
            for one in compare(earlier.expect, earlier_run.decision, earlier_run.consequences):
                yield one._replace(what=f"earlier.{index}.{one.what}")
    yield from compare(case.part.expect, run.decision, run.consequences)


ResolvedCase = tuple[SuiteCase, tuple[CaseEvidence, ...], CompiledAction]


def resolve_cases(suite: Suite, rule_set: CompiledRuleSet, others: Sequence[CompiledRuleSet] = ()) -> list[ResolvedCase]:
    """Return the cases with their actions and evidence. Raises DocumentError with every name that the rule set does not declare."""
    mistakes: list[Mistake] = []
    cases: list[ResolvedCase] = []
    for inherited in suite.cases:
        case, part = inherited, inherited.part
        if part.action is None and len(rule_set.actions) > 1:
            mistakes.append((case.path, "missing-key", "the key action is missing", f"name one of: {', '.join(rule_set.actions)}"))
            continue
        action_type = part.action if part.action is not None else next(iter(rule_set.actions))
        action = rule_set.actions.get(action_type)
        if action is None:
            hint = suggestion(action_type, sorted(rule_set.actions), len(mistakes))
            mistakes.append((case.origin(("action",)), "undeclared-action", f"the rule set does not govern {action_type}", hint))
            continue
        case = _without_foreign_params(case, action, rule_set)
        facts = []
        for name, fact in part.facts.items():
            try:
                evidence = _evidence(case, name, fact, action, (rule_set, *others))
            except LookupError:
                hint = suggestion(name, [declared.name for declared in action.facts], len(mistakes)) or "give it a key"
                mistakes.append((case.origin(("facts", name)), "unknown-name", f"{action_type} declares no fact {name}", hint))
                continue
            if evidence is not None:
                facts.append(evidence)
        mistakes.extend(_execution_mistakes(case, action, rule_set, others))
        mistakes.extend(_counter_mistakes(case, (rule_set, *others)))
        cases.append((case, tuple(facts), action))
    if mistakes:
        raise suite_error(suite.source, mistakes)
    return cases


def _execution_mistakes(
    case: SuiteCase, action: CompiledAction, rule_set: CompiledRuleSet, others: Sequence[CompiledRuleSet]
) -> Iterator[Mistake]:
    """Yield executions that the rule sets do not allow, and expected facts that no derivation gives."""
    part = case.part
    if part.execution is not None:
        yield from _attempt_mistakes(case, ("execution", "attempt"), part.execution.attempt, action)
    for index, earlier in enumerate(part.earlier):
        path: Path = ("earlier", index)
        action_type = earlier.action or action.action_type
        earlier_action = next((one.actions[action_type] for one in (rule_set, *others) if action_type in one.actions), None)
        if earlier_action is None:
            if earlier.expect.outcome == "APPROVED":
                governed = sorted({name for one in (rule_set, *others) for name in one.actions})
                message = f"no rule set governs {action_type}, so it is not approved"
                yield case.origin((*path, "action")), "undeclared-action", message, suggestion(action_type, governed)
        elif earlier.execution is not None:
            yield from _attempt_mistakes(case, (*path, "execution", "attempt"), earlier.execution.attempt, earlier_action)
    derivations = [rule for one in (rule_set, *others) for rule in one.derivations]
    keys = sorted({rule.key for rule in derivations if rule.action_type == action.action_type})
    for index, row in enumerate(part.expect.derived or ()):
        if row.key not in keys:
            message = f"no derivation of {action.action_type} gives {row.key}"
            yield case.origin(("expect", "derived", index, "key")), "unknown-name", message, suggestion(row.key, keys)


def _counter_mistakes(case: SuiteCase, rule_sets: Sequence[CompiledRuleSet]) -> Iterator[Mistake]:
    """Yield expected counters that no rule set declares, of the case and of its earlier proposals."""
    declared = sorted({name for rule_set in rule_sets for name in rule_set.counters})
    part = case.part
    places: list[tuple[Path, ExpectCase]] = [
        ((), part.expect),
        *((("earlier", index), one.expect) for index, one in enumerate(part.earlier)),
    ]
    for path, expect in places:
        for index, row in enumerate(expect.counters or ()):
            if row.counter not in declared:
                hint = suggestion(row.counter, declared) or "declare it, or remove this row"
                message = f"no rule set declares a counter {row.counter}"
                yield case.origin((*path, "expect", "counters", index, "counter")), "unknown-name", message, hint


def _attempt_mistakes(case: SuiteCase, path: Path, attempt: int, action: CompiledAction) -> Iterator[Mistake]:
    most = action.retry.max_attempts
    if attempt > most:
        yield (
            case.origin(path),
            "out-of-range",
            f"{action.action_type} allows at most {most} attempts",
            "see retry.max_attempts in the rule set",
        )


def _without_foreign_params(case: SuiteCase, action: CompiledAction, rule_set: CompiledRuleSet) -> SuiteCase:
    """Return the case without inherited params that only other actions declare, here and in its earlier proposals."""
    part = case.part
    declared = {action_type: other.params_schema.get("properties", {}) for action_type, other in rule_set.actions.items()}
    all_declared = {name for names in declared.values() for name in names}

    def select(params: dict[str, object], action_type: str, own: Container[str]) -> dict[str, object]:
        foreign = all_declared.difference(declared.get(action_type, all_declared))
        return {name: value for name, value in params.items() if name not in foreign or name in own}

    earlier = []
    for index, one in enumerate(part.earlier):
        own = {name for name in one.params if ("earlier", index, "params", name) in case.origins}
        earlier.append(one.model_copy(update={"params": select(one.params, one.action or action.action_type, own)}))
    own = {name for name in part.params if case.sets(("params", name))}
    return case._replace(part=part.model_copy(update={"params": select(part.params, action.action_type, own), "earlier": earlier}))


def _evidence(
    case: SuiteCase, name: str, fact: FactCase, action: CompiledAction, rule_sets: Sequence[CompiledRuleSet]
) -> CaseEvidence | None:
    """Return a fact completed from its declaration; None if it is inherited and only other actions declare it.

    Raises LookupError if no action declares it and it has no key.
    """
    declared = None
    # Rule sets that govern the action together: the first one that declares the fact gives its key and subject.
    for rule_set in rule_sets:
        governing = rule_set.actions.get(action.action_type)
        declared = _declaration(name, fact, governing) if governing is not None else None
        if governing is not None and declared is not None:
            action = governing
            break
    if declared is None and fact.key is None:
        others = [other for rule_set in rule_sets for other in rule_set.actions.values()]
        if not case.sets(("facts", name)) and any(_declaration(name, fact, other) for other in others):
            return None
        raise LookupError(name)
    return CaseEvidence(
        name=name,
        key=fact.key or (declared.key if declared else ""),
        subject=fact.subject or _subject(case, declared, action),
        source=fact.source or (min(declared.sources) if declared and declared.sources else SOURCE_DEFAULT),
        tier=fact.tier or (declared.min_trust if declared else 1),
        part=fact,
    )


def _declaration(name: str, fact: FactCase, action: CompiledAction) -> FactDeclaration | None:
    """Return the declaration of a fact of a case: that of its name, or else the first of its key."""
    of_name = (declared for declared in action.facts if declared.name == name)
    of_key = (declared for declared in action.facts if declared.key == fact.key)
    return next(of_name, None) or next(of_key, None)


def _subject(case: SuiteCase, declared: FactDeclaration | None, action: CompiledAction) -> str:
    """Return the subject that a declaration asks about, given the facts of the case; the case's subject if it gives none."""
    part = case.part
    if declared is None or not declared.subject or action.violations(part.params):
        return part.subject
    facts = {name: fact.value for name, fact in part.facts.items() if not fact.retracted}
    producer = part.producer
    groups = tuple(sorted({*producer.groups}))
    try:
        subject = action.subject_templates[declared.subject].subject(
            action.typed_params(part.params), facts, part.subject, Proposer(producer.type, producer.id, producer.version, groups)
        )
    except CaseError:
        return part.subject  # a fact of another type than declared: the case tests this mistake
    return subject or part.subject
