"""Checks the actions of a document: their schemas, facts, expressions and rules, and the plan of each Rete network.

A document with a valid form may still have no meaning: an expression of the wrong type, a fact whose subject depends on itself, a schema
that no value fits. Authors want all mistakes at once, so checking continues after a mistake as far as possible, even if the form of the
document is broken. An action with a mistake is left out as a whole. Nothing is evaluated here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from gavel.v1.decision_pb2 import RetryPolicy

from gavel_rules.language.cel.checker import CheckedExpression, Environment, ScopedExpression
from gavel_rules.language.cel.cost import ACTION_STEPS_MAX, INLINE_STEPS_MAX, ITERATIONS_MAX
from gavel_rules.language.cel.syntax_tree import MESSAGE_DEPTH_MAX
from gavel_rules.language.cel.tree_queries import find_variables
from gavel_rules.language.cel.vocabulary import (
    DYN,
    FACT_TYPES,
    STRING,
    Field,
    ValueType,
    compensation_scope,
    condition_scope,
    conflict_key_scope,
    derivation_scope,
    subject_scope,
    suggest_bounds,
)
from gavel_rules.language.compensation import Compensation, check_compensation
from gavel_rules.language.counters.checker import CheckedCounters, check_counters
from gavel_rules.language.counters.counter import CompiledCounter
from gavel_rules.language.counters.retry_after import FreesCall, check_retry_after
from gavel_rules.language.derivation_rules import DerivationRule
from gavel_rules.language.document.diagnostics import Messages, Path
from gavel_rules.language.document.fact_schema import FactSchema, compile_fact_schema
from gavel_rules.language.document.models import (
    ActionPart,
    DerivationPart,
    FactPart,
    ReviewPart,
    RulePart,
    RuleSetPart,
    VersionsPart,
    decides_on,
    version_of,
)
from gavel_rules.language.document.params_schema import ParamsSchema, compile_schema
from gavel_rules.language.document.schema_check import Report
from gavel_rules.language.document.schema_types import salvage_type
from gavel_rules.language.document.source import Source
from gavel_rules.language.engines.cel import GUARD_LENGTH, LIST_LENGTH_MAX
from gavel_rules.language.engines.lowering import LoweredCondition, lower
from gavel_rules.language.engines.rete import NetworkLimitError, NetworkPlan, plan_network
from gavel_rules.language.expression_checker import ExpressionChecker
from gavel_rules.language.fact_declaration import FactDeclaration
from gavel_rules.language.report_expressions import ReportExpression
from gavel_rules.language.rule import Rule
from gavel_rules.language.subject_templates import find_dependencies, find_invalid_subject, sort_by_dependency


class ExpressionCost(NamedTuple):
    """The worst cost of one evaluation of an expression, or of all searches with a pattern of a schema."""

    path: Path  # in the document
    name: str  # of the expression or pattern, for people
    steps: int
    suggestion: str  # the bounds that the document could declare, or ""


class CheckedAction(NamedTuple):
    """A valid action, with everything that compiling needs of it."""

    schema: ParamsSchema
    facts: tuple[FactDeclaration, ...]  # each after those that its subject depends on
    environment: Environment
    rules: tuple[tuple[Rule, CheckedExpression], ...]  # by falling priority
    lowered: tuple[LoweredCondition, ...]  # of `rules`, in the same order
    plan: NetworkPlan
    conflict_environment: Environment
    conflict_key: CheckedExpression
    subject_environment: Environment
    subjects: Mapping[str, CheckedExpression]  # subject templates by the declared fact's name
    derivations: tuple[DerivationRule, ...]  # by id
    score: CheckedExpression | None
    compensation: Compensation | None
    costs: tuple[ExpressionCost, ...]  # of all its expressions, and of the patterns of its schemas
    details: Mapping[str, Mapping[str, CheckedExpression]]  # what the decisions of a rule show, by the ids of rules that say it
    retries: Mapping[str, FreesCall]  # when a refusal may be tried again, by the ids of rules that say it
    reviews: Mapping[str, ReviewPart]  # who resolves the reviews of a rule, by the ids of rules that say it


class CheckedDocument(NamedTuple):
    """The valid actions and counters of a document, by name."""

    actions: Mapping[str, CheckedAction]
    counters: Mapping[str, CompiledCounter]


def check_actions(part: RuleSetPart, source: Source, messages: Messages, expressions: ExpressionChecker) -> CheckedDocument:
    """Return the valid actions and counters of a document, and record the mistakes of the others."""
    actions = getattr(part, "actions", {})
    schemas = {name: _compile_schema(action, ("actions", name, "params"), source, messages) for name, action in actions.items()}
    counters = check_counters(part, schemas, source, messages, expressions)
    checked = {name: _ActionChecker(name, part, schemas, counters, source, messages, expressions).check() for name in actions}
    expressions.finish()
    return CheckedDocument(
        {name: action for name, action in checked.items() if action is not None}, counters.compiled if counters is not None else {}
    )


def required_versions(part: ActionPart) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return (field of VersionBinding, versions accepted) of every version that an action requires, sorted by field."""
    if part.on_version_mismatch == "ignore":
        return ()
    required = ((name, getattr(part.versions, name)) for name in sorted(VersionsPart.model_fields))
    return tuple((name, tuple(versions)) for name, versions in required if versions)


