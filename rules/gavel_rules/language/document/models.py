"""Pydantic models of the parts of a rule set document: keys, types, names, limits and defaults (docs/rule-language.md).

Editors' schemas are generated from these models. A model describes the form of one part. `reader` checks how parts refer to each
other, and `action_checker` checks their expressions.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, ValidationError, WithJsonSchema

from gavel_rules.limits import (
    ACTION_TYPE_LENGTH_MAX,
    CONTEST_WINDOW_MS_MAX,
    DOTTED_NAME,
    FACT_KEY_LENGTH_MAX,
    REVIEW_GROUPS_MAX,
    REVIEW_QUORUM_MAX,
    TEXT_BYTES_MAX,
    VERSION_LENGTH_MAX,
)
from gavel_rules.values import INTEGER_MAX

RULES_MAX: Final = 2_000
VARIABLES_MAX: Final = 200
DERIVATIONS_MAX: Final = 200
DERIVATION_FACTS_BYTES_MAX: Final = 262_144
RULES_PER_ACTION_MAX: Final = 500
ACTIONS_MAX: Final = 200
FACTS_PER_ACTION_MAX: Final = 64
SOURCES_PER_FACT_MAX: Final = 32
FACT_SUBJECTS_MAX: Final = 64
CONDITION_LENGTH_MAX: Final = 8 * 1024
DESCRIPTION_LENGTH_MAX: Final = 4 * 1024
DURATION_MS_MAX: Final = 10 * 365 * 24 * 60 * 60 * 1000
# Pauses between attempts are int32 in the contract: almost 25 days.
BACKOFF_MS_MAX: Final = 2**31 - 1
ATTEMPTS_MAX: Final = 100
VERSIONS_MAX: Final = 32
COUNTERS_MAX: Final = 128
COUNTER_ACTIONS_MAX: Final = 64
COUNTER_SCALE_MAX: Final = 9
COUNTER_GROUPS_MAX: Final = 1_000_000
COUNTER_ENTRIES_MAX: Final = 10_000_000
COUNTER_DISTINCT_MAX: Final = 100_000
COMPENSATION_PARAMS_MAX: Final = 64
REJECTION_LIMIT_MAX: Final = 1_000
DETAILS_MAX: Final = 16
USE_MAX: Final = 16
SHARED_MAX: Final = 200
CONSTANTS_MAX: Final = 200
IMPORTS_MAX: Final = 16
ZONES_MAX: Final = 16
ZONE_OFFSETS_MAX: Final = 200
CALENDARS_MAX: Final = 16
DATES_MAX: Final = 400

LANGUAGE_VERSIONS: Final = ("v1", "v2")
DECISION_TTL_MS_DEFAULT: Final = 60_000


Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.-]{1,128}$")]
# The forms that envelopes accept. An action of another form could never be proposed, and a key of another form never published.
ActionType = Annotated[str, StringConstraints(pattern=f"^{DOTTED_NAME}$", max_length=ACTION_TYPE_LENGTH_MAX)]
FactKey = Annotated[str, StringConstraints(pattern=f"^{DOTTED_NAME}$", max_length=FACT_KEY_LENGTH_MAX)]
Milliseconds = Annotated[int, Field(gt=0, le=DURATION_MS_MAX)]
RejectionLimit = Annotated[int, Field(ge=1, le=REJECTION_LIMIT_MAX)]
# The form of the versions in a VersionBinding. `Versions` is one version, or a list of all accepted ones.
Version = Annotated[str, StringConstraints(pattern=r"^[\x20-\x7e]+$", min_length=1, max_length=VERSION_LENGTH_MAX)]
Versions = Annotated[
    list[Version],
    Field(min_length=1, max_length=VERSIONS_MAX),
    BeforeValidator(lambda value: [value] if isinstance(value, str) else value),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "minLength": 1, "maxLength": VERSION_LENGTH_MAX},
                {"type": "array", "items": {"type": "string", "minLength": 1, "maxLength": VERSION_LENGTH_MAX}, "minItems": 1},
            ]
        }
    ),
]
_MINUTE: Final = r"[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])T([01][0-9]|2[0-3]):[0-5][0-9]:00Z"
ZoneOffset = Annotated[str, StringConstraints(pattern=f"^{_MINUTE} [+-](0[0-9]|1[0-4]):[0-5][0-9]$")]
Date = Annotated[str, StringConstraints(pattern=r"^[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])$")]
DetailName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,63}$")]
DocumentDigest = Annotated[str, StringConstraints(pattern=r"^sha256:[0-9a-f]{64}$")]
GroupName = Annotated[str, StringConstraints(pattern=r"^[\x21-\x7e]{1,128}$")]
ActionPattern = Annotated[str, StringConstraints(pattern=f"^({DOTTED_NAME}|({DOTTED_NAME}\\.)?\\*)$", max_length=ACTION_TYPE_LENGTH_MAX)]
ActionPatterns = Annotated[
    list[ActionPattern],
    Field(min_length=1, max_length=COUNTER_ACTIONS_MAX),
    BeforeValidator(lambda value: [value] if isinstance(value, str) else value),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 1}]}),
]
GroupNames = Annotated[list[GroupName], Field(max_length=REVIEW_GROUPS_MAX)]
ExpressionText = Annotated[str, StringConstraints(min_length=1, max_length=CONDITION_LENGTH_MAX)]


class Part(BaseModel):
    """A mapping of a document: unknown keys are refused, and values are not converted."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, use_attribute_docstrings=True)


