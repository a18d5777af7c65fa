"""The parts of a test suite's case: what a case may say, key by key (docs/rule-tests.md).

The models are what suites are read with and what the JSON Schema for editors is made from; their docstrings are what an editor
shows. Nothing here knows how cases are put together out of layers (`suite`), nor what a rule set makes of them (`testing`).
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, WithJsonSchema

from gavel_rules import limits
from gavel_rules.language.parts import ATTEMPTS_MAX, DURATION_MS_MAX, REJECTION_LIMIT_MAX, ActionType, FactKey, Milliseconds
from gavel_rules.values import INTEGER_MAX

EARLIER_MAX: Final = 32
NOW_DEFAULT: Final = "2026-01-01T12:00:00Z"
SUBJECT_DEFAULT: Final = "subject/1"

Subject = Annotated[str, StringConstraints(pattern=f"^{limits.SUBJECT}$")]
ReasonCode = Annotated[str, StringConstraints(pattern=r"^([A-Z][A-Z0-9_]{0,127})?$")]
SourceName = Annotated[str, StringConstraints(pattern=f"^{limits.PRODUCER_ID}$")]
Share = Annotated[float, Field(ge=0, le=1)]
Text = Annotated[str, StringConstraints(max_length=limits.TEXT_BYTES_MAX // 4)]
Version = Annotated[str, StringConstraints(pattern=r"^[\x20-\x7e]*$", max_length=limits.VERSION_LENGTH_MAX)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, use_attribute_docstrings=True)


class FactCase(_Part):
    """One piece of evidence in the log. A bare value stands for {value: …}; null: it is not there."""

    value: Any = None
    """What it says."""
    age_ms: Annotated[int, Field(ge=0, le=DURATION_MS_MAX)] = 0
    """How old it is at `now`, in milliseconds: it is recorded that long before."""
    key: FactKey | None = None
    """The fact's key. Default: that of the declared fact of this name."""
    subject: Subject | None = None
    """Whose fact, "type/id". Default: the subject that the declaration asks about."""
    source: SourceName | None = None
    """Who says so. Default: a source that the declaration accepts."""
    tier: Annotated[int, Field(ge=1, le=3)] | None = None
    """1: a FACT. 2: an OBSERVATION with its tool result. 3: one without. Default: the declaration's min_trust."""
    max_age_ms: Annotated[int, Field(ge=0, le=DURATION_MS_MAX)] = 0
    """The limit that a FACT sets for itself, in milliseconds; 0: none."""
    retracted: bool = False
    """The source takes the key back: a FACT of value null."""


class ProducerCase(_Part):
    """Who proposes: an agent."""

    id: SourceName = "agent"
    """Its name."""
    version: Version = ""
    """Its version."""


class ProposalCase(_Part):
    """What the agent says of its own proposal."""

    risk: Share = 0.0
    """From 0 to 1."""
    cost: Annotated[float, Field(ge=0, le=INTEGER_MAX)] = 0.0
    """In a unit that the rule set knows."""
    confidence: Share = 1.0
    """From 0 to 1."""
    priority: Annotated[int, Field(ge=-(2**31), le=2**31 - 1)] = 0
    """Larger is more urgent."""
    expected_outcome: Text = ""
    """Free text."""
    max_fact_age_ms: Milliseconds = DURATION_MS_MAX
    """No older evidence may be used, in milliseconds."""
    required_facts: Annotated[list[FactKey], Field(max_length=limits.REQUIRED_FACTS_MAX)] = []
    """Keys that the proposal wants present besides those declared."""


class TraceCase(_Part):
    """What the trace has been through."""

    consecutive_rejections: Annotated[int, Field(ge=0, le=REJECTION_LIMIT_MAX)] = 0
    """So many proposals that cite nothing are made before this one, and refused."""


class VersionBindingCase(_Part):
    """The versions that the proposal was made with."""

    execution_version: Version = ""
    """Of the code that ran."""
    planner_version: Version = ""
    """Of the planner."""
    tool_registry_version: Version = ""
    """Of the set of tools."""
    schema_version: Version = ""
    """Of the schema of the producer's own state."""


class ErrorCase(_Part):
    """What went wrong, as the executor says it."""

    code: Text = ""
    """For programs."""
    message: Text = ""
    """For people."""


class ExecutionCase(_Part):
    """How an executor reports what became of the approval. It begins at once, and reports at once."""

    status: Literal["SUCCESS", "FAILED", "PARTIAL", "TIMEOUT", "ABORTED"]
    """How the attempt ended."""
    attempt: Annotated[int, Field(ge=1, le=ATTEMPTS_MAX)] = 1
    """Which attempt it is; those before it have FAILED."""
    reason_code: ReasonCode = ""
    """Why it was given up, as the executor says it."""
    result: dict[str, Any] = {}
    """What came of it."""
    error: ErrorCase = ErrorCase()
    """What went wrong."""
    completed_steps: Annotated[list[Text], Field(max_length=limits.COMPLETED_STEPS_MAX)] = []
    """What was done of it."""


