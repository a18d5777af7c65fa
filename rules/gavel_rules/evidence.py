"""Which evidence speaks for a proposal, and what is wrong with the rest (seeds 002 §4.4-§4.8).

Rules see values of the log alone. For every requirement the candidates of its key and subject pass four filters in turn:
accepted source, declared type, required tier, freshness. The first filter that leaves nothing names the requirement's
state; of what passes, the best tier speaks, and within a tier the later claim.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from gavel.v1 import decision_pb2
from gavel.v1.common_pb2 import TRUST_TIER_2_TOOL_OBSERVATION
from gavel.v1.decision_pb2 import FactRequirement, FactRequirementState, RetryHint
from gavel.v1.envelope_pb2 import Envelope

from gavel_rules.events import TIME_MS_MAX, fact_keys
from gavel_rules.projection import Candidate, State
from gavel_rules.ruleset import CompiledAction, FactDeclaration

FINE: Final = decision_pb2.FACT_REQUIREMENT_STATE_UNSPECIFIED
MISSING: Final = decision_pb2.FACT_REQUIREMENT_STATE_MISSING
STALE: Final = decision_pb2.FACT_REQUIREMENT_STATE_STALE
TIER_TOO_LOW: Final = decision_pb2.FACT_REQUIREMENT_STATE_TIER_TOO_LOW
SOURCE_NOT_ACCEPTED: Final = decision_pb2.FACT_REQUIREMENT_STATE_SOURCE_NOT_ACCEPTED
SUPERSEDED: Final = decision_pb2.FACT_REQUIREMENT_STATE_SUPERSEDED
WRONG_TYPE: Final = decision_pb2.FACT_REQUIREMENT_STATE_WRONG_TYPE

# By how many filters any candidate has passed.
_UNMET: Final = (MISSING, WRONG_TYPE, TIER_TOO_LOW, STALE)

# A trust tier that no evidence has: what a rule sees as `evidence.worst_trust` where there is no evidence at all.
NO_EVIDENCE_TRUST: Final = 3


class Cited(NamedTuple):
    """What is known of an event that a proposal cites."""

    sequence_number: int
    event_id: str
    category: int
    subject: str
    keys: tuple[str, ...]


class Requirement(NamedTuple):
    """One piece of evidence that a proposal needs."""

    key: str
    subject: str
    declaration: FactDeclaration | None  # None: the proposal asked for it, no rule set declares it
    min_trust: int
    max_age_ms: int
    sources: frozenset[str]
    optional: bool


class Selection(NamedTuple):
    """What speaks for a requirement, or what is wrong."""

    requirement: Requirement
    candidate: Candidate | None
    state: FactRequirementState.ValueType  # FINE: nothing
    fresh_until_ms: int


class Evidence(NamedTuple):
    """All selections for one governing rule set, with what rules may see of them as a whole."""

    selections: tuple[Selection, ...]
    facts: dict[str, object]
    pieces: int
    worst_trust: int
    oldest_age_ms: int


def cited(envelope: Envelope) -> Cited:
    """Return what a proposal that cites this event needs to know of it."""
    return Cited(envelope.sequence_number, envelope.event_id, envelope.event_category, envelope.subject, fact_keys(envelope))


def requirements(action: CompiledAction, envelope: Envelope) -> list[Requirement]:
    """Return what the rule set declares for the action, in its order, then what the proposal itself asks for."""
    proposal = envelope.proposal
    subject = envelope.subject
    limit_ms = proposal.max_fact_age_ms
    wanted = [
        Requirement(
            declared.key,
            subject,
            declared,
            declared.min_trust,
            declared.max_age_ms if declared.max_age_ms < limit_ms else limit_ms,
            declared.sources,
            declared.optional,
        )
        for declared in action.facts
    ]
    asked = proposal.required_facts
    if asked:
        known = {requirement.key for requirement in wanted if not requirement.optional}
        wanted.extend(
            Requirement(key, subject, None, TRUST_TIER_2_TOOL_OBSERVATION, limit_ms, frozenset(), False)
            for key in dict.fromkeys(asked)
            if key not in known
        )
    return wanted


def select(state: State, requirement: Requirement, now_ms: int) -> Selection:
    """Return what speaks for a requirement at `now_ms`; age equal to the limit is fresh."""
    of_subject = state.evidence.get(requirement.subject)
    best: Candidate | None = None
    best_until_ms = 0
    passed = 0  # how many of the filters source, type, tier any candidate has passed
    if of_subject is not None:
        sources = requirement.sources
        declaration = requirement.declaration
        for candidate in of_subject.get(requirement.key, ()):
            if sources and candidate.source not in sources:
                continue
            passed = passed or 1
            # A null has every type: it says that there is no value.
            if declaration is not None and candidate.value is not None and not declaration.accepts(candidate.value):
                continue
            if candidate.trust_tier > requirement.min_trust:
                passed = max(passed, 2)
                continue
            passed = 3
            fresh_until_ms = _fresh_until_ms(candidate, requirement)
            if now_ms <= fresh_until_ms and (best is None or _speaks_before(candidate, best)):
                best, best_until_ms = candidate, fresh_until_ms
    if best is not None and best.value is not None:
        return Selection(requirement, best, FINE, best_until_ms)
    if best is not None or passed == 0:
        if requirement.optional:
            return Selection(requirement, None, FINE, 0)
        spoken = best is None and of_subject is not None and requirement.key in of_subject
        return Selection(requirement, None, SOURCE_NOT_ACCEPTED if spoken else MISSING, 0)
    return Selection(requirement, None, _UNMET[passed], 0)


def gather(state: State, action: CompiledAction, proposal: Envelope, now_ms: int) -> Evidence:
    """Return every selection that an action's rule set makes for a proposal."""
    selections = tuple(select(state, requirement, now_ms) for requirement in requirements(action, proposal))
    facts: dict[str, object] = {}
    count = 0
    worst_trust = 0
    oldest_age_ms = 0
    for selection in selections:
        candidate = selection.candidate
        if candidate is None:
            continue
        count += 1
        worst_trust = max(worst_trust, candidate.trust_tier)
        oldest_age_ms = max(oldest_age_ms, now_ms - candidate.aged_from_ms)
        declaration = selection.requirement.declaration
        if declaration is not None:
            facts[declaration.name] = candidate.value
    return Evidence(selections, facts, count, worst_trust or NO_EVIDENCE_TRUST, oldest_age_ms)


