"""Compiled rule sets: a document as arbitration uses it.

Compiling is a pure function of the text. Its result is either a rule set that both engines can evaluate, or every mistake of the
document at once. The Rete network evaluates the rules, and CEL's own evaluator is the reference. Conditions that fail are found
first, so the engines are compared only where both have an answer (ADR 0011).
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from gavel.v1.arbitration_service_pb2 import RuleExplanation
from gavel.v1.decision_pb2 import RetryPolicy, ReviewPolicy
from mypy_extensions import mypyc_attr

from gavel_rules.codec.counter_fragments import encode_counter
from gavel_rules.codec.rule_set_fragments import encode_retry_policy, encode_rule_match, encode_rule_outcome, encode_rule_set_reference
from gavel_rules.language.action_checker import CheckedAction, ExpressionCost, check_actions, required_versions
from gavel_rules.language.cel.checker import ScopedExpression
from gavel_rules.language.cel.tree_queries import find_presence_tests, find_variables
from gavel_rules.language.cel.vocabulary import PRESENCE_MAPS
from gavel_rules.language.counters.counter import CompiledCounter, direct_variable
from gavel_rules.language.counters.retry_after import RetryAfter
from gavel_rules.language.details import Details
from gavel_rules.language.document.canonical_form import compute_digest, to_canonical_json
from gavel_rules.language.document.diagnostics import DocumentError, DocumentMessage, Messages
from gavel_rules.language.document.models import ActionPart, ReviewPart, RuleSetPart
from gavel_rules.language.document.reader import read_document
from gavel_rules.language.document.source import Source
from gavel_rules.language.document_warnings import DocumentWarning, find_warnings, locate_warnings
from gavel_rules.language.engines.case import Case, CaseReader
from gavel_rules.language.engines.cel import Program, condition_source, guard_source
from gavel_rules.language.engines.rete import CaseWriter, Network, NetworkPlan
from gavel_rules.language.explanation import explain
from gavel_rules.language.expression_checker import ExpressionChecker
from gavel_rules.language.fact_declaration import FactDeclaration
from gavel_rules.language.feasibility import Feasibility, KnownFacts, PossibleOutcomes
from gavel_rules.language.rule import Rule
from gavel_rules.language.subject_templates import SubjectTemplate

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

# Ranks competing proposals where a rule set declares no score.
SCORE_DEFAULT: Final = "double(proposal.priority) * 100.0 - proposal.risk * 10.0 - proposal.cost - double(evidence.worst_trust - 1) * 5.0"


class Verdict:
    """The rules of an action that match a case. Verdicts compare by value."""

    def __init__(
        self,
        matches: tuple[Rule, ...],  # by falling priority
        error: str = "",  # the id of the highest rule whose whole condition fails
        disagreement: tuple[tuple[str, ...], tuple[str, ...]] | None = None,  # rule ids matched by Rete, and by the reference engine
    ) -> None:
        self.matches: Final = matches
        self.error: Final = error
        self.disagreement: Final = disagreement

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Verdict) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[object, ...]:
        return (self.matches, self.error, self.disagreement)


class CounterPlace:
    """A counter that an action reads, and the variable that stands for the read: docs/performance.md#plain-classes."""

    def __init__(self, variable: str, counter: str, digest: str, fragment: bytes, key: int, is_first: bool) -> None:
        self.variable: Final = variable
        self.counter: Final = counter
        self.digest: Final = digest
        self.fragment: Final = fragment  # of a decision: see `codec.counter_fragments`
        self.key: Final = key  # its place in `CompiledAction.counter_keys`
        self.is_first: Final = is_first  # no place before it reads the counter


