"""The models of a scenario file: its steps and their expectations. README.md explains the format.

A step has one verb, whose value names its event for the rest of the file. A step without a verb only lets time pass. Unknown keys
are mistakes. Times are durations since the scenario's start ("90s", "1h 1ms"), or whole milliseconds.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

UNITS_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000}
DURATION: Final = re.compile(r"-?\d+(ms|s|m|h)( \d+(ms|s|m|h))*")
SUBJECT: Final = "order/1"
TRACE: Final = "trace-1"
AGENT: Final = "agent-1"
SOURCE: Final = "orders-db"
TOOL: Final = "fraud-tool"
EXECUTOR: Final = "executor-1"


def parse_duration_ms(value: object) -> object:
    """Return a duration like "1m 30s" in milliseconds. A value that is not text is returned as it is, for the model to check."""
    if not isinstance(value, str):
        return value
    if not DURATION.fullmatch(value):
        raise ValueError(f"{value!r} is not a duration; write it like 90s, 24h or 1h 1ms")
    total_ms = sum(int(number) * UNITS_MS[unit] for number, unit in re.findall(r"(\d+)(ms|s|m|h)", value))
    return -total_ms if value.startswith("-") else total_ms


Duration = Annotated[int, BeforeValidator(parse_duration_ms)]
Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.-]*$")]
Outcome = Literal["APPROVED", "REJECTED", "NEEDS_HUMAN_REVIEW", "EXPIRED", "REVOKED"]
State = Literal["MISSING", "STALE", "TIER_TOO_LOW", "SOURCE_NOT_ACCEPTED", "SUPERSEDED", "WRONG_TYPE"]


class Part(BaseModel):
    """The base of all models: unknown keys and values of another type are mistakes."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, populate_by_name=True)


class HintRow(Part):
    """A row of the retry hint. Keys that it does not set are not compared."""

    key: str
    state: State
    subject: str | None = None
    tier: int | None = None
    max_age: Duration | None = None
    sources: list[str] | None = None


class Candidate(Part):
    """A proposal of a contest, as its decision lists it."""

    proposal: Name
    score: float | None = None
    reason_code: str | None = None


class DecisionExpectation(Part):
    """The expected decision. Keys that it does not set are not compared; lists are compared as a whole."""

    outcome: Outcome | None = None
    reason_code: str | None = None
    rule: str | None = None
    policy: str | None = None
    terminal: bool | None = None
    retryable: bool | None = None
    remedy: list[str] | None = None
    effects: list[str] | None = None
    retry_after: Duration | None = None
    hint: list[HintRow] | None = None
    warnings: list[str] | None = None
    conflicts_with: list[Name] | None = None
    rejections: int | None = None
    pinned: list[Name] | None = None
    absent: list[str] | None = None
    matched: list[str] | None = None
    consulted: list[str] | None = None
    valid_until: Duration | None = None
    conflict_key: str | None = None
    previous: Name | None = None
    compensates: Name | None = None
    quorum: int | None = None
    params: dict[str, Any] | None = None
    candidates: list[Candidate] | None = None
    error: str | None = None


class StartExpectation(Part):
    """The expected answer to BeginExecution: the number of the attempt, the code of a refusal, or the reason of an error."""

    started: int | None = None
    refused: str | None = None
    warnings: list[str] | None = None
    retry_after: Duration | None = None
    error: str | None = None


class ReportExpectation(Part):
    """The expected answer to a report."""

    will_retry: bool | None = None
    error: str | None = None


class VoteExpectation(Part):
    """The expected answer to a vote that does not end its review: votes to approve so far, and how many it takes."""

    votes: int | None = None
    quorum: int | None = None
    error: str | None = None


class RecordExpectation(Part):
    """The expected answer to any other event: an error, or none."""

    error: str | None = None


class AppendedEvent(Part):
    """An event that Gavel appends by itself. `name` names it for later steps. Keys that it does not set are not compared."""

    event: str
    name: Name | None = None
    key: str | None = None
    value: Any = None
    reason_code: str | None = None
    asks_for: list[str] | None = None
    expect: DecisionExpectation | None = None


def parse_appended_event(value: object) -> object:
    """Return the keys of an appended event that may be written as its event name alone."""
    return {"event": value} if isinstance(value, str) else value


AppendedEvents = list[Annotated[AppendedEvent, BeforeValidator(parse_appended_event)]]


class Step(Part):
    """The keys of every step: its time, and the events that Gavel appends before and after its own."""

    verb: ClassVar[str] = ""
    at: Duration | None = None
    before: AppendedEvents = []
    then: AppendedEvents = []


