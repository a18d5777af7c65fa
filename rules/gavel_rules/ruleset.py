"""Compiled rule sets: what arbitration sees of a document.

Compiling is a pure function of the text. It either gives a rule set that both engines can evaluate, or every mistake of the
document at once. Evaluating asks the Rete network and, beside it, the CEL evaluator; a condition that errs is settled first,
so that the two are only compared where both can answer.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping
from itertools import compress
from typing import Final, NamedTuple

from gavel.v1.arbitration_service_pb2 import RuleExplanation
from gavel.v1.decision_pb2 import RetryPolicy
from mypy_extensions import mypyc_attr

from gavel_rules.case import Case, Reader
from gavel_rules.compensation import check_compensation
from gavel_rules.conditions import Condition, Environment, presences, reads
from gavel_rules.cost import ACTION_STEPS_MAX
from gavel_rules.derivation_rules import DerivationRule
from gavel_rules.document import (
    ActionPart,
    DerivationPart,
    DocumentError,
    FactPart,
    RulePart,
    RuleSetPart,
    VersionsPart,
    canonical_json,
    digest_of,
    read_document,
)
from gavel_rules.explanation import explain
from gavel_rules.expressions import Expressions
from gavel_rules.lowering import Lowered, lower
from gavel_rules.network import Document, LimitError, Network, NetworkPlan, plan
from gavel_rules.reference import Program, condition_source, guard_source
from gavel_rules.schema import ParamsSchema, compile_schema, salvaged_type
from gavel_rules.source import DocumentMessage, Messages, Path, Source
from gavel_rules.subjects import SubjectTemplate, in_order, needs_of
from gavel_rules.values import number_problem
from gavel_rules.vocabulary import (
    BOOL,
    DOUBLE,
    DYN,
    INT,
    PRESENCE_MAPS,
    STRING,
    Field,
    ValueType,
    compensation_scope,
    condition_scope,
    conflict_key_scope,
    derivation_scope,
    subject_scope,
)

__all__ = [
    "CompiledAction",
    "CompiledRuleSet",
    "DocumentError",
    "DocumentMessage",
    "FactDeclaration",
    "Rule",
    "Verdict",
    "compile_rule_set",
]

CONFLICT_KEY_LENGTH_MAX: Final = 512

_FACT_TYPES: Final[Mapping[str, ValueType]] = {"string": STRING, "number": DOUBLE, "integer": INT, "boolean": BOOL}


class Rule(NamedTuple):
    """One rule, as arbitration quotes it."""

    id: str
    priority: int
    effect: str  # "approve", "reject" or "review"
    reason_code: str  # "" for an approval
    condition: str  # as its author wrote it


class FactDeclaration(NamedTuple):
    """A fact that an action's rules may read, and the evidence that it takes."""

    name: str
    key: str
    value_type: str  # "string", "number", "integer" or "boolean"
    min_trust: int  # the least trusted tier that will do
    max_age_ms: int
    sources: frozenset[str]  # empty: any
    optional: bool
    subject: str = ""  # the template of whose fact it is, as written; empty: the proposal's subject's

    def accepts(self, value: object) -> bool:
        """Whether a value is of the declared type. An integer may come as a float without a fraction, as the wire has it."""
        match self.value_type:
            case "string":
                return isinstance(value, str)
            case "boolean":
                return isinstance(value, bool)
        if isinstance(value, bool) or not isinstance(value, int | float) or number_problem(value):
            return False
        return self.value_type == "number" or value == int(value)


class Verdict(NamedTuple):
    """What an action's rules say about a case."""

    matched: tuple[Rule, ...]  # by falling priority
    error: str = ""  # the id of the highest rule whose whole condition errs
    disagreement: tuple[tuple[str, ...], tuple[str, ...]] | None = None  # ids that Rete, and that the reference engine matched