class EarlierCase(_Part):
    """A proposal made just before, in a trace of its own. It patches the case's: what it does not say is as there."""

    action: ActionType | None = None
    """The action's type."""
    subject: Subject = SUBJECT_DEFAULT
    """What it is about."""
    producer: ProducerCase = ProducerCase()
    """Who proposes."""
    params: dict[str, Any] = {}
    """The action's parameters."""
    proposal: ProposalCase = ProposalCase()
    """What the agent says of it."""
    execution: ExecutionCase | None = None
    """How its execution is reported; the facts that follow are in the log. Default: nobody carries it out."""


class HintCase(_Part):
    """A row of the retry hint. What it does not name is not compared."""

    key: FactKey
    """The fact's key."""
    state: Literal["MISSING", "STALE", "TIER_TOO_LOW", "SOURCE_NOT_ACCEPTED", "SUPERSEDED", "WRONG_TYPE"] | None = None
    """What is wrong with it."""
    subject: Subject | None = None
    """Whose fact."""
    sources: list[SourceName] | None = None
    """Accepted sources, in any order."""


class DerivedCase(_Part):
    """A fact that the rule set derives. Without a value it may be any."""

    key: FactKey
    """The fact's key."""
    value: Annotated[Any, WithJsonSchema({"type": ["string", "number", "boolean", "null"]})] = None
    """What it says: a string, a number or a boolean."""


class CompensationCase(_Part):
    """What makes good what was half done. What it does not name is not compared."""

    action: Annotated[str, StringConstraints(pattern=f"^({limits.DOTTED_NAME})?$", max_length=limits.ACTION_TYPE_LENGTH_MAX)]
    """The action's type. "": nothing is compensated."""
    params: dict[str, Any] | None = None
    """All its params."""


class ExpectCase(_Part):
    """What must be decided. What is not named is not compared."""

    outcome: Literal["APPROVED", "REJECTED", "NEEDS_HUMAN_REVIEW"]
    """What it comes to."""
    reason_code: ReasonCode | None = None
    """The rule's, or one of Gavel's own. "": none."""
    rule_id: Annotated[str, StringConstraints(max_length=128)] | None = None
    """The rule that decides. "": none."""
    matched: list[str] | None = None
    """Ids of all rules that match, in any order."""
    hint: list[HintCase] | None = None
    """All rows of the retry hint, in any order; an empty list: none."""
    warnings: list[str] | None = None
    """Codes of all warnings, in any order."""
    terminal: bool | None = None
    """Whether no proposal can succeed as things stand."""
    conflict_key: str | None = None
    """What the approval holds alone."""
    derived: list[DerivedCase] | None = None
    """All facts that the rule set derives from the report, in any order; an empty list: none."""
    compensation: CompensationCase | None = None
    """What is approved to make good what was half done."""
    review: ReasonCode | None = None
    """Why a person is called after the report. "": nobody is."""


class CasePart(_Part):
    """One case: a proposal, the evidence in the log, and what must be decided."""

    description: Text = ""
    """For people."""
    now: Annotated[str, StringConstraints(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,3})?Z$")] = NOW_DEFAULT
    """The time of the decision, RFC 3339 in UTC; quote it in YAML."""
    action: ActionType | None = None
    """The action's type. Default: the rule set's only one."""
    subject: Subject = SUBJECT_DEFAULT
    """What the proposal is about, "type/id"."""
    producer: ProducerCase = ProducerCase()
    """Who proposes."""
    params: dict[str, Any] = {}
    """The action's parameters."""
    proposal: ProposalCase = ProposalCase()
    """What the agent says of its own proposal."""
    trace: TraceCase = TraceCase()
    """What the trace has been through."""
    version_binding: VersionBindingCase = VersionBindingCase()
    """The versions that the proposal was made with."""
    facts: dict[str, FactCase] = {}
    """The evidence, by the names that the action declares, or by any name with a key."""
    cites: list[str] | None = None
    """Names of the facts that the proposal cites. Default: all of them."""
    earlier: Annotated[list[EarlierCase], Field(max_length=EARLIER_MAX)] = []
    """Proposals made just before this one."""
    execution: ExecutionCase | None = None
    """How an executor reports what became of the approval. Default: nobody carries it out."""
    expect: ExpectCase
    """What must be decided."""