def superseded(selections: Sequence[Selection], citations: Iterable[Cited]) -> list[Selection]:
    """Return the selections whose key the proposal cites, but not in the version that the rules will see."""
    versions: dict[tuple[str, str], set[str]] = {}
    for citation in citations:
        for key in citation.keys:
            versions.setdefault((citation.subject, key), set()).add(citation.event_id)
    found = []
    for selection in selections:
        of_key = versions.get((selection.requirement.subject, selection.requirement.key))
        if of_key and selection.candidate is not None and selection.candidate.event_id not in of_key:
            found.append(selection._replace(state=SUPERSEDED))
    return found


def hint(unmet: Sequence[Selection], *, retryable: bool, retry_after_ms: int = 0) -> RetryHint:
    """Return the retry hint that names every unmet requirement, each once (seeds 002 §6.3)."""
    rows: dict[tuple[str, str, int, int, int, frozenset[str]], FactRequirement] = {}
    for selection in unmet:
        requirement = selection.requirement
        row = FactRequirement(
            key=requirement.key,
            subject=requirement.subject,
            state=selection.state,
            required_trust_tier=requirement.min_trust,  # type: ignore[arg-type]  # an int of the closed enum
            max_age_ms=requirement.max_age_ms,
            sources=sorted(requirement.sources),
        )
        identity = (row.key, row.subject, row.state, requirement.min_trust, row.max_age_ms, requirement.sources)
        rows.setdefault(identity, row)
    answer = RetryHint(retryable=retryable, retry_after_ms=retry_after_ms, fact_requirements=rows.values())
    if rows:
        answer.missing_fact_keys.extend(dict.fromkeys(row.key for row in rows.values()))
        answer.required_trust_tier = min(row.required_trust_tier for row in rows.values())
        answer.preferred_sources.extend(sorted({source for row in rows.values() for source in row.sources}))
        answer.max_observation_age_ms = min(row.max_age_ms for row in rows.values())
    return answer


def citations_of(proposal: Envelope, known: Mapping[int, Cited]) -> tuple[list[Cited], bool]:
    """Return what the proposal cites, and whether every citation is a FACT or OBSERVATION of the log under both names."""
    found = []
    sound = True
    for reference in proposal.proposal.based_on_events:
        event = known.get(reference.sequence_number)
        if event is None or event.event_id != reference.event_id or not event.keys:
            sound = False
        else:
            found.append(event)
    return found, sound


def _fresh_until_ms(candidate: Candidate, requirement: Requirement) -> int:
    limit_ms = requirement.max_age_ms
    if 0 < candidate.max_age_ms < limit_ms:
        limit_ms = candidate.max_age_ms
    return min(candidate.aged_from_ms + limit_ms, TIME_MS_MAX)


def _speaks_before(candidate: Candidate, other: Candidate) -> bool:
    if candidate.trust_tier != other.trust_tier:
        return candidate.trust_tier < other.trust_tier
    return (candidate.claimed_at_ms, candidate.sequence_number) > (other.claimed_at_ms, other.sequence_number)