class CompiledAction:
    """One action of a rule set, ready to be evaluated. Not for two threads at once."""

    def __init__(self, document: _DocumentIdentity, action_type: str, part: ActionPart, checked: _CheckedAction) -> None:
        self.policy_id = document.policy_id
        self.version = document.version
        self.digest = document.digest
        self.action_type = action_type
        self.facts = checked.facts
        self.subject_templates = {
            condition.written: SubjectTemplate(checked.subject_environment, condition) for condition in checked.subjects.values()
        }
        self.rules = tuple(rule for rule, _ in checked.rules)
        self.conditions = tuple(condition for _, condition in checked.rules)  # of the rules, in their order
        self.environment = checked.environment
        self.params_schema = part.params
        self.decision_ttl_ms = part.decision_ttl_ms
        self.rejection_limit = part.rejection_limit
        limits = part.rejection_limits.model_dump(exclude_none=True) if part.rejection_limits is not None else {}
        self.rejection_limits: Mapping[str, int] = limits  # by RefusalClass
        self.retry = RetryPolicy(**part.retry.model_dump())
        self.on_version_mismatch = part.on_version_mismatch or "fail"
        self.required_versions = _required_versions(part)
        self.conflict_key_is_subject = part.conflict_key.strip() == "subject"
        self._checked = checked
        self._conflict_reader = Reader(
            reads(checked.conflict_key.tree, checked.conflict_environment.types), presences(checked.conflict_key.tree)
        )
        self._conflict_program = Program(checked.conflict_environment, [condition_source(checked.conflict_key.source)])

        guards = tuple(dict.fromkeys(guard for lowered in checked.lowered for guard in lowered.guards))
        conditions = [condition for _, condition in checked.rules]
        needed = (need for guard in guards for need in guard.needs)
        tested = [*(path for condition in conditions for path in presences(condition.tree)), *needed]
        types = checked.environment.types
        self._reader = Reader((read for condition in conditions for read in reads(condition.tree, types)), tested)
        self._guard_names = tuple(guard.source for guard in guards)
        trees = [checked.environment.tree(guard.source) for guard in guards]
        self._guard_reads = sorted({*PRESENCE_MAPS.values(), *(name for tree in trees for name, _ in reads(tree, types))} if guards else ())
        guard_sources = [guard_source(guard) for guard in guards]
        condition_sources = [condition_source(condition.source) for condition in conditions]
        self._guard_program = Program(checked.environment, guard_sources)
        self._condition_program = Program(checked.environment, condition_sources)
        self._joint_program = Program(checked.environment, [*condition_sources, *guard_sources])
        self._indexes = range(len(self.rules))
        self._document = Document(checked.plan.slots)
        self._network = _network(document.digest, action_type, checked.plan)

    def violations(self, params: dict[str, object]) -> tuple[tuple[str, str], ...]:
        """Return (JSON pointer, keyword) of everything in the params that does not fit the schema, sorted; empty: they fit."""
        return self._checked.schema.violations(params)

    def typed_params(self, params: dict[str, object]) -> dict[str, object]:
        """Return params without violations, with declared integers as int and declared numbers as float."""
        return self._checked.schema.typed(params)

    def conflict_key(self, case: Case) -> str | None:
        """Return what only one live approval may hold. None: it errs, or is empty or over 512 characters."""
        if self.conflict_key_is_subject:
            key: object = case.subject
        else:
            (key,) = self._conflict_program.apart(self._conflict_reader.values(case))
        return key if isinstance(key, str) and 0 < len(key) <= CONFLICT_KEY_LENGTH_MAX else None

    def evaluate(self, case: Case, both: bool) -> Verdict:
        """Return the rules that match. With `both`, the reference engine is asked as well and has to agree.

        CaseError: a value is not of its declared type. NetworkFaultError: the Rete engine broke its protocol.
        """
        values = self._reader.values(case)
        expected: list[object] | None = None
        guards: list[object] | None = None
        if both:
            joint = self._joint_program.together(values)
            if joint is not None:
                expected, guards = joint[: len(self.rules)], joint[len(self.rules) :]
        else:
            guards = self._guard_program.together({name: values[name] for name in self._guard_reads if name in values})
        if guards is None:
            # Something errs. Which rules do is settled by the reference engine, whatever the mode.
            expected = self._condition_program.apart(values)
            guards = self._guard_program.apart(values)
            erring = _first_error(expected)
            if erring is not None:
                return Verdict((), self.rules[erring].id)
        document = self._document.write(values, self._reader.presences(case), dict(zip(self._guard_names, guards, strict=True)))
        matched = self._network.match(document)
        if both and expected is not None:
            agreed = list(compress(self._indexes, expected))
            if agreed != matched:
                return Verdict((), "", (self._ids(matched), self._ids(agreed)))
        return Verdict(tuple([self.rules[index] for index in matched]))

    def evaluate_reference(self, case: Case) -> Verdict:
        """Return the rules that match by the reference engine alone."""
        values = self._reader.values(case)
        answers = self._condition_program.together(values)
        if answers is None:
            answers = self._condition_program.apart(values)
            erring = _first_error(answers)
            if erring is not None:
                return Verdict((), self.rules[erring].id)
        return Verdict(tuple(rule for rule, value in zip(self.rules, answers, strict=True) if value is True))

    def explain(self, case: Case) -> tuple[RuleExplanation, ...]:
        """Return every rule, by falling priority, with the parts of its condition and their values."""
        values = self._reader.values(case)
        return tuple(
            explain(self.policy_id, rule.id, condition, self._checked.environment, values) for rule, condition in self._checked.rules
        )

    def start(self) -> None:
        """Start the Rete network now rather than with the first case; NetworkFaultError when that fails."""
        self._network.start()

    def _ids(self, indexes: Iterable[int]) -> tuple[str, ...]:
        return tuple(self.rules[index].id for index in indexes)


@mypyc_attr(native_class=False)  # compiled or not, it can be referred to weakly
class CompiledRuleSet:
    """A valid rule set document, compiled."""

    def __init__(
        self, document: _DocumentIdentity, text: str, part: RuleSetPart, checked: Mapping[str, _CheckedAction], warnings: Messages
    ) -> None:
        self.policy_id = document.policy_id
        self.version = document.version
        self.digest = document.digest
        self.canonical_json = document.canonical_json
        self.document = text
        self.description = part.description
        self.warnings = warnings.sorted()
        self.actions: Mapping[str, CompiledAction] = {
            name: CompiledAction(document, name, part.actions[name], checked[name]) for name in sorted(checked)
        }
        self.derivations = tuple(rule for name in sorted(checked) for rule in checked[name].derivations)


