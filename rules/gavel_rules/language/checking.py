"""Everything that compiling finds out about an action: its conditions checked, its facts in order, its network planned.

A document whose form is sound, or whose sound parts could be saved, may still mean nothing: an expression of a wrong type, a
fact whose subject rests on itself, a schema that no value fits. Each is reported where it stands, and checking goes on as far as
it can: an author wants all mistakes at once. What comes out is complete or nothing. Nothing is evaluated here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from gavel.v1.decision_pb2 import RetryPolicy

from gavel_rules.language.compensation import Compensation, check_compensation
from gavel_rules.language.conditions import Condition, Environment, Expression
from gavel_rules.language.cost import ACTION_STEPS_MAX
from gavel_rules.language.declarations import FactDeclaration, Rule
from gavel_rules.language.derivation_rules import DerivationRule
from gavel_rules.language.expressions import Expressions
from gavel_rules.language.lowering import Lowered, lower
from gavel_rules.language.network import LimitError, NetworkPlan, plan
from gavel_rules.language.parts import ActionPart, DerivationPart, FactPart, RulePart, RuleSetPart, VersionsPart
from gavel_rules.language.reading import presences, reads
from gavel_rules.language.report_expressions import ReportExpression
from gavel_rules.language.schema import ParamsSchema, compile_schema, salvaged_type
from gavel_rules.language.source import DocumentMessage, Messages, Path, Source
from gavel_rules.language.subjects import in_order, needs_of, unfit
from gavel_rules.language.vocabulary import (
    BOOL,
    DOUBLE,
    DYN,
    INT,
    STRING,
    Field,
    ValueType,
    compensation_scope,
    condition_scope,
    conflict_key_scope,
    derivation_scope,
    subject_scope,
)

_FACT_TYPES: Final[Mapping[str, ValueType]] = {"string": STRING, "number": DOUBLE, "integer": INT, "boolean": BOOL}


class CheckedAction(NamedTuple):
    """Everything about an action that compiling finds out."""

    schema: ParamsSchema
    facts: tuple[FactDeclaration, ...]
    environment: Environment
    rules: tuple[tuple[Rule, Condition], ...]  # by falling priority
    lowered: tuple[Lowered, ...]
    plan: NetworkPlan
    conflict_environment: Environment
    conflict_key: Condition
    subject_environment: Environment
    subjects: Mapping[str, Condition]  # templates by the declared fact's name
    derivations: tuple[DerivationRule, ...]  # by id
    score: Condition | None
    compensation: Compensation | None


def check_actions(part: RuleSetPart, source: Source, messages: Messages, expressions: Expressions) -> dict[str, CheckedAction]:
    """Return the actions of a document by name, every mistake of theirs recorded; complete only where there is none."""
    actions = getattr(part, "actions", {})
    schemas = {name: _schema(action, ("actions", name, "params"), source, messages) for name, action in actions.items()}
    checked = {name: _Checker(name, part, schemas, source, messages, expressions).check() for name in actions}
    expressions.finish()
    return {name: action for name, action in checked.items() if action is not None}


class Doubt(NamedTuple):
    """A warning whose place nobody has looked up yet: that takes reading the text as YAML, and only authors want to know."""

    path: Path
    at_key: bool
    code: str
    message: str
    suggestion: str


def doubts(part: RuleSetPart, checked: Mapping[str, CheckedAction], expressions: Expressions) -> Iterator[Doubt]:
    """Yield what a sound document may not mean as it says it."""
    for name in expressions.unused():
        yield Doubt(("variables", name), True, "variable-never-used", f"no expression uses {name}", "remove it")
    for name, action in checked.items():
        place: Path = ("actions", name)
        read = {read for _, condition in action.rules for read, _ in reads(condition.tree, action.environment.types)}
        read.update(path for _, condition in action.rules for path in presences(condition.tree))
        if action.score is not None:
            read.update(read for read, _ in reads(action.score.tree, action.environment.types))
            read.update(presences(action.score.tree))
        read.update(f"facts.{need}" for subject in action.subjects.values() for need in needs_of(action.subject_environment, subject))
        for fact in action.facts:
            if f"facts.{fact.name}" not in read:
                message, advice = f"no rule reads facts.{fact.name}", "it is still required as evidence, unless optional"
                yield Doubt((*place, "facts", fact.name), True, "fact-never-read", message, advice)
        window_ms = part.actions[name].contest_window_ms
        for fact in action.facts:
            if fact.max_age_ms <= window_ms:
                message = f"facts.{fact.name} is too old after {fact.max_age_ms} ms, before a contest of {window_ms} ms closes"
                advice = "let it be older than contest_window_ms by the time that it takes to get it"
                yield Doubt((*place, "facts", fact.name, "max_age_ms"), False, "contest-outlasts-fact", message, advice)
        if part.actions[name].on_version_mismatch in ("warn", "fail") and not required_versions(part.actions[name]):
            message = f"{name} requires no version that could mismatch"
            yield Doubt((*place, "on_version_mismatch"), True, "no-versions", message, "name them under `versions`")
        if not any(rule.effect == "approve" for rule, _ in action.rules):
            advice = "alone it refuses every proposal: another rule set has to approve"
            yield Doubt(place, True, "never-approves", f"no rule approves {name}", advice)


def placed(found: Iterable[Doubt], text: str) -> tuple[DocumentMessage, ...]:
    """Return warnings about a document with this text, sorted by place."""
    source, messages = Source(text, Messages()), Messages()
    for doubt in found:
        place = source.key_place(doubt.path) if doubt.at_key else source.place(doubt.path)
        messages.add(place, doubt.code, doubt.message, doubt.suggestion)
    return messages.sorted()


def required_versions(part: ActionPart) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return (field of VersionBinding, versions that will do) of everything that is to be compared, by field."""
    if part.on_version_mismatch == "ignore":
        return ()
    required = ((name, getattr(part.versions, name)) for name in sorted(VersionsPart.model_fields))
    return tuple((name, tuple(versions)) for name, versions in required if versions)


