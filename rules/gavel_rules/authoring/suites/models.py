"""The models of a test case, key by key (docs/rule-tests.md).

`reader` reads suites with these models, and the JSON Schema for editors is generated from them; editors show their docstrings.
`merged_case` builds a case out of layers, and `runner` checks it against a rule set.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, WithJsonSchema

from gavel_rules import limits
from gavel_rules.language.counters.counter import GROUP_LENGTH_MAX
from gavel_rules.language.document.models import ATTEMPTS_MAX, DURATION_MS_MAX, REJECTION_LIMIT_MAX, ActionType, FactKey, Milliseconds
from gavel_rules.values import INTEGER_MAX

EARLIER_MAX: Final = 32
NOW_DEFAULT: Final = "2026-01-01T12:00:00Z"
SUBJECT_DEFAULT: Final = "subject/1"

Subject = Annotated[str, StringConstraints(pattern=f"^{limits.SUBJECT}$")]
ReasonCode = Annotated[str, StringConstraints(pattern=r"^([A-Z][A-Z0-9_]{0,127})?$")]
SourceName = Annotated[str, StringConstraints(pattern=f"^{limits.PRODUCER_ID}$")]
ProducerTypeName = Literal["SENSOR", "API", "DATABASE_SNAPSHOT", "AGENT", "ARBITRATOR", "EXECUTOR", "SYSTEM", "TOOL_RUNTIME"]
GroupName = Annotated[str, StringConstraints(min_length=1, max_length=limits.PRINCIPAL_GROUP_LENGTH_MAX)]
Share = Annotated[float, Field(ge=0, le=1)]
Text = Annotated[str, StringConstraints(max_length=limits.TEXT_BYTES_MAX // 4)]
Version = Annotated[str, StringConstraints(pattern=r"^[\x20-\x7e]*$", max_length=limits.VERSION_LENGTH_MAX)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, use_attribute_docstrings=True)


class FactCase(_Part):
    """Evidence in the log. A bare value stands for {value: …}; null removes the fact."""

    value: Any = None
    """Its value."""
    age_ms: Annotated[int, Field(ge=0, le=DURATION_MS_MAX)] = 0
    """Its age at `now`, in milliseconds. The fact is recorded that long before `now`."""
    key: FactKey | None = None
    """The fact's key. Default: that of the declared fact of this name."""
    subject: Subject | None = None
    """Its subject, "type/id". Default: the subject that the declaration names."""
    source: SourceName | None = None
    """Its source. Default: a source that the declaration accepts."""
    tier: Annotated[int, Field(ge=1, le=3)] | None = None
    """1: a FACT. 2: an OBSERVATION with its tool result. 3: an OBSERVATION without one. Default: the declaration's min_trust."""
    max_age_ms: Annotated[int, Field(ge=0, le=DURATION_MS_MAX)] = 0
    """The limit that a FACT sets for itself, in milliseconds; 0: none."""
    retracted: bool = False
    """Whether the source retracts the key, with a FACT of value null."""


class ProducerCase(_Part):
    """The agent that proposes."""

    id: SourceName = "agent"
    """Its name."""
    version: Version = ""
    """Its version."""
    type: ProducerTypeName = "AGENT"
    """Its type."""
    groups: Annotated[list[GroupName], Field(max_length=limits.PRINCIPAL_GROUPS_MAX)] = []
    """Its verified groups."""


class ProposalCase(_Part):
    """The agent's own estimates and requirements."""

    risk: Share = 0.0
    """The estimated risk, from 0 to 1."""
    cost: Annotated[float, Field(ge=0, le=INTEGER_MAX)] = 0.0
    """The estimated cost, in the unit that the rule set assumes."""
    confidence: Share = 1.0
    """The agent's confidence, from 0 to 1."""
    priority: Annotated[int, Field(ge=-(2**31), le=2**31 - 1)] = 0
    """The priority; a larger number is more urgent."""
    expected_outcome: Text = ""
    """The expected outcome, as free text."""
    max_fact_age_ms: Milliseconds = DURATION_MS_MAX
    """The greatest age of evidence that the proposal accepts, in milliseconds."""
    required_facts: Annotated[list[FactKey], Field(max_length=limits.REQUIRED_FACTS_MAX)] = []
    """Keys of facts that the proposal requires besides the declared facts."""


class TraceCase(_Part):
    """The history of the trace."""

    consecutive_rejections: Annotated[int, Field(ge=0, le=REJECTION_LIMIT_MAX)] = 0
    """The number of proposals of the trace that are rejected before this one. They cite no evidence."""


class VersionBindingCase(_Part):
    """The versions that the proposal was made with."""

    execution_version: Version = ""
    """Version of the code that ran."""
    planner_version: Version = ""
    """Version of the planner."""
    tool_registry_version: Version = ""
    """Version of the set of tools."""
    schema_version: Version = ""
    """Version of the schema of the producer's own state."""


class ErrorCase(_Part):
    """The error that the executor reports."""

    code: Text = ""
    """The error's code, for programs."""
    message: Text = ""
    """The error's message, for people."""


class ExecutionCase(_Part):
    """The execution of an approval. It begins and is reported at the time of the decision."""

    status: Literal["SUCCESS", "FAILED", "PARTIAL", "TIMEOUT", "ABORTED"]
    """How the attempt ended."""
    attempt: Annotated[int, Field(ge=1, le=ATTEMPTS_MAX)] = 1
    """The number of the attempt; the attempts before it FAILED."""
    reason_code: ReasonCode = ""
    """The executor's reason for giving up."""
    result: dict[str, Any] = {}
    """The result that the executor reports."""
    error: ErrorCase = ErrorCase()
    """The error that the executor reports."""
    completed_steps: Annotated[list[Text], Field(max_length=limits.COMPLETED_STEPS_MAX)] = []
    """The steps that were completed."""


