"""Compiled rule sets: what arbitration sees of a document.

Compiling is a pure function of the text. It either gives a rule set that both engines can evaluate, or every mistake of the
document at once. Evaluating asks the Rete network and, beside it, the CEL evaluator; a condition that errs is settled first,
so that the two are only compared where both can answer.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from gavel.v1.arbitration_service_pb2 import RuleExplanation
from gavel.v1.decision_pb2 import RetryPolicy
from mypy_extensions import mypyc_attr

from gavel_rules.language.case import Case, Reader
from gavel_rules.language.checking import CheckedAction, Doubt, check_actions, doubts, placed, required_versions
from gavel_rules.language.conditions import Expression
from gavel_rules.language.declarations import FactDeclaration, Rule
from gavel_rules.language.document import DocumentError, canonical_json, digest_of, read_document
from gavel_rules.language.explanation import explain
from gavel_rules.language.expressions import Expressions
from gavel_rules.language.feasibility import Feasibility, Known, Prospect
from gavel_rules.language.network import Document, Network, NetworkPlan
from gavel_rules.language.parts import ActionPart, RuleSetPart
from gavel_rules.language.quoting import consulted, matched, retried, spoken
from gavel_rules.language.reading import presences, reads
from gavel_rules.language.reference import Program, condition_source, guard_source
from gavel_rules.language.source import DocumentMessage, Messages, Source
from gavel_rules.language.subjects import SubjectTemplate
from gavel_rules.language.vocabulary import PRESENCE_MAPS

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

# What ranks competing proposals where a rule set does not say.
SCORE_DEFAULT: Final = "double(proposal.priority) * 100.0 - proposal.risk * 10.0 - proposal.cost - double(evidence.worst_trust - 1) * 5.0"


class Verdict:
    """What an action's rules say about a case. Equal ones say the same."""

    def __init__(
        self,
        matched: tuple[Rule, ...],  # by falling priority
        error: str = "",  # the id of the highest rule whose whole condition errs
        disagreement: tuple[tuple[str, ...], tuple[str, ...]] | None = None,  # ids that Rete, and that the reference engine matched
    ) -> None:
        self.matched: Final = matched
        self.error: Final = error
        self.disagreement: Final = disagreement

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Verdict) and self._said() == other._said()

    def __hash__(self) -> int:
        return hash(self._said())

    def _said(self) -> tuple[object, ...]:
        return (self.matched, self.error, self.disagreement)