class _Checker:
    """Checks one action and its rules. Goes on as far as it can: an author wants all mistakes at once."""

    def __init__(
        self,
        name: str,
        document: RuleSetPart,
        schemas: Mapping[str, ParamsSchema | None],
        source: Source,
        messages: Messages,
        expressions: Expressions,
    ) -> None:
        self._name = name
        self._part = document.actions[name]
        self._actions = document.actions
        rules: Iterable[RulePart | None] = getattr(document, "rules", ())
        self._rules = [(index, rule) for index, rule in enumerate(rules) if rule is not None and getattr(rule, "action", None) == name]
        derivations = getattr(document, "derivations", ())
        self._derivations = [(index, part) for index, part in enumerate(derivations) if part is not None and _about(part) == name]
        self._schemas = schemas
        self._salvaged = False
        self._steps = 0  # of all sound expressions
        self._source = source
        self._messages = messages
        self._expressions = expressions

    def check(self) -> CheckedAction | None:
        """Return the action; None with mistakes, all of them recorded."""
        before = len(self._messages)
        path: Path = ("actions", self._name)
        schema = self._schemas[self._name]
        facts = getattr(self._part, "facts", {})
        declared = {
            name: Field(_FACT_TYPES.get(getattr(fact, "type", ""), DYN), not getattr(fact, "optional", False))
            for name, fact in facts.items()
        }
        # Where the schema is broken, what can be read of it will do: the conditions have mistakes of their own.
        params = schema.type if schema is not None else salvaged_type(getattr(self._part, "params", None))
        self._salvaged = schema is None
        environment = self._environment(condition_scope(params, declared))
        self._expressions.note_environment(environment)
        conflict_environment = self._environment(conflict_key_scope(params))
        conflict_key = self._expression(
            conflict_environment, getattr(self._part, "conflict_key", "subject"), (*path, "conflict_key"), "STRING"
        )
        rules = [
            (rule, self._expression(environment, getattr(rule, "when", None), ("rules", index, "when"), "BOOL"))
            for index, rule in self._rules
        ]
        # A fact that rests on itself is a mistake of its own, with words of its own, so all of them may be named here.
        templated = [name for name, fact in facts.items() if getattr(fact, "subject", None) is not None]
        subject_environment = self._environment(subject_scope(params, declared)) if templated else conflict_environment
        subjects = self._subjects(subject_environment, templated)
        order = self._fact_order(subject_environment, subjects)
        score = self._expression(environment, getattr(self._part, "score", None), (*path, "score"), "DOUBLE")
        compensation = self._compensation(params, schema)
        derivations = self._derivation_rules(params, schema)
        self._check_steps(path)
        if len(self._messages) > before or schema is None or conflict_key is None:
            return None
        checked = [(rule, condition) for rule, condition in rules if condition is not None and getattr(rule, "priority", None) is not None]
        checked.sort(key=lambda of: -of[0].priority)
        lowered = tuple(lower(condition, environment) for _, condition in checked)
        try:
            network_plan = plan([one.formula for one in lowered])
        except LimitError as error:
            place = self._source.key_place(path)
            self._messages.add(place, "too-complex", f"the rules of {self._name} are too many or too complex: {error}", "")
        if len(self._messages):
            return None  # here or elsewhere: the document is refused, and parts of it may be missing
        return CheckedAction(
            schema,
            tuple(_declaration(name, facts[name]) for name in order),
            environment,
            tuple((_rule(rule), condition) for rule, condition in checked),
            lowered,
            network_plan,
            conflict_environment,
            conflict_key,
            subject_environment,
            subjects,
            derivations,
            score,
            compensation,
        )

    def _derivation_rules(self, params: ValueType, schema: ParamsSchema | None) -> tuple[DerivationRule, ...]:
        """Return the sound derivations from executions of the action, by id."""
        environment = self._environment(derivation_scope(params)) if self._derivations else None
        rules = []
        for index, part in self._derivations:
            assert environment is not None  # noqa: S101  # there are derivations
            value = self._expression(environment, getattr(part, "value", None), ("derivations", index, "value"), "SCALAR")
            if value is not None and schema is not None and not len(self._messages):
                rules.append(DerivationRule(part, environment, value, schema))
        return tuple(sorted(rules, key=lambda rule: rule.id))

    def _compensation(self, params: ValueType, schema: ParamsSchema | None) -> Compensation | None:
        """Return the compensation that the action declares, if it is sound."""
        compensation = getattr(self._part, "compensation", None)
        if compensation is None:
            return None
        path: Path = ("actions", self._name, "compensation")
        environment = self._environment(compensation_scope(params))
        texts = getattr(compensation, "params", {})
        checked = {name: self._expression(environment, text, (*path, "params", name), "") for name, text in texts.items()}
        action = getattr(compensation, "action", "")

        def report(name: str, code: str, message: str, suggestion: str) -> None:
            place = self._source.key_place((*path, "params", name)) if name else self._source.key_place(path)
            self._messages.add(place, code, message, suggestion)

        sound = {name: condition for name, condition in checked.items() if condition is not None}
        if len(sound) == len(checked):
            check_compensation(action, sound, self._schemas.get(action), report)
        if schema is None or len(self._messages):
            return None
        expressions = {name: ReportExpression(Expression(environment, condition), schema) for name, condition in sound.items()}
        # The compensating action's own policy, where this rule set has one for it.
        retry = self._actions.get(action, self._part).retry
        return Compensation(action, expressions, self._schemas.get(action), RetryPolicy(**retry.model_dump()))

    def _environment(self, scope: Mapping[str, ValueType]) -> Environment:
        return Environment(scope, salvaged=self._salvaged)

    def _subjects(self, environment: Environment, names: Iterable[str]) -> dict[str, Condition]:
        """Return the sound subject templates among those of the facts named."""
        subjects = {}
        for name in names:
            path: Path = ("actions", self._name, "facts", name, "subject")
            subject = self._expression(environment, self._part.facts[name].subject, path, "STRING")
            if subject is None:
                continue
            subjects[name] = subject
            written = unfit(environment, subject)
            if written is not None:
                hint = 'write "type/id" with a type of a-z 0-9 _ - and an id without spaces, e.g. "customer/7"'
                self._messages.add(self._source.place(path), "not-a-subject", f"{written!r} is no subject, so no fact can have it", hint)
        return subjects

    def _fact_order(self, environment: Environment, subjects: Mapping[str, Condition]) -> list[str]:
        """Return the declared facts by name, each after those that its subject takes; report whose subject takes itself."""
        needs = {name: needs_of(environment, subject) for name, subject in subjects.items()}
        order, circular = in_order(sorted(getattr(self._part, "facts", {})), needs)
        for name in circular:
            place = self._source.place(("actions", self._name, "facts", name, "subject"))
            named = ", ".join(f"facts.{need}" for need in needs[name])
            message = f"the subject of facts.{name} rests on itself: it takes {named}"
            self._messages.add(place, "subject-cycle", message, "take it from facts whose subject is known without this one")
        return order

    def _expression(self, environment: Environment, text: str | None, path: Path, result: str) -> Condition | None:
        condition = self._expressions.check(environment, text, path, result, self._name)
        self._steps += condition.steps if condition is not None else 0
        return condition

    def _check_steps(self, path: Path) -> None:
        """Report an action all of whose expressions together may take too long: one decision evaluates them all."""
        if self._steps > ACTION_STEPS_MAX:
            message = f"evaluating all expressions of {self._name} may take {self._steps:,} steps; the limit is {ACTION_STEPS_MAX:,}"
            hint = "declare maxItems and maxLength in its params schema, or ask costly questions in fewer rules"
            self._messages.add(self._source.key_place(path), "too-costly", message, hint)


def _schema(action: ActionPart, path: Path, source: Source, messages: Messages) -> ParamsSchema | None:
    params = getattr(action, "params", None)
    if params is None:
        return None  # reported with the document's form

    def report(inside: Path, code: str, message: str, suggestion: str) -> None:
        place = source.key_place((*path, *inside)) if inside else source.place(path)
        if (*path, *inside) not in source.broken:  # else it has been reported with the text
            messages.add(place, code, message, suggestion)

    schema = compile_schema(params, report)
    return None if any(broken[: len(path)] == path for broken in source.broken) else schema


def _about(derivation: DerivationPart | None) -> str | None:
    """Return the action whose executions a derivation is about."""
    return getattr(getattr(derivation, "on", None), "action", None)


def _rule(part: RulePart) -> Rule:
    return Rule(part.id, part.priority, part.effect, part.reason_code or "", part.when)


def _declaration(name: str, part: FactPart) -> FactDeclaration:
    return FactDeclaration(
        name, part.key, part.type, part.min_trust, part.max_age_ms, frozenset(part.sources), part.optional, part.subject or ""
    )