class CompiledAction:
    """One action of a rule set, ready to evaluate cases. Not safe for two threads at once."""

    def __init__(
        self,
        document: _DocumentIdentity,
        action_type: str,
        part: ActionPart,
        checked: CheckedAction,
        counters: Mapping[str, CompiledCounter],  # of the document
    ) -> None:
        self.policy_id = document.policy_id
        self.version = document.version
        self.digest = document.digest
        self.action_type = action_type
        self.facts = checked.facts
        self.subject_templates = {
            subject.written: SubjectTemplate(checked.subject_environment, subject) for subject in checked.subjects.values()
        }
        self.rules = tuple(rule for rule, _ in checked.rules)
        self.conditions = tuple(condition for _, condition in checked.rules)  # of `rules`, in the same order
        self.environment = checked.environment
        self.params_schema = part.params
        self.decision_ttl_ms = part.decision_ttl_ms
        self.rejection_limit = part.rejection_limit
        limits = part.rejection_limits.model_dump(exclude_none=True) if part.rejection_limits is not None else {}
        self.rejection_limits: Mapping[str, int] = limits  # by RefusalClass
        self.retry = RetryPolicy(**part.retry.model_dump())
        self.review_policy = _review_policy(part.review) if part.review is not None else None
        # Of rules that have a policy of their own, by rule id.
        self.review_policies: Mapping[str, ReviewPolicy] = {rule_id: _review_policy(review) for rule_id, review in checked.reviews.items()}
        self.fact_keys_are_unique = len({declared.key for declared in self.facts}) == len(self.facts)
        self.compensation = checked.compensation
        # The declared facts that derivations read, by name.
        self.derivation_facts = tuple(sorted({name for rule in checked.derivations for name in rule.facts}))
        # Of versions that the action requires, and of drift.
        self.on_version_mismatch = part.on_version_mismatch or "fail"
        self.on_drift = part.on_version_mismatch or "warn"
        self.required_versions = required_versions(part)
        self.contest_window_ms = part.contest_window_ms
        self.conflict_key_is_subject = part.conflict_key.strip() == "subject"
        self.part = part
        self.conflict_key_expression = ScopedExpression(checked.conflict_environment, checked.conflict_key)
        self.score_expression = ScopedExpression(checked.environment, checked.score) if checked.score is not None else None
        self.subject_expressions: Mapping[str, ScopedExpression] = {
            name: ScopedExpression(checked.subject_environment, subject) for name, subject in checked.subjects.items()
        }
        self._checked = checked
        self._conflict_reader = _create_reader(self.conflict_key_expression)
        self._conflict_program = Program(checked.conflict_environment, [condition_source(checked.conflict_key.source)])
        self.counter_reads = checked.environment.counter_reads.all()
        self.read_counters: tuple[CompiledCounter, ...] = tuple(counters[read.counter] for read in self.counter_reads)
        # Where each of `counter_reads` is read.
        self._keys = tuple(dict.fromkeys(read.key for read in self.counter_reads))  # "": of a counter without groups
        first = {read.counter: read for read in reversed(self.counter_reads)}
        self.counter_places = tuple(
            CounterPlace(
                read.variable,
                counter.name,
                counter.digest,
                encode_counter(document.policy_id, counter.name),
                self._keys.index(read.key),
                first[read.counter] is read,
            )
            for read, counter in zip(self.counter_reads, self.read_counters, strict=True)
        )
        # The counters without which no approval may be given: what it reserves must find room.
        self.reserving_counters: tuple[CompiledCounter, ...] = tuple(
            counters[name] for name in sorted(counters) if counters[name].is_reserved and action_type in counters[name].actions
        )
        self.retries: Mapping[str, RetryAfter] = {
            rule_id: RetryAfter(checked.environment, frees, counters[frees.counter]) for rule_id, frees in checked.retries.items()
        }
        self.details: Mapping[str, Details] = {
            rule_id: Details(checked.environment, expressions) for rule_id, expressions in checked.details.items()
        }
        self.has_counters = bool(self.counter_reads or self.reserving_counters)
        self._key_programs: tuple[CaseReader, Program | None, list[str]] | None = None
        self._scoring: tuple[CaseReader, Program] | None = None
        self._feasibility: Feasibility | None = None
        self._prepare_fragments()
        self._prepare_engines(document.digest)

    def _prepare_fragments(self) -> None:
        """Encode the parts of decisions that are alike in all of them; those of matches and outcomes by rule id."""
        identity = (self.policy_id, self.version, self.digest)
        self.reference_fragment = encode_rule_set_reference(*identity)
        self.match_fragments: Mapping[str, bytes] = {
            rule.id: encode_rule_match(self.policy_id, rule.id, rule.effect, rule.condition) for rule in self.rules
        }
        self._text_match_fragments: Mapping[str, bytes] | None = None
        self.outcome_fragments: Mapping[str, bytes] = {
            rule.id: encode_rule_outcome(*identity, rule.id, rule.effect, rule.reason_code) for rule in self.rules
        }
        self.retry_policy_fragment = encode_retry_policy(self.retry)

    def _prepare_engines(self, digest: str) -> None:
        checked = self._checked
        environment = checked.environment
        guards = tuple(dict.fromkeys(guard for lowered in checked.lowered for guard in lowered.guards))
        trees = [environment.tree(guard.source) for guard in guards]
        guard_paths = [path for guard in guards for path in guard.required_paths]
        presences = [*(path for condition in self.conditions for path in find_presence_tests(condition.tree)), *guard_paths]
        types = environment.types
        self._reader = CaseReader((read for condition in self.conditions for read in find_variables(condition.tree, types)), presences)
        guard_names = {name for tree in trees for name, _ in find_variables(tree, types)}
        # Only the maps that guards test: the library takes half a microsecond for each, empty or not.
        tested = {path.partition(".")[0] for path in [*(path for tree in trees for path in find_presence_tests(tree)), *guard_paths]}
        self._guard_reads = sorted({*(PRESENCE_MAPS[root] for root in PRESENCE_MAPS if root in tested), *guard_names})
        guard_sources = [guard_source(guard) for guard in guards]
        condition_sources = [condition_source(condition.source) for condition in self.conditions]
        self._guard_program = Program(environment, guard_sources, are_conditions=True)
        self._condition_program = Program(environment, condition_sources, are_conditions=True)
        self._joint_program = Program(environment, [*condition_sources, *guard_sources], are_conditions=True)
        self._writer = CaseWriter(checked.plan.slots, [guard.source for guard in guards])
        self._network = _share_network(digest, self.action_type, checked.plan)

    def text_match_fragments(self) -> Mapping[str, bytes]:
        """Return `match_fragments` with effects as text, for logs of version 2. They are encoded when such a log first needs them."""
        fragments = self._text_match_fragments
        if fragments is None:
            fragments = {
                rule.id: encode_rule_match(self.policy_id, rule.id, rule.effect, rule.condition, as_text=True) for rule in self.rules
            }
            self._text_match_fragments = fragments
        return fragments

    def violations(self, params: dict[str, object], *, searches_long_texts: bool = False) -> tuple[tuple[str, str], ...]:
        """Return (JSON pointer, keyword) of every violation of the params schema, sorted; see `ParamsSchema.violations`."""
        return self._checked.schema.violations(params, searches_long_texts=searches_long_texts)

    def typed_params(self, params: dict[str, object]) -> dict[str, object]:
        """Return valid params with declared integers as int and declared numbers as float."""
        return self._checked.schema.typed(params)

    def conflict_key(self, case: Case) -> str | None:
        """Return the key that only one live approval may hold; None if it fails, or is empty or longer than 512 characters."""
        if self.conflict_key_is_subject:
            key: object = case.subject
        else:
            (key,) = self._conflict_program.evaluate_each(self._conflict_reader.read(case))
        return key if isinstance(key, str) and 0 < len(key) <= CONFLICT_KEY_LENGTH_MAX else None

    def score(self, case: Case) -> float | None:
        """Return the rank of a proposal among those that compete with it; None if it fails, or is not a finite number."""
        if self._scoring is None:  # most actions are never contested
            self._scoring = self._prepare_score()
        reader, program = self._scoring
        (score,) = program.evaluate_each(reader.read(case))
        return score if isinstance(score, float) and math.isfinite(score) else None

    def counter_keys(self, case: Case) -> list[str | None]:
        """Return the different groups that an action reads in a case; None for a key that fails, as with an absent optional fact."""
        if self._key_programs is None:
            self._key_programs = self._prepare_keys()
        reader, program, variables = self._key_programs
        values = reader.read(case)
        if program is None:
            field_values = [values.get(name) if name else "" for name in variables]
            return [key if isinstance(key, str) else None for key in field_values]
        keys = program.evaluate_all(values)
        if keys is None:
            keys = program.evaluate_each(values)
        return [key if isinstance(key, str) else None for key in keys]

    def evaluate(self, case: Case, cross_check: bool) -> Verdict:
        """Return the rules that match, by Rete. With `cross_check`, the reference engine evaluates them too and has to agree.

        Raises CaseError if a value is not of its declared type, NetworkFaultError if the Rete engine breaks its protocol.
        """
        values = self._reader.read(case)
        expected: list[object] | None = None
        guards: list[object] | None = None
        if cross_check:
            joint = self._joint_program.evaluate_all(values)
            if joint is not None:
                expected = joint
                guards = joint[len(self.rules) :]
        else:
            guards = self._guard_program.evaluate_all({name: values[name] for name in self._guard_reads if name in values})
        if guards is None:
            # Some expression fails. The reference engine tells which rules do, with and without the cross-check.
            expected = self._condition_program.evaluate_each(values)
            guards = self._guard_program.evaluate_each(values)
            erring = _first_error(expected)
            if erring is not None:
                return Verdict((), self.rules[erring].id)
        matches = self._network.match(self._writer.write(values, guards))
        if cross_check and expected is not None:
            reference_matches = [index for index in range(len(self.rules)) if expected[index] is True]
            if reference_matches != matches:
                return Verdict((), "", (self._ids(matches), self._ids(reference_matches)))
        return Verdict(tuple([self.rules[index] for index in matches]))

    def evaluate_reference(self, case: Case) -> Verdict:
        """Return the rules that match by the reference engine alone."""
        values = self._reader.read(case)
        answers = self._condition_program.evaluate_all(values)
        if answers is None:
            answers = self._condition_program.evaluate_each(values)
            erring = _first_error(answers)
            if erring is not None:
                return Verdict((), self.rules[erring].id)
        return Verdict(tuple(rule for rule, value in zip(self.rules, answers, strict=True) if value is True))

    def assess_feasibility(self, known: KnownFacts) -> PossibleOutcomes:
        """Return which outcomes the rules allow for any proposal while these facts hold."""
        if self._feasibility is None:  # most actions never need it
            effects = [rule.effect for rule in self.rules]
            self._feasibility = Feasibility(self.environment, effects, self._checked.lowered)
        return self._feasibility.assess(known)

    def explain(self, case: Case) -> tuple[RuleExplanation, ...]:
        """Return every rule, by falling priority, with the terms of its condition and their values."""
        return tuple([part for part in self.explain_in_steps(case) if part is not None])

    def explain_in_steps(self, case: Case) -> Iterator[RuleExplanation | None]:
        """Yield what `explain` returns, and None before each term: the caller may do something else then."""
        values = self._reader.read(case)
        for rule, condition in self._checked.rules:
            explanation = yield from explain(self.policy_id, rule.id, condition, self._checked.environment, values)
            yield explanation

    @property
    def costs(self) -> tuple[ExpressionCost, ...]:
        """The worst costs of the action's expressions, and of the patterns of its schemas. A decision evaluates nearly all of them."""
        return self._checked.costs

    def start(self) -> None:
        """Start the Rete network now instead of with the first case. Raises NetworkFaultError."""
        self._network.start()

    def _prepare_score(self) -> tuple[CaseReader, Program]:
        if self.score_expression is not None:
            return _create_reader(self.score_expression), Program(
                self.environment, [condition_source(self.score_expression.expression.source)]
            )
        tree = self.environment.tree(SCORE_DEFAULT)
        reader = CaseReader(find_variables(tree, self.environment.types), find_presence_tests(tree))
        return reader, Program(self.environment, [condition_source(SCORE_DEFAULT)])

    def _prepare_keys(self) -> tuple[CaseReader, Program | None, list[str]]:
        """Return what reads the keys of counters: no program if each is absent or just the value of a variable."""
        sources = [key or '""' for key in self._keys]
        trees = [self.environment.tree(source) for source in sources]
        reader = CaseReader(
            (variable for tree in trees for variable in find_variables(tree, self.environment.types)),
            [path for tree in trees for path in find_presence_tests(tree)],
        )
        variables = [direct_variable(tree, self.environment) for tree in trees]
        if all(variable or not key for variable, key in zip(variables, self._keys, strict=True)):
            return reader, None, variables
        return reader, Program(self.environment, [condition_source(source) for source in sources]), variables

    def _ids(self, indexes: Iterable[int]) -> tuple[str, ...]:
        return tuple(self.rules[index].id for index in indexes)