class FactPart(Part):
    """A declared fact."""

    key: FactKey
    """The fact's key, e.g. order.status."""
    subject: ExpressionText | None = None
    """The fact's subject: CEL over subject, params and other facts that gives "type/id". Default: the proposal's subject."""
    subjects: ExpressionText | None = None
    """The facts of many subjects: CEL that gives a list of "type/id". Conditions read the list of their values. Needs `gavel: v2`."""
    max: Annotated[int, Field(ge=1, le=FACT_SUBJECTS_MAX)] | None = None
    """With `subjects`, and required then: how many there may be. More are refused."""
    type: Literal["string", "number", "integer", "boolean"] | None = None
    """The type of its value. A value of another type does not count. Required unless `value` says it."""
    value: dict[str, Any] | None = None
    """JSON Schema 2020-12 of its value, for evidence with structure. A value that does not fit does not count. Needs `gavel: v2`."""
    max_length: Annotated[int, Field(ge=1, le=TEXT_BYTES_MAX)] | None = None
    """The greatest length of a string, in characters. A longer one does not count. Bounds the cost of rules that search it."""
    min_trust: Annotated[int, Field(ge=1, le=3)] = 1
    """The least trusted tier that is accepted: 1 facts, 2 observations with evidence, 3 any observation."""
    max_age_ms: Milliseconds
    """The greatest age that is accepted, in milliseconds."""
    sources: Annotated[list[Annotated[str, StringConstraints(min_length=1, max_length=128)]], Field(max_length=SOURCES_PER_FACT_MAX)] = []
    """The sources that are accepted: producers of facts, tools of observations. Empty: any."""
    optional: bool = False
    """Whether the fact may be absent; conditions then read it under has()."""


class RetryPart(Part):
    """How executors may retry (constitution §7.1)."""

    max_attempts: Annotated[int, Field(ge=1, le=ATTEMPTS_MAX)] = 1
    """The total number of attempts."""
    backoff_initial_ms: Annotated[int, Field(ge=0, le=BACKOFF_MS_MAX)] = 500
    """Pause before the second attempt, in milliseconds."""
    backoff_multiplier: Annotated[float, Field(ge=1, le=100)] = 2.0
    """The factor by which the pause grows."""
    backoff_max_ms: Annotated[int, Field(ge=0, le=BACKOFF_MS_MAX)] = 30_000
    """The longest pause, in milliseconds."""
    human_takeover_after_ms: Milliseconds = 600_000
    """If attempts are left, how long after the lapse of a lease a human review is requested, in milliseconds."""


