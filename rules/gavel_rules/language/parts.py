"""The parts of a rule set document, as an author writes them: keys, types, names, limits, defaults (docs/rule-language.md).

Each part is a pydantic model, and so are the editor's schemas made from it. A model says what form a part has and nothing
else: how parts refer to each other is looked at by `document`, what their expressions mean by `checking`.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, WithJsonSchema

from gavel_rules.limits import ACTION_TYPE_LENGTH_MAX, CONTEST_WINDOW_MS_MAX, DOTTED_NAME, FACT_KEY_LENGTH_MAX, VERSION_LENGTH_MAX
from gavel_rules.values import INTEGER_MAX

RULES_MAX: Final = 2_000
VARIABLES_MAX: Final = 200
DERIVATIONS_MAX: Final = 200
RULES_PER_ACTION_MAX: Final = 500
ACTIONS_MAX: Final = 200
FACTS_PER_ACTION_MAX: Final = 64
SOURCES_PER_FACT_MAX: Final = 32
CONDITION_LENGTH_MAX: Final = 8 * 1024
DESCRIPTION_LENGTH_MAX: Final = 4 * 1024
DURATION_MS_MAX: Final = 10 * 365 * 24 * 60 * 60 * 1000
ATTEMPTS_MAX: Final = 100
VERSIONS_MAX: Final = 32
COMPENSATION_PARAMS_MAX: Final = 64
REJECTION_LIMIT_MAX: Final = 1_000

DECISION_TTL_MS_DEFAULT: Final = 60_000


Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.-]{1,128}$")]
# What an envelope can carry: an action or a key of another form could never be proposed or published.
ActionType = Annotated[str, StringConstraints(pattern=f"^{DOTTED_NAME}$", max_length=ACTION_TYPE_LENGTH_MAX)]
FactKey = Annotated[str, StringConstraints(pattern=f"^{DOTTED_NAME}$", max_length=FACT_KEY_LENGTH_MAX)]
Milliseconds = Annotated[int, Field(gt=0, le=DURATION_MS_MAX)]
RejectionLimit = Annotated[int, Field(ge=1, le=REJECTION_LIMIT_MAX)]
# What a VersionBinding can carry; one version, or all that will do.
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
Condition = Annotated[str, StringConstraints(min_length=1, max_length=CONDITION_LENGTH_MAX)]


class Part(BaseModel):
    """A mapping of a document: no key but these, no value turned into another type."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, use_attribute_docstrings=True)


class FactPart(Part):
    """A declared fact."""

    key: FactKey
    """The fact's key, e.g. order.status."""
    subject: Condition | None = None
    """Whose fact: CEL over subject, params and other facts that gives "type/id". Default: the proposal's subject."""
    type: Literal["string", "number", "integer", "boolean"]
    """Values of another type do not count."""
    min_trust: Annotated[int, Field(ge=1, le=3)] = 1
    """The least trusted tier that will do: 1 facts, 2 observations with evidence, 3 any observation."""
    max_age_ms: Milliseconds
    """The oldest it may be, in milliseconds."""
    sources: Annotated[list[Annotated[str, StringConstraints(min_length=1, max_length=128)]], Field(max_length=SOURCES_PER_FACT_MAX)] = []
    """Whose word counts: producers of facts, tools of observations. Empty: anybody's."""
    optional: bool = False
    """Whether it may be absent; conditions then read it under has()."""


class RetryPart(Part):
    """How executors may retry (seeds 002 §7.1)."""

    max_attempts: Annotated[int, Field(ge=1, le=ATTEMPTS_MAX)] = 1
    """Attempts in all."""
    backoff_initial_ms: Annotated[int, Field(ge=0, le=DURATION_MS_MAX)] = 500
    """Pause before the second attempt, in milliseconds."""
    backoff_multiplier: Annotated[float, Field(ge=1, le=100)] = 2.0
    """What the pause grows by."""
    backoff_max_ms: Annotated[int, Field(ge=0, le=DURATION_MS_MAX)] = 30_000
    """The longest pause, in milliseconds."""
    human_takeover_after_ms: Milliseconds = 600_000
    """How long after a lapsed lease a person is called while attempts are left, in milliseconds."""


class VersionsPart(Part):
    """Versions that a proposal has to be bound to (seeds 000 §3.1); a field without one is not looked at."""

    execution_version: Versions | None = None
    """Of the code that ran."""
    planner_version: Versions | None = None
    """Of the planner."""
    tool_registry_version: Versions | None = None
    """Of the set of tools."""
    schema_version: Versions | None = None
    """Of the schema of the producer's own state."""


