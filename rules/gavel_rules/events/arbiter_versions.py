"""The arbiter versions that this build implements, and everything in which they differ.

The log of a bus records its arbiter version, in BusOpened and ArbiterVersionChanged, and the bus is decided and replayed with the semantics
of that version, also by later builds. Everything that differs between versions is an attribute or a method of `Semantics`; no other module
compares version numbers.

CHANGES tells what changed with each version.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from gavel.v1 import common_pb2
from gavel.v1.common_pb2 import Producer

from gavel_rules.events.kinds import GAVEL, producer_name

# The version of new buses. A change that alters an outcome or an emitted event needs a new one, unless this one is in development.
ARBITER_VERSION: Final = 3


# What each version changed for decisions, for people who upgrade a bus. Version 3 is in development: it may change until it is released.
CHANGES: Final[Mapping[int, tuple[str, ...]]] = {
    3: (
        "rejections, the open review and the last refusal of a trace are those of each producer; in version 2, of all producers together",
        "refusals have remedies; reason codes and effects are also enums",
        "starts and renewals have the event_id that the caller chose, and renewals are named ExecutionRenewed",
        "grants bind, events name their caller, and attempts belong to their caller",
        "rule sets say who resolves reviews",
        "with authentication an observation is tier 2 only if another principal witnessed its tool result",
        "subjects of templates may have any characters",
        "the traces in which refusals count are limited",
        "the bus has a registry of tools; tool calls have an execution_id of their own and name their schemas",
        "a contradiction between readings of a tool result lasts as long as one of them is evidence",
        "traces are bound to versions, and drift is noted",
        "derivations read facts and counters, and name subjects",
        "rule sets that share an action and read counters in its score agree on the definitions and keys of these counters",
        "counters and facts of many subjects read integers as declared, and retractions do not count",
        "a proposal with a projection_version is refused if an execution of a governed action on its subject has ended since",
        "a pattern is not searched in a text that is longer than the maxLength beside it, and is no further violation of such a text",
        "a producer has a quarter of the bytes of a contest, and what a candidate and the events that it cites may take is limited",
        "the limit on the shadows of an action counts those that watch it because the active version of their rule set governs it",
        "an execution_id may be used again once the trace of its call has lapsed, also before the next event",
        "a counter may have as many groups with an event that it could not count as its groups_max; in version 2, 100",
        "a proposal with a projection_version is not refused for a later value of a tier that does not suffice for its fact",
        "an agent records tool calls of an attempt only if its caller began the attempt",
    ),
}


class Semantics:
    """The semantics of one arbiter version."""

    def __init__(
        self,
        arbiter_version: int,
        *,
        shares_refusals: bool,
        has_remedies: bool,
        has_request_ids: bool,
        attests: bool,
        has_review_policies: bool,
        requires_witness: bool,
        has_unicode_subjects: bool,
        limits_refused_traces: bool,
        has_tools: bool,
        keeps_readings: bool,
        pairs_tool_calls: bool,
        binds_versions: bool,
        derives_from_evidence: bool,
        compares_counters: bool,
        reads_as_declared: bool,
        sees_executions: bool,
        searches_long_texts: bool,
        limits_candidates: bool,
        forgets_in_steps: bool,
        limits_all_shadows: bool,
        enters_faults: bool,
        ignores_lower_tiers: bool,
    ) -> None:
        self.arbiter_version: Final = arbiter_version
        # Whether refusals have remedies, and reason codes and effects are enums.
        self.has_remedies: Final = has_remedies
        # Whether starts and renewals have the event_id that the caller chose, and differ in their names.
        self.has_request_ids: Final = has_request_ids
        # Whether events name the authenticated caller, and grants can be deployed and are enforced.
        self.attests: Final = attests
        # Whether a rule set says who resolves reviews, and people may comment on them.
        self.has_review_policies: Final = has_review_policies
        # Whether authenticated observations are tier 2 only if another principal witnessed the tool result.
        self.requires_witness: Final = requires_witness
        # Whether a subject template may give a subject with spaces and characters beyond ASCII.
        self.has_unicode_subjects: Final = has_unicode_subjects
        # Whether a bus forgets refusals beyond REFUSED_TRACES_MAX traces.
        self.limits_refused_traces: Final = limits_refused_traces
        # Whether the bus has a registry of tools.
        self.has_tools: Final = has_tools
        # Whether readings of a tool result are remembered as long as one of them is evidence, even if the trace has lapsed or another
        # result has the event_id. A result then has one trace.
        self.keeps_readings: Final = keeps_readings
        # Whether every tool call has an execution_id that no other call has, and a result of another tool is not evidence.
        self.pairs_tool_calls: Final = pairs_tool_calls
        # Whether a trace is bound to the versions that its events name first, and decisions and starts warn of drift.
        self.binds_versions: Final = binds_versions
        # Whether derivations may read facts and counters, and name the subject of their fact.
        self.derives_from_evidence: Final = derives_from_evidence
        # Whether scores that read counters are compared by the definitions and keys of these, not by their names.
        self.compares_counters: Final = compares_counters
        # Whether counters and facts of many subjects read integers as such, and counters take no retraction for a value.
        self.reads_as_declared: Final = reads_as_declared
        # Whether the end of an execution on a proposal's subject is a change of the projection that the proposal was made on.
        self.sees_executions: Final = sees_executions
        # Whether a text that is longer than its maxLength also violates a pattern beside that.
        self.searches_long_texts: Final = searches_long_texts
        # Whether the size of a candidate, and of all those of a producer in a contest, is limited.
        self.limits_candidates: Final = limits_candidates
        # Whether one event forgets only some of the traces that have lapsed.
        self.forgets_in_steps: Final = forgets_in_steps
        # Whether the limit of shadows also holds for actions that only the active version of a shadow's rule set governs.
        self.limits_all_shadows: Final = limits_all_shadows
        # Whether an event that a group of a counter lacks is an entry in a group of its own: `state.counters.faulty_group`.
        self.enters_faults: Final = enters_faults
        # Whether a later value of a tier that does not suffice for its fact leaves the projection that a proposal was made on unchanged.
        self.ignores_lower_tiers: Final = ignores_lower_tiers
        # Gavel's own producers. Their version is that of the semantics, so every build with these semantics records the same ones.
        version = str(arbiter_version)
        self.arbitrator: Final = Producer(type=common_pb2.PRODUCER_TYPE_ARBITRATOR, id=GAVEL, version=version)
        self.system: Final = Producer(type=common_pb2.PRODUCER_TYPE_SYSTEM, id=GAVEL, version=version)
        self.arbitrator_fragment: Final = self.arbitrator.SerializeToString(deterministic=True)
        self.system_fragment: Final = self.system.SerializeToString(deterministic=True)
        self._shares_refusals: Final = shares_refusals

    def refusals_key(self, producer_type: int, producer_id: str) -> str:
        """Return the key, within a trace, of the refusals that count against a producer."""
        return "" if self._shares_refusals else producer_name(producer_type, producer_id)


SEMANTICS: Final[Mapping[int, Semantics]] = {
    2: Semantics(
        2,
        shares_refusals=True,
        has_remedies=False,
        has_request_ids=False,
        attests=False,
        has_review_policies=False,
        requires_witness=False,
        has_unicode_subjects=False,
        limits_refused_traces=False,
        has_tools=False,
        keeps_readings=False,
        pairs_tool_calls=False,
        binds_versions=False,
        derives_from_evidence=False,
        compares_counters=False,
        reads_as_declared=False,
        sees_executions=False,
        searches_long_texts=True,
        limits_candidates=False,
        forgets_in_steps=False,
        limits_all_shadows=False,
        enters_faults=False,
        ignores_lower_tiers=False,
    ),
    3: Semantics(
        3,
        shares_refusals=False,
        has_remedies=True,
        has_request_ids=True,
        attests=True,
        has_review_policies=True,
        requires_witness=True,
        has_unicode_subjects=True,
        limits_refused_traces=True,
        has_tools=True,
        keeps_readings=True,
        pairs_tool_calls=True,
        binds_versions=True,
        derives_from_evidence=True,
        compares_counters=True,
        reads_as_declared=True,
        sees_executions=True,
        searches_long_texts=False,
        limits_candidates=True,
        forgets_in_steps=True,
        limits_all_shadows=True,
        enters_faults=True,
        ignores_lower_tiers=True,
    ),
}
LATEST: Final = SEMANTICS[ARBITER_VERSION]


def is_implemented(arbiter_version: int) -> bool:
    """Return whether this build implements an arbiter version."""
    return arbiter_version in SEMANTICS


def semantics_of(arbiter_version: int) -> Semantics:
    """Return the semantics of an arbiter version; the latest for one that this build can only read."""
    return SEMANTICS.get(arbiter_version, LATEST)


def implemented_versions() -> str:
    """Return the implemented versions for a message, e.g. "2 and 3"."""
    return " and ".join(map(str, sorted(SEMANTICS)))