def compile_rule_set(text: str) -> CompiledRuleSet:
    """Return the rule set of a document, YAML or JSON; DocumentError with every mistake of it, sorted by place.

    Compiling the canonical JSON of a rule set gives an equal rule set.
    """
    messages = Messages()
    source = Source(text, messages)
    part = read_document(source, messages)
    if part is None:
        raise DocumentError(messages.sorted())
    expressions = Expressions(part, source, messages)
    actions = getattr(part, "actions", {})
    schemas = {name: _schema(action, ("actions", name, "params"), source, messages) for name, action in actions.items()}
    checked = {name: _Checker(name, part, schemas, source, messages, expressions).check() for name in actions}
    expressions.finish()
    complete = {name: action for name, action in checked.items() if action is not None}
    if len(messages):
        raise DocumentError(messages.sorted())
    canonical = canonical_json(source.data)
    identity = _DocumentIdentity(part.rule_set, part.version, digest_of(canonical), canonical)
    return CompiledRuleSet(identity, text, part, complete, _warnings(part, complete, expressions, source))


class _DocumentIdentity(NamedTuple):
    policy_id: str
    version: int
    digest: str
    canonical_json: str


class _CheckedAction(NamedTuple):
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

    def check(self) -> _CheckedAction | None:
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
        self._expression(environment, getattr(self._part, "score", None), (*path, "score"), "DOUBLE")
        self._check_compensation(params)
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
        return _CheckedAction(
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

    def _check_compensation(self, params: ValueType) -> None:
        compensation = getattr(self._part, "compensation", None)
        if compensation is None:
            return
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

    def _environment(self, scope: Mapping[str, ValueType]) -> Environment:
        return Environment(scope, salvaged=self._salvaged)

    def _subjects(self, environment: Environment, names: Iterable[str]) -> dict[str, Condition]:
        """Return the sound subject templates among those of the facts named."""
        subjects = {}
        for name in names:
            path: Path = ("actions", self._name, "facts", name, "subject")
            subject = self._expression(environment, self._part.facts[name].subject, path, "STRING")
            if subject is not None:
                subjects[name] = subject
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


def _required_versions(part: ActionPart) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return (field of VersionBinding, versions that will do) of everything that is to be compared, by field."""
    if part.on_version_mismatch == "ignore":
        return ()
    required = ((name, getattr(part.versions, name)) for name in sorted(VersionsPart.model_fields))
    return tuple((name, tuple(versions)) for name, versions in required if versions)


def _rule(part: RulePart) -> Rule:
    return Rule(part.id, part.priority, part.effect, part.reason_code or "", part.when)


def _declaration(name: str, part: FactPart) -> FactDeclaration:
    return FactDeclaration(
        name, part.key, part.type, part.min_trust, part.max_age_ms, frozenset(part.sources), part.optional, part.subject or ""
    )


def _warnings(part: RuleSetPart, checked: Mapping[str, _CheckedAction], expressions: Expressions, source: Source) -> Messages:
    warnings = Messages()
    for name in expressions.unused():
        warnings.add(source.key_place(("variables", name)), "variable-never-used", f"no expression uses {name}", "remove it")
    for name, action in checked.items():
        read = {read for _, condition in action.rules for read, _ in reads(condition.tree, action.environment.types)}
        read.update(path for _, condition in action.rules for path in presences(condition.tree))
        read.update(f"facts.{need}" for subject in action.subjects.values() for need in needs_of(action.subject_environment, subject))
        for fact in action.facts:
            if f"facts.{fact.name}" not in read:
                place = source.key_place(("actions", name, "facts", fact.name))
                warnings.add(
                    place, "fact-never-read", f"no rule reads facts.{fact.name}", "it is still required as evidence, unless optional"
                )
        if part.actions[name].on_version_mismatch in ("warn", "fail") and not _required_versions(part.actions[name]):
            place = source.key_place(("actions", name, "on_version_mismatch"))
            warnings.add(place, "no-versions", f"{name} requires no version that could mismatch", "name them under `versions`")
        if not any(rule.effect == "approve" for rule, _ in action.rules):
            place = source.key_place(("actions", name))
            warnings.add(place, "never-approves", f"no rule approves {name}", "every proposal of it will be refused")
    return warnings


def _first_error(answers: list[object]) -> int | None:
    return next((index for index, value in enumerate(answers) if not isinstance(value, bool)), None)


# Equal documents share one network per action: activating a version again must not start another one. A network that no
# rule set holds any more gives its memory back.
_networks: Final[weakref.WeakValueDictionary[tuple[str, str], Network]] = weakref.WeakValueDictionary()


def _network(digest: str, action_type: str, network_plan: NetworkPlan) -> Network:
    network = _networks.get((digest, action_type))
    if network is None:
        network = _networks[digest, action_type] = Network(action_type, network_plan)
    return network