class _ActionChecker:
    """Checks one action with its rules and derivations. Attributes of their models may be missing: see `read_document`."""

    def __init__(
        self,
        name: str,
        document: RuleSetPart,
        schemas: Mapping[str, ParamsSchema | None],
        counters: CheckedCounters | None,
        source: Source,
        messages: Messages,
        expressions: ExpressionChecker,
    ) -> None:
        self._counters = counters.types if counters is not None else None
        self._compiled_counters = counters.compiled if counters is not None else {}
        self._version = version_of(document)
        self._name = name
        self._path: Path = ("actions", name)
        self._part = document.actions[name]
        self._actions = document.actions
        rules: Iterable[RulePart | None] = getattr(document, "rules", ())
        self._rules = [(index, rule) for index, rule in enumerate(rules) if rule is not None and decides_on(rule, name)]
        derivations: Iterable[DerivationPart | None] = getattr(document, "derivations", ())
        self._derivations = [
            (index, part)
            for index, part in enumerate(derivations)
            if part is not None and getattr(getattr(part, "on", None), "action", None) == name
        ]
        self._schemas = schemas
        self._schema = schemas[name]
        # For a broken schema, the types that can be read are used, so that mistakes in expressions are found as well.
        self._params = self._schema.type if self._schema is not None else salvage_type(getattr(self._part, "params", None))
        self._has_broken_schema = self._schema is None
        self._costs: list[ExpressionCost] = []  # of all sound expressions
        self._source = source
        self._messages = messages
        self._expressions = expressions

    def check(self) -> CheckedAction | None:
        """Return the action, or record its mistakes and return None."""
        before = len(self._messages)
        facts = getattr(self._part, "facts", {})
        fact_schemas = {name: self._compile_fact_schema(name, fact) for name, fact in facts.items() if getattr(fact, "value", None)}
        self._has_broken_schema = self._schema is None or None in fact_schemas.values()
        fields = {name: Field(_fact_type(fact, fact_schemas.get(name)), _is_always_present(fact)) for name, fact in facts.items()}
        environment = self._environment(condition_scope(self._params, fields, self._counters))
        self._expressions.add_environment(environment)
        conflict_environment = self._environment(conflict_key_scope(self._params, self._version))
        conflict_key = self._check_expression(
            conflict_environment, getattr(self._part, "conflict_key", "subject"), (*self._path, "conflict_key"), "STRING"
        )
        rules = [
            (rule, self._check_condition(environment, getattr(rule, "when", None), ("rules", index, "when"))) for index, rule in self._rules
        ]
        self._share_variables(environment, [condition for _, condition in rules if condition is not None])
        retries = {rule.id: frees for index, rule in self._rules if (frees := self._check_retry(environment, index, rule)) is not None}
        details = {
            rule.id: shown
            for index, rule in self._rules
            if getattr(rule, "id", None) is not None and (shown := self._check_details(environment, index, rule))
        }
        # All facts are in scope, also those that depend on the fact itself: cycles have a message of their own.
        templated = [name for name, fact in facts.items() if _subject_key(fact)]
        subject_environment = self._environment(subject_scope(self._params, fields, self._version)) if templated else conflict_environment
        subjects = self._check_subjects(subject_environment, templated)
        order = self._sort_facts(subject_environment, subjects)
        score = self._check_expression(environment, getattr(self._part, "score", None), (*self._path, "score"), "DOUBLE")
        compensation = self._check_compensation()
        derivations = self._check_derivations(fields, fact_schemas)
        self._check_steps()
        if len(self._messages) > before or self._schema is None or conflict_key is None:
            return None
        checked = [(rule, condition) for rule, condition in rules if condition is not None and getattr(rule, "priority", None) is not None]
        checked.sort(key=lambda item: -item[0].priority)
        lowered = tuple(lower(condition, environment) for _, condition in checked)
        plan = self._plan_network(lowered)
        if len(self._messages) or plan is None:
            return None  # mistakes of other actions count too: the document is refused, and parts of it may be missing
        return CheckedAction(
            self._schema,
            tuple(_declare_fact(name, facts[name], fact_schemas.get(name)) for name in order),
            environment,
            tuple((Rule(rule.id, rule.priority, rule.effect, rule.reason_code or "", rule.when), condition) for rule, condition in checked),
            lowered,
            plan,
            conflict_environment,
            conflict_key,
            subject_environment,
            subjects,
            derivations,
            score,
            compensation,
            (*self._costs, *self._pattern_costs(fact_schemas)),
            details,
            retries,
            {rule.id: rule.review for rule, _ in checked if rule.review is not None},
        )

    def _environment(self, scope: Mapping[str, ValueType]) -> Environment:
        return Environment(scope, version=self._version, schema_is_broken=self._has_broken_schema)

    def _compile_fact_schema(self, name: str, fact: FactPart) -> FactSchema | None:
        """Return the compiled schema of a declared fact's values, or record its mistakes and return None."""
        path: Path = (*self._path, "facts", name, "value")
        return compile_fact_schema(fact.value, _schema_report(path, self._source, self._messages))

    def _check_expression(
        self, environment: Environment, text: str | None, path: Path, result: str, *, is_shared: bool = False
    ) -> CheckedExpression | None:
        expression = self._expressions.check(environment, text, path, result, self._name, is_shared=is_shared)
        if expression is not None:
            names = dict(find_variables(expression.tree, environment.types))
            self._costs.append(ExpressionCost(path, self._expression_name(path), expression.steps, suggest_bounds(names)))
        return expression

    def _check_condition(self, environment: Environment, text: str | None, path: Path) -> CheckedExpression | None:
        """Return the condition of a rule. In the language's second version the conditions share the values of their variables."""
        return self._check_expression(environment, text, path, "BOOL", is_shared=self._version > 1)

    def _share_variables(self, environment: Environment, conditions: Sequence[CheckedExpression]) -> None:
        """Charge each shared variable once, or share none where the conditions may not be evaluated together.

        They are not if they are too long for one list, if their macros together may reach the limit of iterations, or if their variables
        are too many to be bound around them. Guards are parts of conditions, so the list may be twice as long and visit twice as many
        elements.
        """
        elements = sum(condition.elements for condition in conditions)
        length = sum(len(condition.source) + GUARD_LENGTH for condition in conditions)
        steps = sum(condition.steps for condition in conditions)
        if 2 * elements > ITERATIONS_MAX or 2 * length > LIST_LENGTH_MAX or steps > INLINE_STEPS_MAX:
            environment.shared.clear()
        # Each shared value is bound around the list, and the test of an outcome (`sharing`) has two levels.
        levels = len(environment.shared) + 2
        if 2 * levels + max((condition.depth for condition in conditions), default=0) > MESSAGE_DEPTH_MAX:
            environment.shared.clear()
        if not environment.shared:
            return
        of_conditions = {("rules", index, "when") for index, _ in self._rules}
        other_costs = [cost for cost in self._costs if cost.path not in of_conditions]
        names = {cost.path: cost for cost in self._costs}
        self._costs = other_costs
        for path, condition in zip([path for path in names if path in of_conditions], conditions, strict=True):
            self._costs.append(names[path]._replace(steps=condition.shared_steps))
        for value in environment.shared.values():
            variables = dict(find_variables(value.tree, environment.types))
            self._costs.append(ExpressionCost(("variables", value.name), f"variable {value.name}", value.steps, suggest_bounds(variables)))

    def _check_retry(self, environment: Environment, index: int, rule: RulePart) -> FreesCall | None:
        """Return when a rule's refusal may be tried again, if it says so and is sound."""
        text = getattr(rule, "retry_after", None)
        if text is None:
            return None
        path: Path = ("rules", index, "retry_after")
        if getattr(rule, "effect", "reject") != "reject":
            message = "only a refusal can be tried again"
            self._messages.add(self._source.locate_key(path), "unknown-key", message, "remove it, or set it on a rule with effect: reject")
            return None

        def report(offset: int, code: str, message: str, hint: str) -> None:
            self._messages.add(self._source.locate_within(path, offset), code, message, hint)

        def check(part: str, result: str) -> CheckedExpression | None:
            return self._check_expression(environment, part, path, result)

        return check_retry_after(environment, text, self._compiled_counters, check, report)

    def _check_details(self, environment: Environment, index: int, rule: RulePart) -> dict[str, CheckedExpression]:
        """Return what the decisions of a rule show, if the rule says it and is sound."""
        texts = getattr(rule, "detail", {})
        path: Path = ("rules", index, "detail")
        checked = {name: self._check_expression(environment, text, (*path, name), "DETAIL") for name, text in texts.items()}
        return {name: expression for name, expression in checked.items() if expression is not None}

    def _expression_name(self, path: Path) -> str:
        parts: Mapping[int, object] = dict(self._rules if path[0] == "rules" else self._derivations)
        if path[0] == "actions":
            return ".".join(str(part) for part in path[2:])
        return f"{str(path[0]).removesuffix('s')} {getattr(parts.get(int(path[1])), 'id', path[1])}"

    def _check_subjects(self, environment: Environment, names: Iterable[str]) -> dict[str, CheckedExpression]:
        """Return the sound subject templates of these facts, by name."""
        subjects = {}
        for name in names:
            fact = self._part.facts[name]
            key = _subject_key(fact)
            path: Path = (*self._path, "facts", name, key)
            subject = self._check_expression(environment, getattr(fact, key), path, "STRINGS" if key == "subjects" else "STRING")
            if subject is None:
                continue
            subjects[name] = subject
            self._check_literal_subject(environment, subject, path)
        return subjects

    def _check_literal_subject(
        self, environment: Environment, subject: CheckedExpression, path: Path, *, is_recorded: bool = False
    ) -> None:
        """Record a subject template of literals alone that is not a valid subject."""
        invalid = find_invalid_subject(environment, subject, is_recorded=is_recorded)
        if invalid is not None:
            hint = 'write "type/id" with a type of a-z 0-9 _ - and an id, e.g. "customer/7"'
            message = f"{invalid!r} is not a valid subject, so no fact can have it"
            self._messages.add(self._source.locate(path), "not-a-subject", message, hint)

    def _sort_facts(self, environment: Environment, subjects: Mapping[str, CheckedExpression]) -> list[str]:
        """Return the declared facts, each after those that its subject depends on; record subjects that depend on themselves."""
        dependencies = {name: find_dependencies(environment, subject) for name, subject in subjects.items()}
        order, circular = sort_by_dependency(sorted(getattr(self._part, "facts", {})), dependencies)
        for name in circular:
            place = self._source.locate((*self._path, "facts", name, _subject_key(self._part.facts[name])))
            names = ", ".join(f"facts.{dependency}" for dependency in dependencies[name])
            message = f"the subject of facts.{name} depends on itself: it reads {names}"
            self._messages.add(place, "subject-cycle", message, "read only facts whose subject does not depend on this one")
        return order

    def _check_compensation(self) -> Compensation | None:
        """Return the compensation that the action declares, if it is sound."""
        compensation = getattr(self._part, "compensation", None)
        if compensation is None:
            return None
        path: Path = (*self._path, "compensation")
        environment = self._environment(compensation_scope(self._params))
        texts = getattr(compensation, "params", {})
        checked = {name: self._check_expression(environment, text, (*path, "params", name), "") for name, text in texts.items()}
        action = getattr(compensation, "action", "")

        def report(name: str, code: str, message: str, suggestion: str) -> None:
            place = self._source.locate_key((*path, "params", name)) if name else self._source.locate_key(path)
            self._messages.add(place, code, message, suggestion)

        sound = {name: expression for name, expression in checked.items() if expression is not None}
        if len(sound) == len(checked):
            check_compensation(action, sound, self._schemas.get(action), report)
        if self._schema is None or len(self._messages):
            return None
        expressions = {
            name: ReportExpression(ScopedExpression(environment, expression), self._schema) for name, expression in sound.items()
        }
        # The compensating action's own retry policy where this document declares that action, otherwise this action's.
        retry = self._actions.get(action, self._part).retry
        return Compensation(action, expressions, self._schemas.get(action), RetryPolicy(**retry.model_dump()))

    def _check_derivations(self, fields: Mapping[str, Field], fact_schemas: Mapping[str, FactSchema | None]) -> tuple[DerivationRule, ...]:
        """Return the sound derivations from executions of the action, sorted by id. `fields` are the action's facts."""
        if not self._derivations:
            return ()
        environment = self._environment(derivation_scope(self._params, fields, self._counters))
        rules = []
        for index, part in self._derivations:
            path: Path = ("derivations", index)
            value = self._check_expression(environment, getattr(part, "value", None), (*path, "value"), "SCALAR")
            subject = self._check_expression(environment, getattr(part, "subject", None), (*path, "subject"), "STRING")
            if subject is not None:
                self._check_literal_subject(environment, subject, (*path, "subject"), is_recorded=True)
            if value is not None and self._schema is not None and not len(self._messages):
                facts = {name: _declare_fact(name, fact, fact_schemas.get(name)) for name, fact in self._part.facts.items()}
                rules.append(DerivationRule(part, environment, value, subject, self._schema, facts, self._compiled_counters))
        return tuple(sorted(rules, key=lambda rule: rule.id))

    def _check_steps(self) -> None:
        """Record an action whose expressions together may take too long: one decision evaluates them all."""
        steps = sum(cost.steps for cost in self._costs)
        if steps > ACTION_STEPS_MAX:
            message = f"evaluating all expressions of {self._name} may take {steps:,} steps; the limit is {ACTION_STEPS_MAX:,}"
            hint = "declare maxItems and maxLength in its params schema, or use costly expressions in fewer rules"
            self._messages.add(self._source.locate_key(self._path), "too-costly", message, hint)

    def _pattern_costs(self, fact_schemas: Mapping[str, FactSchema | None]) -> Iterator[ExpressionCost]:
        """Yield the costs of the patterns of schemas. They count for deployments alone: logs may hold documents with costlier ones."""
        if self._schema is not None:
            for path, steps in self._schema.pattern_costs:
                yield ExpressionCost((*self._path, "params", *path), "a pattern of params", steps, _PATTERN_SUGGESTION)
        for name, schema in fact_schemas.items():
            values = self._part.facts[name].max or 1  # of a fact of many subjects
            for path, steps in schema.pattern_costs if schema is not None else ():
                yield ExpressionCost(
                    (*self._path, "facts", name, "value", *path), f"a pattern of facts.{name}", values * steps, _PATTERN_SUGGESTION
                )

    def _plan_network(self, lowered: tuple[LoweredCondition, ...]) -> NetworkPlan | None:
        """Return the network of the action's rules; record rules that do not fit into one."""
        try:
            return plan_network([condition.formula for condition in lowered])
        except NetworkLimitError as error:
            message = f"the rules of {self._name} are too many or too complex: {error}"
            self._messages.add(self._source.locate_key(self._path), "too-complex", message, "")
            return None