class VersionsPart(Part):
    """The versions to which a proposal must be bound (constitution 000 §3.1). A field without versions is not checked."""

    execution_version: Versions | None = None
    """Version of the code that ran."""
    planner_version: Versions | None = None
    """Version of the planner."""
    tool_registry_version: Versions | None = None
    """Version of the set of tools."""
    schema_version: Versions | None = None
    """Version of the schema of the producer's own state."""


class CompensationPart(Part):
    """The action that repairs a half-done execution, with a CEL expression for each of its params."""

    action: ActionType
    """The action that compensates; it may belong to another rule set."""
    params: Annotated[dict[str, ExpressionText], Field(max_length=COMPENSATION_PARAMS_MAX)] = {}
    """The params of the compensating action, each a CEL expression over `execution` and `params`."""


class RejectionLimitsPart(Part):
    """The number of consecutive rejections at which a human review is requested, for each class of reason codes."""

    evidence: RejectionLimit | None = None
    """The limit of rejections for lack of evidence."""
    policy: RejectionLimit | None = None
    """The limit of rejections by rules."""
    conflict: RejectionLimit | None = None
    """The limit of rejections because of other proposals."""


class ReviewPart(Part):
    """Who has to resolve a review, and by when."""

    quorum: Annotated[int, Field(ge=1, le=REVIEW_QUORUM_MAX)] = 1
    """The number of different persons that have to approve. One rejection ends the review."""
    groups: GroupNames = []
    """The groups whose members may vote. Empty: everybody who may review the action."""
    separation: bool = False
    """Whether the proposer, and the principals that it acts for or that act for it, may not vote."""
    escalate_after_ms: Milliseconds | None = None
    """How long after it opened an unresolved review is escalated, in milliseconds. Default: never."""
    escalate_to: GroupNames = []
    """The groups whose members may vote too once the review is escalated."""


class ActionPart(Part):
    """An action that the rule set governs."""

    use: Annotated[list[Name], Field(max_length=USE_MAX)] = []
    """Names of shared parts that the action has. What the action declares itself takes precedence. Needs `gavel: v2`."""
    params: dict[str, Any]
    """JSON Schema 2020-12 of the proposal's params; it gives a type to every property that a condition reads."""
    facts: Annotated[dict[str, FactPart], Field(max_length=FACTS_PER_ACTION_MAX)] = {}
    """The evidence that the rules read, by its name in conditions."""
    conflict_key: ExpressionText = "subject"
    """The conflict key: CEL that gives a string. Only one live approval may hold it."""
    decision_ttl_ms: Milliseconds = DECISION_TTL_MS_DEFAULT
    """How long after its approval the action may be started, in milliseconds."""
    rejection_limit: RejectionLimit | None = None
    """The number of consecutive rejections of a producer in a trace at which a human review is requested. Default: 3."""
    rejection_limits: RejectionLimitsPart | None = None
    """Limits of single classes of rejections. A class with a limit counts by itself; `rejection_limit` covers the others."""
    score: ExpressionText | None = None
    """The score of a competing proposal: CEL that gives a double. The highest wins. Default: by priority, risk, cost and evidence."""
    contest_window_ms: Annotated[int, Field(ge=0, le=CONTEST_WINDOW_MS_MAX)] = 0
    """How long to wait for proposals that compete for a free conflict key, in milliseconds, at most a day. 0: not at all."""
    compensation: CompensationPart | None = None
    """The action that repairs a half-done execution. Without it a human review is requested."""
    retry: RetryPart = RetryPart()
    """How executors may retry. Default: not at all."""
    review: ReviewPart | None = None
    """Who has to resolve reviews of the action, and by when. Default: one person who may review it."""
    on_version_mismatch: Literal["ignore", "warn", "fail"] | None = None
    """The reaction to other versions: those under `versions` (default: fail), and drift (default: warn)."""
    versions: VersionsPart = VersionsPart()
    """The versions to which a proposal must be bound."""


