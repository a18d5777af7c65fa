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
from mypy_extensions import mypyc_attr

from gavel_rules.events import TIME_MS_MAX, fact_keys
from gavel_rules.language.declarations import is_of_type
from gavel_rules.language.feasibility import Known
from gavel_rules.language.ruleset import CompiledAction, FactDeclaration
from gavel_rules.projection import State
from gavel_rules.proposed import Citation, Proposed
from gavel_rules.records import Candidate

FINE: Final = decision_pb2.FACT_REQUIREMENT_STATE_UNSPECIFIED
MISSING: Final = decision_pb2.FACT_REQUIREMENT_STATE_MISSING
STALE: Final = decision_pb2.FACT_REQUIREMENT_STATE_STALE
TIER_TOO_LOW: Final = decision_pb2.FACT_REQUIREMENT_STATE_TIER_TOO_LOW
SOURCE_NOT_ACCEPTED: Final = decision_pb2.FACT_REQUIREMENT_STATE_SOURCE_NOT_ACCEPTED
SUPERSEDED: Final = decision_pb2.FACT_REQUIREMENT_STATE_SUPERSEDED
WRONG_TYPE: Final = decision_pb2.FACT_REQUIREMENT_STATE_WRONG_TYPE

# What can be wrong, in the order of the stages.
_PRECEDENCE: Final = (MISSING, SOURCE_NOT_ACCEPTED, WRONG_TYPE, TIER_TOO_LOW, STALE, SUPERSEDED)

_NOTHING: Final[dict[str, tuple[Candidate, ...]]] = {}

# By how many filters any candidate has passed.
_UNMET: Final = (MISSING, WRONG_TYPE, TIER_TOO_LOW, STALE)

# What a rule sees as `evidence.worst_trust` where there is no evidence at all: the least trusted tier.
NO_EVIDENCE_TRUST: Final = 3


class Cited(NamedTuple):
    """What is known of an event that a proposal cites."""

    sequence_number: int
    event_id: str
    category: int
    subject: str
    keys: tuple[str, ...]
    evidence_ref: str  # of an observation: the tool result that it names


@mypyc_attr(acyclic=True)
class Piece:
    """One piece of evidence that a proposal needs: what speaks for it, or what is wrong. No tuple: compiled, those cost more."""

    def __init__(
        self,
        declared: FactDeclaration,  # without a name where the proposal asks for it and no rule set declares it
        subject: str,
        max_age_ms: int,
        candidate: Candidate | None,
        state: FactRequirementState.ValueType,  # FINE: nothing is wrong
        fresh_until_ms: int,
    ) -> None:
        self.declared: Final = declared
        self.subject: Final = subject
        self.max_age_ms: Final = max_age_ms
        self.candidate: Final = candidate
        self.state: Final = state
        self.fresh_until_ms: Final = fresh_until_ms


class Evidence:
    """All pieces for one governing rule set, with what its rules may see of them."""

    def __init__(
        self,
        pieces: list[Piece],
        facts: dict[str, object],
        present: int,
        worst_trust: int,
        oldest_age_ms: int,
        unresolved: tuple[FactDeclaration, ...],  # whose fact each is depends on another one that is not as required
        unnamed: tuple[FactDeclaration, ...],  # their subject templates give no "type/id"
    ) -> None:
        self.pieces: Final = pieces
        self.facts: Final = facts
        self.present: Final = present
        self.worst_trust: Final = worst_trust
        self.oldest_age_ms: Final = oldest_age_ms
        self.unresolved: Final = unresolved
        self.unnamed: Final = unnamed


def cited(envelope: Envelope) -> Cited:
    """Return what a proposal that cites this event needs to know of it."""
    keys = fact_keys(envelope)
    evidence_ref = envelope.observation.evidence_ref if envelope.HasField("observation") else ""
    return Cited(envelope.sequence_number, envelope.event_id, envelope.event_category, envelope.subject, keys, evidence_ref)


def gather(
    state: State,
    action: CompiledAction,
    governing: Sequence[CompiledAction],
    asked: Proposed,
    params: dict[str, object],
    now_ms: int,
) -> Evidence:
    """Return what speaks at `now_ms` for everything that an action's rule set declares and the proposal asks for.

    `governing` is the action in all rule sets that are consulted. `params` are the proposal's: they fit the action's schema, and
    are typed by it.
    """
    own_subject = asked.subject
    limit_ms = asked.max_fact_age_ms
    declarations = action.facts
    if asked.required_facts:
        declarations = tuple(_with_asked(declarations, governing, asked.required_facts, limit_ms))
    of_own_subject = state.evidence.get(own_subject, _NOTHING)
    pieces: list[Piece] = []
    facts: dict[str, object] = {}
    worst_trust = 0
    oldest_age_ms = 0
    present = 0
    unresolved: tuple[FactDeclaration, ...] = ()
    unnamed: tuple[FactDeclaration, ...] = ()
    for declared in declarations:
        subject, of_subject = own_subject, of_own_subject
        if declared.subject:
            template = action.subject_templates[declared.subject]
            if not _settled(template.needs, facts, pieces):
                unresolved += (declared,)
                continue
            named = template.subject(params, facts, own_subject)
            if named is None:
                unnamed += (declared,)
                continue
            subject, of_subject = named, state.evidence.get(named, _NOTHING)
        max_age_ms = declared.max_age_ms if declared.max_age_ms < limit_ms else limit_ms
        piece = _select(of_subject.get(declared.key, ()), declared, subject, max_age_ms, now_ms)
        pieces.append(piece)
        candidate = piece.candidate
        if candidate is not None:
            present += 1
            worst_trust = max(worst_trust, candidate.trust_tier)
            oldest_age_ms = max(oldest_age_ms, now_ms - candidate.aged_from_ms)
            if declared.name:
                facts[declared.name] = candidate.value
    return Evidence(pieces, facts, present, worst_trust or NO_EVIDENCE_TRUST, oldest_age_ms, unresolved, unnamed)