@mypyc_attr(native_class=False)  # native classes cannot be weakly referenced
class CompiledRuleSet:
    """A valid rule set document, compiled."""

    def __init__(
        self,
        document: _DocumentIdentity,
        text: str,
        part: RuleSetPart,
        checked: Mapping[str, CheckedAction],
        counters: Mapping[str, CompiledCounter],
        warnings: Iterable[DocumentWarning],
    ) -> None:
        self.policy_id = document.policy_id
        self.version = document.version
        self.digest = document.digest
        self.canonical_json = document.canonical_json
        self.document = text
        self.description = part.description
        self._warnings = tuple(warnings)
        self.actions: Mapping[str, CompiledAction] = {
            name: CompiledAction(document, name, part.actions[name], checked[name], counters) for name in sorted(checked)
        }
        self.counters: Mapping[str, CompiledCounter] = {name: counters[name] for name in sorted(counters)}
        self.derivations = tuple(rule for name in sorted(checked) for rule in checked[name].derivations)

    @property
    def warnings(self) -> tuple[DocumentMessage, ...]:
        """The warnings about the document, sorted by place."""
        return locate_warnings(self._warnings, self.document) if self._warnings else ()


def compile_rule_set(text: str) -> CompiledRuleSet:
    """Compile a rule set document, YAML or JSON.

    The canonical JSON of a rule set compiles to an equal rule set. Raises DocumentError with every mistake, sorted by place.
    """
    messages = Messages()
    source = Source(text, messages)
    part = read_document(source, messages)
    if part is None:
        raise DocumentError(messages.sorted())
    expressions = ExpressionChecker(part, source, messages)
    checked, counters = check_actions(part, source, messages, expressions)
    if len(messages):
        raise DocumentError(messages.sorted())
    canonical = to_canonical_json(source.data)
    identity = _DocumentIdentity(part.rule_set, part.version, compute_digest(canonical), canonical)
    warnings = [one._replace(path=source.written_path(one.path)) for one in find_warnings(part, checked, counters, expressions)]
    return CompiledRuleSet(identity, text, part, checked, counters, warnings)