class RulePart(Part):
    """One rule."""

    id: Name
    """The rule's id, unique in the rule set."""
    action: ActionType | None = None
    """The action that the rule decides on: one of those under `actions`."""
    actions: ActionPatterns | None = None
    """Instead of `action`: several actions, or patterns such as "refund.*". Needs `gavel: v2`."""
    priority: Annotated[int, Field(ge=1, le=65_535)]
    """The rule's priority, unique among the rules of its action. Of the rules that match, the one with the highest priority decides."""
    when: ExpressionText
    """The condition: CEL that gives a bool."""
    effect: Literal["approve", "reject", "review"]
    """The rule's outcome."""
    reason_code: Annotated[str, StringConstraints(pattern=r"^[A-Z][A-Z0-9_]{0,127}$")] | None = None
    """The code that agents react to, e.g. ORDER_CANCELLED. Required with reject and review, and only allowed with them."""
    review: ReviewPart | None = None
    """Who has to resolve the reviews that this rule asks for, instead of the action's `review`. Only allowed with effect review."""
    detail: Annotated[dict[DetailName, ExpressionText], Field(max_length=DETAILS_MAX)] = {}
    """Values that the agent or the person sees in Decision.details: CEL that gives strings, numbers or booleans. Needs `gavel: v2`."""
    retry_after: ExpressionText | None = None
    """When a refused proposal may be tried again: history.NAME.frees(key, amount, limit). Only allowed with effect reject."""


class OnPart(Part):
    """The reports from which a fact is derived."""

    action: ActionType
    """The action that was executed."""
    status: Literal["SUCCESS", "FAILED", "PARTIAL", "TIMEOUT", "ABORTED"]
    """How the execution ended."""


class DerivationPart(Part):
    """A fact that is derived from the report of an execution (constitution §7.2)."""

    id: Name
    """The derivation's id, unique among the derivations. Its facts carry the id."""
    version: Annotated[int, Field(ge=1, le=INTEGER_MAX)]
    """The derivation's version; raise it when `value` changes. Its facts carry the version."""
    on: OnPart
    """The reports from which the fact is derived."""
    key: FactKey
    """The fact's key."""
    subject: ExpressionText | None = None
    """The fact's subject: CEL that gives "type/id". Default: that of the decision. Needs `gavel: v2`."""
    value: ExpressionText
    """The fact's value: CEL that gives a string, number or boolean."""


class ZonePart(Part):
    """A time zone: its offsets from UTC."""

    name: Annotated[str, StringConstraints(max_length=128)] = ""
    """The zone's name, for people, e.g. America/New_York."""
    offsets: Annotated[list[ZoneOffset], Field(min_length=1, max_length=ZONE_OFFSETS_MAX)]
    """The offsets, each with the time from which it holds: "2026-03-08T07:00:00Z -04:00". `gavel rules zones` writes them."""
    until: Annotated[str, StringConstraints(pattern=f"^{_MINUTE}$")]
    """The end of the data. Expressions that need an offset before its beginning or after its end fail."""


class ImportPart(Part):
    """A document of which this one uses constants, variables and shared parts."""

    file: Annotated[str, StringConstraints(min_length=1, max_length=4_096)] = ""
    """The document's file, relative to this one. Gavel's commands read it and bundle it."""
    digest: DocumentDigest
    """The document's digest, which `gavel rules bundle` prints."""


