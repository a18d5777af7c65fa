"""Selection of the evidence for a proposal (constitution §4.4-§4.8).

Rules see only values of the log. For each declaration, the candidates of its key and subject pass four filters in turn: accepted
source, declared type, required tier, freshness. The first filter that leaves no candidate gives the requirement's state. Among the
candidates that pass, the best tier wins, and within a tier the latest claim.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from gavel.v1 import decision_pb2
from gavel.v1.common_pb2 import TRUST_TIER_2_TOOL_OBSERVATION
from gavel.v1.decision_pb2 import FactRequirementState

from gavel_rules.events.citation import CitedEvent
from gavel_rules.events.kinds import PRODUCER_TYPE_NAMES
from gavel_rules.events.proposal_view import ProposalView
from gavel_rules.events.timestamps import TIME_MS_MAX
from gavel_rules.language.engines.case import NOBODY, Proposer
from gavel_rules.language.fact_declaration import fits, typed
from gavel_rules.language.feasibility import KnownFacts
from gavel_rules.language.rule_set import CompiledAction, FactDeclaration
from gavel_rules.state.records import Candidate
from gavel_rules.state.state import State
from gavel_rules.text import clip

# Bound once: docs/performance.md#module-constants
MET: Final = decision_pb2.FACT_REQUIREMENT_STATE_UNSPECIFIED
MISSING: Final = decision_pb2.FACT_REQUIREMENT_STATE_MISSING
STALE: Final = decision_pb2.FACT_REQUIREMENT_STATE_STALE
TIER_TOO_LOW: Final = decision_pb2.FACT_REQUIREMENT_STATE_TIER_TOO_LOW
SOURCE_NOT_ACCEPTED: Final = decision_pb2.FACT_REQUIREMENT_STATE_SOURCE_NOT_ACCEPTED
SUPERSEDED: Final = decision_pb2.FACT_REQUIREMENT_STATE_SUPERSEDED
WRONG_TYPE: Final = decision_pb2.FACT_REQUIREMENT_STATE_WRONG_TYPE


# The state of a requirement, by the number of filters that its best candidate passes.
_STATE_BY_FILTERS: Final = (MISSING, WRONG_TYPE, TIER_TOO_LOW, STALE)

# The value of `evidence.worst_trust` without any evidence: the least trusted tier.
NO_EVIDENCE_TRUST: Final = 3
_WARNING_LENGTH_MAX: Final = 512


class EvidenceSelection:
    """The evidence that is selected for one declaration, or the reason why there is none: docs/performance.md#plain-classes."""

    def __init__(
        self,
        declaration: FactDeclaration,  # without a name if only the proposal requires the fact
        subject: str,
        max_age_ms: int,
        candidate: Candidate | None,
        state: FactRequirementState.ValueType,
        fresh_until_ms: int,
        violation: str = "",  # of WRONG_TYPE: how the latest value violates the fact's schema, for people
    ) -> None:
        self.declaration: Final = declaration
        self.subject: Final = subject
        self.max_age_ms: Final = max_age_ms
        self.candidate: Final = candidate
        self.state: Final = state
        self.fresh_until_ms: Final = fresh_until_ms
        self.violation: Final = violation


class Evidence:
    """The selections for one rule set, with what its rules see of them."""

    def __init__(
        self,
        selections: list[EvidenceSelection],
        facts: dict[str, object],
        present: int,
        worst_trust: int,
        oldest_age_ms: int,
        unresolved: tuple[FactDeclaration, ...],  # their subjects depend on facts that are not met
        unnamed: tuple[FactDeclaration, ...],  # their subject templates give no "type/id"
    ) -> None:
        self.selections: Final = selections
        self.facts: Final = facts
        self.present: Final = present
        self.worst_trust: Final = worst_trust
        self.oldest_age_ms: Final = oldest_age_ms
        self.unresolved: Final = unresolved
        self.unnamed: Final = unnamed