class HintCase(_Part):
    """A row of the retry hint. Keys that it does not set are not compared."""

    key: FactKey
    """The fact's key."""
    state: Literal["MISSING", "STALE", "TIER_TOO_LOW", "SOURCE_NOT_ACCEPTED", "SUPERSEDED", "WRONG_TYPE"] | None = None
    """What is wrong with the fact."""
    subject: Subject | None = None
    """The fact's subject."""
    sources: list[SourceName] | None = None
    """Accepted sources, in any order."""


class DerivedCase(_Part):
    """A fact that the rule set derives. Without a value or a subject, any matches."""

    key: FactKey
    """The fact's key."""
    value: Annotated[Any, WithJsonSchema({"type": ["string", "number", "boolean", "null"]})] = None
    """Its value: a string, a number or a boolean."""
    subject: Subject | None = None
    """Its subject."""


class CompensationCase(_Part):
    """The compensation of a partial execution. Keys that it does not set are not compared."""

    action: Annotated[str, StringConstraints(pattern=f"^({limits.DOTTED_NAME})?$", max_length=limits.ACTION_TYPE_LENGTH_MAX)]
    """The action's type. "": nothing is compensated."""
    params: dict[str, Any] | None = None
    """All its params."""


class CounterCase(_Part):
    """An expected number of a counter that the decision reads."""

    counter: Annotated[str, StringConstraints(max_length=128)]
    """The counter's name."""
    key: Annotated[str, StringConstraints(max_length=GROUP_LENGTH_MAX)] | None = None
    """The group. "": that of a counter without groups. Default: any."""
    value: float
    """The number."""


class ExpectCase(_Part):
    """The expected decision. Keys that it does not set are not compared."""

    outcome: Literal["APPROVED", "REJECTED", "NEEDS_HUMAN_REVIEW"]
    """The outcome."""
    reason_code: ReasonCode | None = None
    """The rule's reason code, or one of Gavel's own. "": none."""
    rule_id: Annotated[str, StringConstraints(max_length=128)] | None = None
    """The id of the rule that decides. "": none."""
    matched: list[str] | None = None
    """Ids of all rules that match, in any order."""
    hint: list[HintCase] | None = None
    """All rows of the retry hint, in any order; an empty list: none."""
    retry_after_ms: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = None
    """After how many milliseconds a retry may succeed. 0: the passing of time alone does not help, or nobody can foresee when."""
    counters: list[CounterCase] | None = None
    """All counters that the decision reads, in any order; an empty list: none."""
    warnings: list[str] | None = None
    """Codes of all warnings, in any order."""
    terminal: bool | None = None
    """Whether the refusal is terminal: no proposal can succeed in the present state."""
    conflict_key: str | None = None
    """The conflict key that the approval holds."""
    details: dict[str, Any] | None = None
    """All values that the rule shows with its decision."""
    derived: list[DerivedCase] | None = None
    """All facts that the rule set derives from the report, in any order; an empty list: none."""
    compensation: CompensationCase | None = None
    """The compensation that is approved."""
    review: ReasonCode | None = None
    """The reason code of the review that the report requests. "": none."""


class EarlierCase(_Part):
    """A proposal made before, in a trace of its own. It is a patch of the case: keys that it does not set keep the case's values."""

    age_ms: Annotated[int, Field(ge=0, le=DURATION_MS_MAX)] = 0
    """How long before `now` it is made, in milliseconds. It finds the same facts as the case."""
    action: ActionType | None = None
    """The action's type."""
    subject: Subject = SUBJECT_DEFAULT
    """The subject, "type/id"."""
    producer: ProducerCase = ProducerCase()
    """The agent that proposes."""
    params: dict[str, Any] = {}
    """The action's parameters."""
    proposal: ProposalCase = ProposalCase()
    """The agent's own estimates and requirements."""
    execution: ExecutionCase | None = None
    """Its execution, whose derived facts are in the log. Default: the proposal is not carried out."""
    expect: ExpectCase = ExpectCase(outcome="APPROVED")
    """Its expected decision. Default: it is approved. Its contest must close before the case's own proposal is decided."""


class CasePart(_Part):
    """One case: a proposal, the evidence in the log, and the expected decision."""

    description: Text = ""
    """A description for people."""
    now: Annotated[str, StringConstraints(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,3})?Z$")] = NOW_DEFAULT
    """The time of the decision, RFC 3339 in UTC; quote it in YAML."""
    action: ActionType | None = None
    """The action's type. Default: the only action of the rule set."""
    subject: Subject = SUBJECT_DEFAULT
    """The subject of the proposal, "type/id"."""
    producer: ProducerCase = ProducerCase()
    """The agent that proposes."""
    params: dict[str, Any] = {}
    """The action's parameters."""
    proposal: ProposalCase = ProposalCase()
    """The agent's own estimates and requirements."""
    trace: TraceCase = TraceCase()
    """The history of the trace."""
    version_binding: VersionBindingCase = VersionBindingCase()
    """The versions that the proposal was made with."""
    facts: dict[str, FactCase] = {}
    """The evidence by name: a name that the action declares, or any other name if its `key` is set."""
    cites: list[str] | None = None
    """Names of the facts that the proposal cites. Default: all of them."""
    earlier: Annotated[list[EarlierCase], Field(max_length=EARLIER_MAX)] = []
    """Proposals made before this one, in the order of the list if they have the same age."""
    execution: ExecutionCase | None = None
    """The execution of the approval. Default: the approval is not carried out."""
    expect: ExpectCase
    """The expected decision."""