class LibraryPart(Part):
    """A document that others import."""

    gavel: Literal["v2"]
    """Version of the language."""
    library: Name
    """The document's name, for people."""
    description: Annotated[str, StringConstraints(max_length=DESCRIPTION_LENGTH_MAX)] = ""
    """A description for people."""
    constants: Annotated[dict[str, Any], Field(max_length=CONSTANTS_MAX)] = {}
    """Constants, as in a rule set."""
    zones: Annotated[dict[str, ZonePart], Field(max_length=ZONES_MAX)] = {}
    """Time zones, for expressions to use as zones.NAME."""
    calendars: Annotated[dict[str, Annotated[list[Date], Field(max_length=DATES_MAX)]], Field(max_length=CALENDARS_MAX)] = {}
    """Lists of dates, such as holidays, for expressions to read as calendars.NAME."""
    variables: Annotated[dict[str, ExpressionText], Field(max_length=VARIABLES_MAX)] = {}
    """Named CEL expressions, as in a rule set."""
    shared: Annotated[dict[Name, dict[str, Any]], Field(max_length=SHARED_MAX)] = {}
    """Parts of actions, as in a rule set."""


CounterName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]{0,62}$")]
FactKeys = Annotated[
    list[FactKey],
    Field(min_length=1, max_length=COUNTER_ACTIONS_MAX),
    BeforeValidator(lambda value: [value] if isinstance(value, str) else value),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 1}]}),
]


class CalendarPart(Part):
    """A window that begins anew with each unit of the calendar."""

    unit: Literal["hour", "day", "week", "month"]
    """The unit. A week begins on Monday."""
    time_zone: Annotated[str, StringConstraints(pattern=r"^(UTC|[+-](0[0-9]|1[0-4]):[0-5][0-9]|zones\..+)$")] = "UTC"
    """The clock by which the unit begins: UTC, a fixed offset from it such as "+02:00", or a zone of the document such as zones.berlin."""


class CounterPart(Part):
    """A number that Gavel keeps over the events of the log, for conditions to read as history.NAME(key)."""

    of: Literal["approvals", "executions", "proposals", "rejections", "facts", "observations"]
    """The events that are counted. `executions` are reports of attempts."""
    action: ActionPatterns | None = None
    """The actions whose events are counted, or patterns such as "refund.*". Required unless facts or observations are counted."""
    fact: FactKeys | None = None
    """The keys of the facts or observations that are counted."""
    where: ExpressionText | None = None
    """CEL that gives a bool: whether an event is counted. Default: all are."""
    by: ExpressionText | None = None
    """CEL that gives a string: the group that an event belongs to. Default: one group."""
    sum: ExpressionText | None = None
    """CEL that gives a number, which is added up."""
    distinct: ExpressionText | None = None
    """CEL that gives a string: its different values are counted."""
    min: ExpressionText | None = None
    """CEL that gives a number, of which the smallest counts."""
    max: ExpressionText | None = None
    """CEL that gives a number, of which the largest counts."""
    last: ExpressionText | None = None
    """CEL that gives a number, of which the latest counts."""
    scale: Annotated[int, Field(ge=0, le=COUNTER_SCALE_MAX)] = 2
    """The number of decimal places of `sum`, `min`, `max` and `last` of a double. More exact values are rounded up."""
    window_ms: Milliseconds | None = None
    """For how long an event counts after it was recorded, in milliseconds."""
    calendar: CalendarPart | None = None
    """Instead of `window_ms`: an event counts until its hour, day, week or month ends."""
    keep: Literal["reserved"] | None = None
    """Only of approvals. An approval counts while its work may still happen, and for the window after its report. It no longer counts if
    nothing comes of it: it expires, is revoked, fails or is compensated."""
    settle: ExpressionText | None = None
    """With `keep: reserved`: CEL over the report that gives the number that counts from then on. Default: the approved one."""
    groups_max: Annotated[int, Field(ge=1, le=COUNTER_GROUPS_MAX)] = 100_000
    """The greatest number of groups that count at a time. Past it, actions that the counter concerns are refused."""
    entries_max: Annotated[int, Field(ge=1, le=COUNTER_ENTRIES_MAX)] = 1_000_000
    """The greatest number of events that count at a time. Past it, actions that the counter concerns are refused."""
    distinct_max: Annotated[int, Field(ge=1, le=COUNTER_DISTINCT_MAX)] = 1_000
    """The greatest number of different values of a group. Past it, actions that read the group are refused."""