def _settled(needs: Sequence[str], facts: Mapping[str, object], pieces: Sequence[Piece]) -> bool:
    """Whether every fact that a subject template takes is there, or is an optional one of which the log has nothing."""
    return all(need in facts or any(piece.declared.name == need and not piece.state for piece in pieces) for need in needs)


def _with_asked(
    declarations: Sequence[FactDeclaration], governing: Sequence[CompiledAction], keys: Sequence[str], limit_ms: int
) -> Iterable[FactDeclaration]:
    """Return the declarations with what the proposal asks for besides.

    An optional fact that it asks for is required as it is declared. A key that no rule set declares: the proposal's subject's,
    any type, any source, tier 2.
    """
    asked = dict.fromkeys(keys)
    for declared in declarations:
        yield declared._replace(optional=False) if declared.optional and declared.key in asked else declared
    known = {declared.key for action in governing for declared in action.facts}
    for key in asked:
        if key not in known:
            yield FactDeclaration("", key, "", TRUST_TIER_2_TOOL_OBSERVATION, limit_ms, frozenset(), False)


def _select(candidates: tuple[Candidate, ...], declared: FactDeclaration, subject: str, max_age_ms: int, now_ms: int) -> Piece:
    """Return what speaks for a declaration among the candidates of its key; age equal to the limit is fresh."""
    best: Candidate | None = None
    best_until_ms = 0
    passed = 0  # how many of the filters source, type, tier any candidate has passed
    sources = declared.sources
    for candidate in candidates:
        if sources and candidate.source not in sources:
            continue
        passed = passed or 1
        # A null has every type: it says that there is no value.
        if candidate.value is not None and declared.name and not is_of_type(candidate.value, declared.value_type):
            continue
        if candidate.trust_tier > declared.min_trust:
            passed = max(passed, 2)
            continue
        passed = 3
        fresh_until_ms = _fresh_until_ms(candidate, max_age_ms)
        if now_ms <= fresh_until_ms and (best is None or _speaks_before(candidate, best)):
            best, best_until_ms = candidate, fresh_until_ms
    if best is not None and best.value is not None:
        return Piece(declared, subject, max_age_ms, best, FINE, best_until_ms)
    if best is None and passed:
        return Piece(declared, subject, max_age_ms, None, _UNMET[passed], 0)
    if declared.optional:
        return Piece(declared, subject, max_age_ms, None, FINE, 0)
    if best is not None and best.trust_tier < declared.min_trust:
        declared = declared._replace(min_trust=best.trust_tier)  # what is less trusted than a retraction does not speak against it
    lacking = SOURCE_NOT_ACCEPTED if candidates and best is None else MISSING
    return Piece(declared, subject, max_age_ms, None, lacking, 0)


def certain(state: State, action: CompiledAction, evidence: Evidence) -> Known:
    """Return what only a new event can change of the facts that an action's rules see.

    That is not so for a fact whose subject the params name, nor for one in whose place something else would speak when it
    gets too old.
    """
    values: dict[str, object] = {}
    absent: set[str] = set()
    for piece in evidence.pieces:
        declared = piece.declared
        if not declared.name or piece.state:
            continue
        if declared.subject:
            template = action.subject_templates[declared.subject]
            if template.takes_params or not all(need in values or need in absent for need in template.needs):
                continue
        speaks = piece.candidate.value if piece.candidate is not None else None
        for candidate in state.evidence.get(piece.subject, _NOTHING).get(declared.key, ()):
            value = candidate.value
            if _acceptable(candidate, declared) and (type(value) is not type(speaks) or value != speaks):
                break  # something else would speak
        else:
            if speaks is None:
                absent.add(declared.name)
            else:
                values[declared.name] = speaks
    return Known(values, absent)


def _acceptable(candidate: Candidate, declared: FactDeclaration) -> bool:
    """Whether a candidate passes every filter of `_select` but that of its age."""
    if declared.sources and candidate.source not in declared.sources:
        return False
    return candidate.trust_tier <= declared.min_trust and (candidate.value is None or is_of_type(candidate.value, declared.value_type))