class Wait(Step):
    """Time passes, and timers that are due fire."""

    at: Duration


class FactStep(Step):
    """A source publishes a FACT; a null value retracts the key."""

    verb: ClassVar[str] = "fact"
    fact: Name
    key: str
    value: Any = None
    subject: str = SUBJECT
    by: str = SOURCE
    channel: Literal["api", "sensor", "database_snapshot", "system", "agent"] = "api"
    event_name: str = ""
    max_age: Duration = 0
    occurred_at: Duration | None = None
    trace: str = "facts"
    expect: RecordExpectation = RecordExpectation()


class ToolStep(Step):
    """An agent calls a tool: a TOOL_CALL, named NAME.call, and the TOOL_RESULT that has the name.

    The execution_id of both follows from `execution`, by default from NAME; "" leaves it out. `parts` are the events to publish.
    `result_of` is the tool that the result names.
    """

    verb: ClassVar[str] = "tool"
    tool: Name
    calls: str = TOOL
    result_of: str | None = None
    execution: str | None = None
    parts: list[Literal["call", "result"]] = ["call", "result"]
    answer: str = ""
    error_code: str = ""
    versions: dict[str, str] = {}
    subject: str = SUBJECT
    by: str = AGENT
    trace: str = TRACE
    expect: RecordExpectation = RecordExpectation()


class InvokeStep(Step):
    """An agent records the call of a language model (LlmInvocationCommitted)."""

    verb: ClassVar[str] = "invoke"
    invoke: Name
    asks: str = "model-1"
    answered_by: str = "model-1"
    provider: str = "provider-1"
    prompt: str = "prompt"
    output: str = "output"
    subject: str = SUBJECT
    by: str = AGENT
    trace: str = TRACE


class ContractStep(Step):
    """A version of a tool's contract is registered, whose arguments have the properties `requires`."""

    verb: ClassVar[str] = "contract"
    contract: Name
    version: str
    describes: str = TOOL
    requires: list[str] = []


class ObserveStep(Step):
    """An agent publishes an OBSERVATION, from a tool's result (`evidence`) or without one."""

    verb: ClassVar[str] = "observe"
    observe: Name
    reads: dict[str, Any]
    evidence: Name | None = None
    calls: str = TOOL
    subject: str = SUBJECT
    by: str = AGENT
    observed_at: Duration | None = None
    trace: str = TRACE
    expect: RecordExpectation = RecordExpectation()


class ProposalStep(Step):
    """The keys of a proposal."""

    action: str | None = None
    params: dict[str, Any] = {}
    cites: list[Name] = []
    cites_nothing_known: bool = False
    required_facts: list[str] = []
    subject: str = SUBJECT
    by: str = AGENT
    trace: str = TRACE
    cause: Name | None = None
    max_age: Duration = 24 * UNITS_MS["h"]
    as_of: Name | None = None
    versions: dict[str, str] = {}
    cost: float = 0.0
    risk: float = 0.0
    priority: int = 0
    confidence: float = 0.9
    expect: DecisionExpectation = DecisionExpectation()


class ProposeStep(ProposalStep):
    """An agent proposes. The decision is named NAME.decision; with `waits`, it comes when the contest closes."""

    verb: ClassVar[str] = "propose"
    propose: Name
    waits: bool = False


class PreflightStep(ProposalStep):
    """An agent asks for the decision that a proposal would get; nothing is appended."""

    verb: ClassVar[str] = "preflight"
    preflight: Name


class DecidedStep(Step):
    """The proposal of that name, which competed, has its decision by now."""

    verb: ClassVar[str] = "decided"
    decided: Name
    expect: DecisionExpectation = DecisionExpectation()


class RepeatStep(Step):
    """The event of that name is sent again with the same event_id, unchanged or with other content (`but`)."""

    verb: ClassVar[str] = "repeat"
    repeat: Name
    but: dict[str, Any] = {}
    waits: bool = False
    expect: DecisionExpectation = DecisionExpectation()


class BeginStep(Step):
    """An executor begins an attempt of the decision on proposal `of`."""

    verb: ClassVar[str] = "begin"
    begin: Name
    of: Name
    by: str = EXECUTOR
    lease: Duration = 30_000
    versions: dict[str, str] = {}
    expect: StartExpectation = StartExpectation(started=1)


class RenewStep(Step):
    """An executor renews the lease of an attempt."""

    verb: ClassVar[str] = "renew"
    renew: Name
    by: str = EXECUTOR
    lease: Duration = 30_000
    expect: RecordExpectation = RecordExpectation()