class RuleSetPart(Part):
    """A rule set document."""

    gavel: Literal["v1", "v2"]
    """Version of the language."""
    rule_set: Name
    """The policy id."""
    version: Annotated[int, Field(ge=1, le=INTEGER_MAX)]
    """A deployed version never changes: a new text needs a new version."""
    description: Annotated[str, StringConstraints(max_length=DESCRIPTION_LENGTH_MAX)] = ""
    """A description for people."""
    actions: Annotated[dict[ActionType, ActionPart], Field(min_length=1, max_length=ACTIONS_MAX)]
    """The actions that the rule set governs, by action type."""
    shared: Annotated[dict[Name, dict[str, Any]], Field(max_length=SHARED_MAX)] = {}
    """Parts of actions, by name, for actions to `use`. Needs `gavel: v2`."""
    constants: Annotated[dict[str, Any], Field(max_length=CONSTANTS_MAX)] = {}
    """Numbers, texts, booleans and lists of these, for expressions to read as constants.NAME. Needs `gavel: v2`."""
    zones: Annotated[dict[str, ZonePart], Field(max_length=ZONES_MAX)] = {}
    """Time zones, for expressions to use as zones.NAME. Needs `gavel: v2`."""
    calendars: Annotated[dict[str, Annotated[list[Date], Field(max_length=DATES_MAX)]], Field(max_length=CALENDARS_MAX)] = {}
    """Lists of dates, such as holidays, for expressions to read as calendars.NAME. Needs `gavel: v2`."""
    imports: Annotated[list[ImportPart], Field(max_length=IMPORTS_MAX)] = []
    """Documents whose constants, variables and shared parts this one uses. Needs `gavel: v2`."""
    documents: Annotated[dict[DocumentDigest, LibraryPart], Field(max_length=IMPORTS_MAX)] = {}
    """The imported documents, by digest. Gavel's commands add them."""
    counters: Annotated[dict[CounterName, CounterPart], Field(max_length=COUNTERS_MAX)] = {}
    """Numbers over the history of the bus, by name. Needs `gavel: v2`."""
    rules: Annotated[list[RulePart], Field(min_length=1, max_length=RULES_MAX)]
    """The rules of all actions."""
    derivations: Annotated[list[DerivationPart], Field(max_length=DERIVATIONS_MAX)] = []
    """Facts that are derived from reports of executions."""
    variables: Annotated[dict[str, ExpressionText], Field(max_length=VARIABLES_MAX)] = {}
    """Named CEL expressions for use in other expressions."""


def zones_of(document: RuleSetPart) -> dict[str, ZonePart]:
    """Return the sound zones of a document. Its attributes may be missing, and its parts unread: see `read_document`."""
    zones: dict[str, ZonePart] = {}
    for name, zone in getattr(document, "zones", {}).items():
        try:
            zones[name] = ZonePart.model_validate(zone)
        except ValidationError:
            continue  # reported with the document's form
    return zones


def matches_action(pattern: str, action: str) -> bool:
    """Report whether a pattern covers an action. It is an action type, or a beginning such as "refund.*"."""
    prefix = pattern.removesuffix("*")
    return action == pattern or (prefix != pattern and action.startswith(prefix))


def decides_on(rule: RulePart, action: str) -> bool:
    """Report whether a rule decides on an action. Attributes of the rule may be missing: see `read_document`."""
    if getattr(rule, "action", None) is not None:
        return rule.action == action
    return any(matches_action(pattern, action) for pattern in getattr(rule, "actions", None) or ())


def version_of(document: RuleSetPart) -> int:
    """Return the version of the language. Without a sound one it is the second, which has all names of the first."""
    return 1 if getattr(document, "gavel", "v2") == "v1" else 2