def superseded(pieces: list[Piece], citations: list[Cited]) -> list[Piece]:
    """Return the pieces whose key the proposal cites, but in no version that rules will see.

    Rule sets that share an action may see different versions of one key: then any of these is a version that rules will see.
    """
    found: list[Piece] = []
    for piece in pieces:
        candidate = piece.candidate
        if candidate is None or _cites(citations, candidate.sequence_number):
            continue
        if any(piece.subject == citation.subject and piece.declared.key in citation.keys for citation in citations):
            found.append(Piece(piece.declared, piece.subject, piece.max_age_ms, candidate, SUPERSEDED, piece.fresh_until_ms))
    if not found:
        return found
    seen = {
        (piece.declared.key, piece.subject)
        for piece in pieces
        if piece.candidate is not None and _cites(citations, piece.candidate.sequence_number)
    }
    return [piece for piece in found if (piece.declared.key, piece.subject) not in seen]


def _cites(citations: list[Cited], sequence_number: int) -> bool:
    for citation in citations:  # noqa: SIM110  # compiled, a loop over a list takes a fraction of a generator
        if citation.sequence_number == sequence_number:
            return True
    return False


def hint(unmet: Sequence[Piece], pieces: Iterable[Piece], *, retryable: bool) -> RetryHint:
    """Return the retry hint that names every unmet requirement, each once (seeds 002 §6.3).

    Where several are about one key of one subject, one row asks for what satisfies them all; several rows only where no one
    source would do. The row's state is the first thing that is wrong. `pieces` are all requirements: of an optional fact that is
    absent too little must not come by what the hint asks for.
    """
    asked: dict[tuple[str, str], list[_Row]] = {}
    for piece in unmet:
        row = _Row(piece.state, piece.declared.min_trust, piece.max_age_ms, piece.declared.sources)
        asked.setdefault((piece.declared.key, piece.subject), []).append(row)
    absent = [piece for piece in pieces if piece.candidate is None and not piece.state]
    rows: list[FactRequirement] = []
    for (key, subject), of_key in asked.items():
        limits = [piece for piece in absent if piece.declared.key == key and piece.subject == subject]
        for row in _merged(of_key) if len(of_key) > 1 else of_key:
            within = [piece for piece in limits if _share(row.sources, piece.declared.sources)]
            rows.append(
                FactRequirement(
                    key=key,
                    subject=subject,
                    state=row.state,
                    required_trust_tier=min([row.min_trust, *(piece.declared.min_trust for piece in within)]),  # type: ignore[arg-type]
                    max_age_ms=min([row.max_age_ms, *(piece.max_age_ms for piece in within)]),
                    sources=sorted(row.sources),
                )
            )
    answer = RetryHint(retryable=retryable, fact_requirements=rows)
    if rows:
        answer.missing_fact_keys.extend(dict.fromkeys(row.key for row in rows))
        answer.required_trust_tier = min(row.required_trust_tier for row in rows)
        answer.preferred_sources.extend(sorted({source for row in rows for source in row.sources}))
        answer.max_observation_age_ms = min(row.max_age_ms for row in rows)
    return answer


class _Row(NamedTuple):
    """What is asked of a key and subject, apart from their names."""

    state: FactRequirementState.ValueType
    min_trust: int
    max_age_ms: int
    sources: frozenset[str]  # empty: any


def _merged(asked: Sequence[_Row]) -> list[_Row]:
    """Return few rows that together ask for all that is asked: who gets what one says has what each of those in it wants."""
    rows: list[_Row] = []
    # Those that name sources first: who takes any then joins the first of them.
    for one in sorted(asked, key=lambda row: not row.sources):
        for index, row in enumerate(rows):
            if _share(row.sources, one.sources):
                rows[index] = _Row(
                    min(row.state, one.state, key=_PRECEDENCE.index),
                    min(row.min_trust, one.min_trust),
                    min(row.max_age_ms, one.max_age_ms),
                    row.sources & one.sources if one.sources else row.sources,
                )
                break
        else:
            rows.append(one)
    return rows


def _share(sources: frozenset[str], others: frozenset[str]) -> bool:
    """Whether one source can be accepted by both; empty: any is."""
    return not sources or not others or not sources.isdisjoint(others)


def citations_of(asked: Proposed, known: Mapping[int, Cited]) -> tuple[list[Cited], list[Citation]]:
    """Return what the proposal cites, and what is no FACT or OBSERVATION of the log under both names."""
    found: list[Cited] = []
    unknown: list[Citation] = []
    for number, event_id in asked.citations:
        event = known.get(number)
        if event is None or event.event_id != event_id or not event.keys:
            unknown.append((number, event_id))
        else:
            found.append(event)
    return found, unknown


def _fresh_until_ms(candidate: Candidate, max_age_ms: int) -> int:
    limit_ms = candidate.max_age_ms if 0 < candidate.max_age_ms < max_age_ms else max_age_ms
    return min(candidate.aged_from_ms + limit_ms, TIME_MS_MAX)


def _speaks_before(candidate: Candidate, other: Candidate) -> bool:
    if candidate.trust_tier != other.trust_tier:
        return candidate.trust_tier < other.trust_tier
    return (candidate.stated_at_ms, candidate.sequence_number) > (other.stated_at_ms, other.sequence_number)