def select_evidence(
    state: State,
    action: CompiledAction,
    actions: Sequence[CompiledAction],
    proposal: ProposalView,
    params: dict[str, object],
    now_ms: int,
) -> Evidence:
    """Select the evidence at `now_ms` for every fact that an action declares or the proposal requires.

    `actions` holds the action of every rule set that governs it. `params` are the proposal's, valid and typed by the action's schema.
    """
    own_subject = proposal.subject
    limit_ms = proposal.max_fact_age_ms
    declarations = action.facts
    if proposal.required_facts:
        declarations = tuple(_with_required_facts(declarations, actions, proposal.required_facts, limit_ms))
    own_candidates = state.evidence_of(own_subject)
    selections: list[EvidenceSelection] = []
    facts: dict[str, object] = {}
    worst_trust = 0
    oldest_age_ms = 0
    present = 0
    unresolved: tuple[FactDeclaration, ...] = ()
    unnamed: tuple[FactDeclaration, ...] = ()
    for declaration in declarations:
        subject, candidates = own_subject, own_candidates
        max_age_ms = declaration.max_age_ms if declaration.max_age_ms < limit_ms else limit_ms
        written = declaration.subject or declaration.subjects
        if written:
            template = action.subject_templates[written]
            if not _are_resolved(template.dependencies, facts, selections):
                unresolved += (declaration,)
                continue
            in_ascii = not state.semantics.has_unicode_subjects
            proposer = _proposer_of(proposal) if template.reads_producer else NOBODY
            if declaration.subjects:
                names = template.subjects(params, facts, own_subject, declaration.subjects_max, proposer, in_ascii=in_ascii)
            else:
                one = template.subject(params, facts, own_subject, proposer, in_ascii=in_ascii)
                names = [one] if one is not None else None
            if names is None:
                unnamed += (declaration,)
                continue
            if declaration.subjects:
                many = _select_many(state, declaration, names, max_age_ms, now_ms)
                for selection in many:
                    if selection.candidate is not None:
                        present += 1
                        worst_trust = max(worst_trust, selection.candidate.trust_tier)
                        oldest_age_ms = max(oldest_age_ms, now_ms - selection.candidate.aged_from_ms)
                selections.extend(many)
                _add_values(facts, declaration, many, as_declared=state.semantics.reads_as_declared)
                continue
            subject, candidates = names[0], state.evidence_of(names[0])
        selection = _select(candidates.get(declaration.key, ()), declaration, subject, max_age_ms, now_ms)
        selections.append(selection)
        candidate = selection.candidate
        if candidate is not None:
            present += 1
            worst_trust = max(worst_trust, candidate.trust_tier)
            oldest_age_ms = max(oldest_age_ms, now_ms - candidate.aged_from_ms)
            if declaration.name:
                facts[declaration.name] = typed(candidate.value, declaration)
    return Evidence(selections, facts, present, worst_trust or NO_EVIDENCE_TRUST, oldest_age_ms, unresolved, unnamed)


def _proposer_of(proposal: ProposalView) -> Proposer:
    return Proposer(PRODUCER_TYPE_NAMES[proposal.producer_type], proposal.producer_id, proposal.producer_version, proposal.producer_groups)


def _select_many(state: State, declaration: FactDeclaration, subjects: list[str], max_age_ms: int, now_ms: int) -> list[EvidenceSelection]:
    """Select the evidence for each subject of a fact of many."""
    return [_select(state.evidence_of(subject).get(declaration.key, ()), declaration, subject, max_age_ms, now_ms) for subject in subjects]


def _add_values(facts: dict[str, object], declaration: FactDeclaration, selections: list[EvidenceSelection], *, as_declared: bool) -> None:
    """Add what rules see of a fact of many subjects: the list of values, unless a required one is unmet."""
    if not [selection for selection in selections if selection.state]:
        values = [selection.candidate.value for selection in selections if selection.candidate is not None]
        if as_declared or declaration.schema is not None:
            values = [typed(value, declaration) for value in values]
        facts[declaration.name] = values


def superseded_selections(selections: list[EvidenceSelection], citations: list[CitedEvent]) -> list[EvidenceSelection]:
    """Return the selections whose facts the proposal cites only in other versions, in the state SUPERSEDED.

    Rule sets that share an action may select different versions of one key; citing one of them is enough.
    """
    superseded: list[EvidenceSelection] = []
    for selection in selections:
        candidate = selection.candidate
        if candidate is None or _cites(citations, candidate.sequence_number):
            continue
        if any(selection.subject == citation.subject and selection.declaration.key in citation.keys for citation in citations):
            superseded.append(
                EvidenceSelection(
                    selection.declaration, selection.subject, selection.max_age_ms, candidate, SUPERSEDED, selection.fresh_until_ms
                )
            )
    if not superseded:
        return superseded
    current = {
        (selection.declaration.key, selection.subject)
        for selection in selections
        if selection.candidate is not None and _cites(citations, selection.candidate.sequence_number)
    }
    return [selection for selection in superseded if (selection.declaration.key, selection.subject) not in current]


def known_facts(state: State, action: CompiledAction, evidence: Evidence) -> KnownFacts:
    """Return the facts that only a new event can change for the action's rules.

    A fact is not known if its subject depends on params or on who proposes, or if another candidate would be selected once it gets stale.
    """
    values: dict[str, object] = {}
    absent: set[str] = set()
    for selection in evidence.selections:
        declaration = selection.declaration
        if not declaration.name or selection.state or declaration.subjects:
            continue
        if declaration.subject:
            template = action.subject_templates[declaration.subject]
            if template.depends_on_proposal or not all(need in values or need in absent for need in template.dependencies):
                continue
        current = selection.candidate.value if selection.candidate is not None else None
        for candidate in state.evidence_of(selection.subject).get(declaration.key, ()):
            value = candidate.value
            if _is_acceptable(candidate, declaration) and not _are_same(value, current):
                break
        else:
            if current is None:
                absent.add(declaration.name)
            else:
                values[declaration.name] = typed(current, declaration)
    return KnownFacts(values, absent)