_PATTERN_SUGGESTION: Final = "declare maxLength beside the pattern and maxItems or maxProperties around it, or simplify the pattern"


def _compile_schema(action: ActionPart, path: Path, source: Source, messages: Messages) -> ParamsSchema | None:
    params = getattr(action, "params", None)
    if params is None:
        return None  # recorded with the document's form

    schema = compile_schema(params, _schema_report(path, source, messages))
    return None if any(broken[: len(path)] == path for broken in source.broken_paths) else schema


def _schema_report(path: Path, source: Source, messages: Messages) -> Report:
    """Return what records the mistakes of the schema at a path of the document."""

    def report(part: Path, code: str, message: str, suggestion: str) -> None:
        place = source.locate_key((*path, *part)) if part else source.locate(path)
        if (*path, *part) not in source.broken_paths:
            messages.add(place, code, message, suggestion)

    return report


def _declare_fact(name: str, part: FactPart, schema: FactSchema | None) -> FactDeclaration:
    return FactDeclaration(
        name,
        part.key,
        part.type or "",
        part.min_trust,
        part.max_age_ms,
        frozenset(part.sources),
        part.optional,
        part.subject or "",
        part.max_length or 0,
        schema,
        part.subjects or "",
        part.max or 0,
    )


def _subject_key(part: FactPart) -> str:
    """Return the key with a fact's subject template: "subject", "subjects", or "" if it has none. Attributes may be missing."""
    return next((key for key in ("subjects", "subject") if getattr(part, key, None) is not None), "")


def _is_always_present(part: FactPart) -> bool:
    """Report whether rules always see the fact. A list of facts of many subjects is there also if the facts are not."""
    return not getattr(part, "optional", False) or getattr(part, "subjects", None) is not None


def _fact_type(part: FactPart, schema: FactSchema | None) -> ValueType:
    """Return the type of a fact's values. Attributes of the part may be missing: see `read_document`."""
    if getattr(part, "subjects", None) is not None:
        one = _value_type(part, schema)
        return ValueType("list", one, size_max=getattr(part, "max", None))
    return _value_type(part, schema)


def _value_type(part: FactPart, schema: FactSchema | None) -> ValueType:
    if schema is not None:
        return schema.type
    type_ = FACT_TYPES.get(getattr(part, "type", ""), DYN)
    length_max = getattr(part, "max_length", None)
    return replace(type_, size_max=length_max) if type_ is STRING and isinstance(length_max, int) else type_