class ReportStep(Step):
    """An executor reports how an attempt (`of`) ended."""

    verb: ClassVar[str] = "report"
    report: Name
    of: Name
    status: Literal["SUCCESS", "FAILED", "PARTIAL", "TIMEOUT", "ABORTED"]
    result: dict[str, Any] = {}
    by: str = EXECUTOR
    expect: ReportExpectation = ReportExpectation()


class DeriveStep(Step):
    """The fact derivation reactor derives the facts of a report and publishes them, as NAME.fact-1, NAME.fact-2 …"""

    verb: ClassVar[str] = "derive"
    derive: Name
    facts: dict[str, Any] | None = None


class ResolveStep(Step):
    """A person resolves the open review of `of`. NAME is the new decision; the person's FACT is NAME.word."""

    verb: ClassVar[str] = "resolve"
    resolve: Name
    of: Name
    verdict: Literal["APPROVE", "REJECT"]
    by: str = "person-1"
    reason: str = "as seen"
    expect: DecisionExpectation = DecisionExpectation()


class VoteStep(Step):
    """A person votes or comments in the open review of `of`, without ending it. NAME is the person's FACT."""

    verb: ClassVar[str] = "vote"
    vote: Name
    of: Name
    verdict: Literal["APPROVE", "COMMENT"] = "APPROVE"
    by: str = "person-1"
    reason: str = "as seen"
    expect: VoteExpectation = VoteExpectation()


class RevokeStep(Step):
    """A person revokes the approval of `of`. Names are as for `resolve`."""

    verb: ClassVar[str] = "revoke"
    revoke: Name
    of: Name
    by: str = "person-1"
    reason: str = "as seen"
    expect: DecisionExpectation = DecisionExpectation()


class ActivateStep(Step):
    """A version of a rule set is deployed and put in force, or made a shadow."""

    verb: ClassVar[str] = "activate"
    activate: Name
    version: int
    shadow: bool = False
    expect: RecordExpectation = RecordExpectation()


class DeactivateStep(Step):
    """A rule set is taken out of force."""

    verb: ClassVar[str] = "deactivate"
    deactivate: Name


AnyStep = (
    Wait
    | FactStep
    | ToolStep
    | InvokeStep
    | ContractStep
    | ObserveStep
    | ProposeStep
    | PreflightStep
    | DecidedStep
    | RepeatStep
    | BeginStep
    | RenewStep
    | ReportStep
    | DeriveStep
    | ResolveStep
    | VoteStep
    | RevokeStep
    | ActivateStep
    | DeactivateStep
)
STEPS: Final[dict[str, type[Step]]] = {
    step.verb: step
    for step in (
        FactStep,
        ToolStep,
        InvokeStep,
        ContractStep,
        ObserveStep,
        ProposeStep,
        PreflightStep,
        DecidedStep,
        RepeatStep,
        BeginStep,
        RenewStep,
        ReportStep,
        DeriveStep,
        ResolveStep,
        VoteStep,
        RevokeStep,
        ActivateStep,
        DeactivateStep,
    )
}


class TraceExpectation(Part):
    """The expected reading of a trace: the states of its tool pairs, the codes of its drifts, and the versions that it is bound to."""

    pairs: list[str] | None = None
    drifts: list[str] | None = None
    bound: dict[str, str] | None = None


class Finally(Part):
    """The expected state at the end: facts of subjects in the projection, all live decisions and open reviews, and readings of traces.

    A first decision has the name of its proposal.
    """

    facts: dict[str, dict[str, Any]] = {}
    pending: dict[Name, Literal["APPROVED", "EXECUTING", "AWAITING_FACTS", "UNDER_REVIEW"]] | None = None
    reviews: list[Name] | None = None
    traces: dict[str, TraceExpectation] = {}


class ScenarioPart(Part):
    """A scenario. Its steps are read one by one."""

    must: Annotated[str, Field(min_length=10, max_length=200, pattern=r"\.$")]
    gate: Annotated[int, Field(ge=1, le=5)] | None = None
    engines: Literal["agree", "disagree"] = "agree"
    rule_sets: list[Any] | None = None
    in_force: list[str] | None = None
    steps: list[Any]
    finally_: Annotated[Finally, Field(alias="finally")] = Finally()


class FilePart(Part):
    """A file: its topic, the rule sets that its scenarios share, and the scenarios."""

    about: str
    rule_sets: list[Any] = []
    scenarios: list[Any]