class _DocumentIdentity(NamedTuple):
    policy_id: str
    version: int
    digest: str
    canonical_json: str


def _create_reader(scoped: ScopedExpression) -> CaseReader:
    environment, expression = scoped
    return CaseReader(find_variables(expression.tree, environment.types), find_presence_tests(expression.tree))


def _review_policy(part: ReviewPart) -> ReviewPolicy:
    """Return who resolves reviews, as decisions state it."""
    return ReviewPolicy(
        quorum=part.quorum,
        groups=sorted(set(part.groups)),
        separation=part.separation,
        escalate_after_ms=part.escalate_after_ms or 0,
        escalate_to=sorted(set(part.escalate_to)),
    )


def _first_error(answers: list[object]) -> int | None:
    return next((index for index, value in enumerate(answers) if not isinstance(value, bool)), None)


# One network per (digest, action type), shared by equal documents: activating a version again must not start a second one. The
# network's memory is freed with the last rule set that holds it.
_networks: Final[weakref.WeakValueDictionary[tuple[str, str], Network]] = weakref.WeakValueDictionary()


def _share_network(digest: str, action_type: str, network_plan: NetworkPlan) -> Network:
    network = _networks.get((digest, action_type))
    if network is None:
        network = _networks[digest, action_type] = Network(action_type, network_plan)
    return network