def _with_required_facts(
    declarations: Sequence[FactDeclaration], actions: Sequence[CompiledAction], keys: Sequence[str], limit_ms: int
) -> Iterable[FactDeclaration]:
    """Yield the declarations, extended by the keys that the proposal requires.

    A declared optional fact becomes required. A key that no rule set declares is a fact of the proposal's subject, of any type, from any
    source, at tier 2.
    """
    required = dict.fromkeys(keys)
    for declaration in declarations:
        yield declaration._replace(optional=False) if declaration.optional and declaration.key in required else declaration
    declared_keys = {declaration.key for action in actions for declaration in action.facts}
    for key in required:
        if key not in declared_keys:
            yield FactDeclaration("", key, "", TRUST_TIER_2_TOOL_OBSERVATION, limit_ms, frozenset(), False)


def _are_resolved(needs: Sequence[str], facts: Mapping[str, object], selections: Sequence[EvidenceSelection]) -> bool:
    """Return whether each fact that a subject template needs is present, or optional and absent."""
    return all(
        need in facts or any(selection.declaration.name == need and not selection.state for selection in selections) for need in needs
    )


def _select(
    candidates: tuple[Candidate, ...], declaration: FactDeclaration, subject: str, max_age_ms: int, now_ms: int
) -> EvidenceSelection:
    """Select among the candidates of a declaration's key. A candidate whose age equals the limit is fresh."""
    best: Candidate | None = None
    best_until_ms = 0
    passed = 0  # filters passed by any candidate: source, type, tier
    sources = declaration.sources
    for candidate in candidates:
        if sources and candidate.source not in sources:
            continue
        passed = passed or 1
        # Null, a retraction, is of every type.
        if candidate.value is not None and declaration.name and not fits(candidate.value, declaration):
            continue
        if candidate.trust_tier > declaration.min_trust:
            passed = max(passed, 2)
            continue
        passed = 3
        fresh_until_ms = _fresh_until_ms(candidate, max_age_ms)
        if now_ms <= fresh_until_ms and (best is None or _precedes(candidate, best)):
            best, best_until_ms = candidate, fresh_until_ms
    if best is not None and best.value is not None:
        return EvidenceSelection(declaration, subject, max_age_ms, best, MET, best_until_ms)
    if best is None and passed:
        violation = _describe_violation(candidates, declaration, subject) if passed == 1 else ""
        return EvidenceSelection(declaration, subject, max_age_ms, None, _STATE_BY_FILTERS[passed], 0, violation)
    if declaration.optional:
        return EvidenceSelection(declaration, subject, max_age_ms, None, MET, 0)
    if best is not None and best.trust_tier < declaration.min_trust:
        declaration = declaration._replace(min_trust=best.trust_tier)  # the new value must have at least the tier of the retraction
    lacking = SOURCE_NOT_ACCEPTED if candidates and best is None else MISSING
    return EvidenceSelection(declaration, subject, max_age_ms, None, lacking, 0)


def _describe_violation(candidates: tuple[Candidate, ...], declaration: FactDeclaration, subject: str) -> str:
    """Return how the latest value of an accepted source violates the fact's schema; "" if the fact has none."""
    schema = declaration.schema
    if schema is None:
        return ""
    latest: Candidate | None = None
    for candidate in candidates:
        if (not declaration.sources or candidate.source in declaration.sources) and (
            latest is None or candidate.sequence_number > latest.sequence_number
        ):
            latest = candidate
    if latest is None:
        return ""
    return clip(
        f"{declaration.key} of {subject} is not what facts.{declaration.name} declares: {schema.violation(latest.value)}",
        _WARNING_LENGTH_MAX,
    )


def _is_acceptable(candidate: Candidate, declaration: FactDeclaration) -> bool:
    """Return whether a candidate passes the filters of source, type and tier."""
    if declaration.sources and candidate.source not in declaration.sources:
        return False
    return candidate.trust_tier <= declaration.min_trust and (candidate.value is None or fits(candidate.value, declaration))


def _are_same(value: object, other: object) -> bool:
    """Return whether two values are the same for every rule. Python alone takes true for 1, also inside of lists."""
    if isinstance(value, (list, dict)):
        return repr(value) == repr(other)
    return type(value) is type(other) and value == other


def _fresh_until_ms(candidate: Candidate, max_age_ms: int) -> int:
    limit_ms = candidate.max_age_ms if 0 < candidate.max_age_ms < max_age_ms else max_age_ms
    return min(candidate.aged_from_ms + limit_ms, TIME_MS_MAX)


def _precedes(candidate: Candidate, other: Candidate) -> bool:
    if candidate.trust_tier != other.trust_tier:
        return candidate.trust_tier < other.trust_tier
    return (candidate.stated_at_ms, candidate.sequence_number) > (other.stated_at_ms, other.sequence_number)


def _cites(citations: list[CitedEvent], sequence_number: int) -> bool:
    for citation in citations:  # noqa: SIM110  # a loop, not a generator: docs/performance.md#lists
        if citation.sequence_number == sequence_number:
            return True
    return False