class CompensationPart(Part):
    """The action that makes a half-done execution good, with CEL for each of its params."""

    action: ActionType
    """The action that compensates; it may belong to another rule set."""
    params: Annotated[dict[str, Condition], Field(max_length=COMPENSATION_PARAMS_MAX)] = {}
    """Its params: CEL over `execution` and `params`."""


class RejectionLimitsPart(Part):
    """Rejections in a row before a person is called, for each class of reason codes."""

    evidence: RejectionLimit | None = None
    """Of refusals for lack of evidence."""
    policy: RejectionLimit | None = None
    """Of refusals by rules."""
    conflict: RejectionLimit | None = None
    """Of refusals because of other proposals."""


class ActionPart(Part):
    """An action that the rule set governs."""

    params: dict[str, Any]
    """JSON Schema 2020-12 of the proposal's params; every property that a condition reads has a type here."""
    facts: Annotated[dict[str, FactPart], Field(max_length=FACTS_PER_ACTION_MAX)] = {}
    """The evidence that the rules see, by the name that conditions give it."""
    conflict_key: Condition = "subject"
    """What only one live approval may hold: CEL that gives a string."""
    decision_ttl_ms: Milliseconds = DECISION_TTL_MS_DEFAULT
    """How long after an approval it may be started, in milliseconds."""
    rejection_limit: RejectionLimit | None = None
    """Rejections in a row of a trace before a person is called. Default: 3."""
    rejection_limits: RejectionLimitsPart | None = None
    """Rejections in a row of one class before a person is called: such a class counts by itself, `rejection_limit` is for the rest."""
    score: Condition | None = None
    """What ranks proposals that compete, the highest wins: CEL, a double. Default: by priority, risk, cost and evidence."""
    contest_window_ms: Annotated[int, Field(ge=0, le=CONTEST_WINDOW_MS_MAX)] = 0
    """How long proposals are waited for that compete for a free conflict key, in milliseconds, at most a day. 0: not at all."""
    compensation: CompensationPart | None = None
    """What makes a half-done execution good; without it a person is called."""
    retry: RetryPart = RetryPart()
    """How executors may try again. Default: not at all."""
    on_version_mismatch: Literal["ignore", "warn", "fail"] | None = None
    """What becomes of a proposal that is bound to other versions than those under `versions`."""
    versions: VersionsPart = VersionsPart()
    """The versions that a proposal has to be bound to."""


class RulePart(Part):
    """One rule."""

    id: Name
    """Unique in the rule set."""
    action: ActionType
    """One of the actions above."""
    priority: Annotated[int, Field(ge=1, le=65_535)]
    """Unique among the rules of the action; of those that match, the highest decides."""
    when: Condition
    """The condition: CEL that gives a bool."""
    effect: Literal["approve", "reject", "review"]
    """What the rule says."""
    reason_code: Annotated[str, StringConstraints(pattern=r"^[A-Z][A-Z0-9_]{0,127}$")] | None = None
    """What agents react to, like ORDER_CANCELLED. With reject and review, and only with them."""


class OnPart(Part):
    """Which reports a derivation is about."""

    action: ActionType
    """The action that was carried out."""
    status: Literal["SUCCESS", "FAILED", "PARTIAL", "TIMEOUT", "ABORTED"]
    """How it ended."""


class DerivationPart(Part):
    """A fact that follows from the report of an execution (seeds 002 §7.2)."""

    id: Name
    """Unique among the derivations; the facts bear it."""
    version: Annotated[int, Field(ge=1, le=INTEGER_MAX)]
    """Raise it when the value changes; the facts bear it."""
    on: OnPart
    """Which reports the fact follows from."""
    key: FactKey
    """Key of the fact; its subject is the decision's."""
    value: Condition
    """Its value: CEL that gives a string, number or boolean."""


class RuleSetPart(Part):
    """A whole document."""

    gavel: Literal["v1"]
    """Version of the language."""
    rule_set: Name
    """The policy id."""
    version: Annotated[int, Field(ge=1, le=INTEGER_MAX)]
    """A deployed version never changes: another text needs another version."""
    description: Annotated[str, StringConstraints(max_length=DESCRIPTION_LENGTH_MAX)] = ""
    """For people."""
    actions: Annotated[dict[ActionType, ActionPart], Field(min_length=1, max_length=ACTIONS_MAX)]
    """What the rule set governs, by action type."""
    rules: Annotated[list[RulePart], Field(min_length=1, max_length=RULES_MAX)]
    """The rules of all actions."""
    derivations: Annotated[list[DerivationPart], Field(max_length=DERIVATIONS_MAX)] = []
    """Facts that follow from reports of executions."""
    variables: Annotated[dict[str, Condition], Field(max_length=VARIABLES_MAX)] = {}
    """Named CEL expressions for use in other expressions."""