class CompiledAction:
    """One action of a rule set, ready to be evaluated. Not for two threads at once."""

    def __init__(self, document: _DocumentIdentity, action_type: str, part: ActionPart, checked: CheckedAction) -> None:
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
        # What decisions quote of it, serialized: that it was consulted, and by rule id that a rule matched, and that it speaks;
        # and how an approval may be retried (`retried`).
        self.consulted = consulted(self.policy_id, self.version, self.digest)
        self.matched: Mapping[str, bytes] = {rule.id: matched(self.policy_id, rule, rule.condition) for rule in self.rules}
        self.spoken: Mapping[str, bytes] = {rule.id: spoken(self.policy_id, self.version, self.digest, rule) for rule in self.rules}
        self.environment = checked.environment
        self.params_schema = part.params
        self.decision_ttl_ms = part.decision_ttl_ms
        self.rejection_limit = part.rejection_limit
        limits = part.rejection_limits.model_dump(exclude_none=True) if part.rejection_limits is not None else {}
        self.rejection_limits: Mapping[str, int] = limits  # by RefusalClass
        self.retry = RetryPolicy(**part.retry.model_dump())
        self.retried = retried(self.retry)
        self.keys_differ = len({declared.key for declared in self.facts}) == len(self.facts)
        self.compensation = checked.compensation
        self.on_version_mismatch = part.on_version_mismatch or "fail"
        self.required_versions = required_versions(part)
        self.contest_window_ms = part.contest_window_ms
        self.conflict_key_is_subject = part.conflict_key.strip() == "subject"
        self.part = part
        self.conflict_key_expression = Expression(checked.conflict_environment, checked.conflict_key)
        self.score_expression = Expression(checked.environment, checked.score) if checked.score is not None else None
        self.subject_expressions: Mapping[str, Expression] = {
            name: Expression(checked.subject_environment, condition) for name, condition in checked.subjects.items()
        }
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
        trees = [checked.environment.tree(guard.source) for guard in guards]
        self._guard_reads = sorted({*PRESENCE_MAPS.values(), *(name for tree in trees for name, _ in reads(tree, types))} if guards else ())
        guard_sources = [guard_source(guard) for guard in guards]
        condition_sources = [condition_source(condition.source) for condition in conditions]
        self._guard_program = Program(checked.environment, guard_sources)
        self._condition_program = Program(checked.environment, condition_sources)
        self._joint_program = Program(checked.environment, [*condition_sources, *guard_sources])
        self._scoring: tuple[Reader, Program] | None = None
        self._feasibility: Feasibility | None = None
        self._document = Document(checked.plan.slots, [guard.source for guard in guards])
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

    def score(self, case: Case) -> float | None:
        """Return what ranks a proposal among those that compete with it. None: it errs, or is no finite number."""
        if self._scoring is None:  # most actions are never contested
            self._scoring = self._compiled_score()
        reader, program = self._scoring
        (score,) = program.apart(reader.values(case))
        return score if isinstance(score, float) and math.isfinite(score) else None

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
                expected = joint
                guards = joint[len(self.rules) :]
        else:
            guards = self._guard_program.together({name: values[name] for name in self._guard_reads if name in values})
        if guards is None:
            # Something errs. Which rules do is settled by the reference engine, whatever the mode.
            expected = self._condition_program.apart(values)
            guards = self._guard_program.apart(values)
            erring = _first_error(expected)
            if erring is not None:
                return Verdict((), self.rules[erring].id)
        document = self._document.write(values, guards)
        matched = self._network.match(document)
        if both and expected is not None:
            agreed = [index for index in range(len(self.rules)) if expected[index] is True]
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

    def prospect(self, known: Known) -> Prospect:
        """Return what the rules may say of any proposal while these facts hold."""
        if self._feasibility is None:  # many actions are never refused for good
            effects = [rule.effect for rule in self.rules]
            self._feasibility = Feasibility(self.environment, effects, self._checked.lowered)
        return self._feasibility.prospect(known)

    def explain(self, case: Case) -> tuple[RuleExplanation, ...]:
        """Return every rule, by falling priority, with the parts of its condition and their values."""
        values = self._reader.values(case)
        return tuple(
            explain(self.policy_id, rule.id, condition, self._checked.environment, values) for rule, condition in self._checked.rules
        )

    def start(self) -> None:
        """Start the Rete network now rather than with the first case; NetworkFaultError when that fails."""
        self._network.start()

    def _compiled_score(self) -> tuple[Reader, Program]:
        environment = self.environment
        source = self._checked.score.source if self._checked.score is not None else SCORE_DEFAULT
        tree = environment.tree(source)
        return Reader(reads(tree, environment.types), presences(tree)), Program(environment, [condition_source(source)])

    def _ids(self, indexes: Iterable[int]) -> tuple[str, ...]:
        return tuple(self.rules[index].id for index in indexes)


@mypyc_attr(native_class=False)  # compiled or not, it can be referred to weakly
class CompiledRuleSet:
    """A valid rule set document, compiled."""

    def __init__(
        self, document: _DocumentIdentity, text: str, part: RuleSetPart, checked: Mapping[str, CheckedAction], found: Iterable[Doubt]
    ) -> None:
        self.policy_id = document.policy_id
        self.version = document.version
        self.digest = document.digest
        self.canonical_json = document.canonical_json
        self.document = text
        self.description = part.description
        self._doubts = tuple(found)
        self.actions: Mapping[str, CompiledAction] = {
            name: CompiledAction(document, name, part.actions[name], checked[name]) for name in sorted(checked)
        }
        self.derivations = tuple(rule for name in sorted(checked) for rule in checked[name].derivations)

    @property
    def warnings(self) -> tuple[DocumentMessage, ...]:
        """What the document may not mean as it says it, sorted by place."""
        return placed(self._doubts, self.document) if self._doubts else ()


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
    checked = check_actions(part, source, messages, expressions)
    if len(messages):
        raise DocumentError(messages.sorted())
    canonical = canonical_json(source.data)
    identity = _DocumentIdentity(part.rule_set, part.version, digest_of(canonical), canonical)
    return CompiledRuleSet(identity, text, part, checked, doubts(part, checked, expressions))


class _DocumentIdentity(NamedTuple):
    policy_id: str
    version: int
    digest: str
    canonical_json: str


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
