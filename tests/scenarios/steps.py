"""What may stand in a scenario: its steps, and what is expected of them. README.md explains the format to people.

A step has one verb, whose value is the name that the rest of the file knows the event by, or no verb: then only time passes.
Everything else that it says is checked here; a key that a verb does not know is a mistake. Times are durations since the
scenario's start ("90s", "1h 1ms"), or whole milliseconds.
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


def duration_ms(written: object) -> object:
    """Return a duration like "1m 30s" in milliseconds; anything that is none as it is, for the model to refuse."""
    if not isinstance(written, str):
        return written
    if not DURATION.fullmatch(written):
        raise ValueError(f"{written!r} is no duration; write it like 90s, 24h or 1h 1ms")
    total_ms = sum(int(number) * UNITS_MS[unit] for number, unit in re.findall(r"(\d+)(ms|s|m|h)", written))
    return -total_ms if written.startswith("-") else total_ms


Duration = Annotated[int, BeforeValidator(duration_ms)]
Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.-]*$")]
Outcome = Literal["APPROVED", "REJECTED", "NEEDS_HUMAN_REVIEW", "EXPIRED", "REVOKED"]
State = Literal["MISSING", "STALE", "TIER_TOO_LOW", "SOURCE_NOT_ACCEPTED", "SUPERSEDED", "WRONG_TYPE"]


class Part(BaseModel):
    """Anything in a scenario: no key that it does not know, no value of another type."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, populate_by_name=True)


class HintRow(Part):
    """A row of the retry hint. What it does not name is not compared."""

    key: str
    state: State
    subject: str | None = None
    tier: int | None = None
    max_age: Duration | None = None
    sources: list[str] | None = None


class Candidate(Part):
    """One proposal of a contest, as its decision lists it."""

    proposal: Name
    score: float | None = None
    reason_code: str | None = None


class OfDecision(Part):
    """What a decision must say. What is not named is not compared; hint, warnings and the like are compared whole."""

    outcome: Outcome | None = None
    reason_code: str | None = None
    rule: str | None = None
    policy: str | None = None
    terminal: bool | None = None
    retryable: bool | None = None
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
    params: dict[str, Any] | None = None
    candidates: list[Candidate] | None = None
    error: str | None = None


class OfStart(Part):
    """What BeginExecution must answer: the attempt, or the code of a refusal, or the reason of an error."""

    started: int | None = None
    refused: str | None = None
    retry_after: Duration | None = None
    error: str | None = None


class OfReport(Part):
    """What must become of a report."""

    will_retry: bool | None = None
    error: str | None = None


class OfRecord(Part):
    """What must become of an event that is merely recorded: nothing is expected but an error, if any."""

    error: str | None = None


class Appended(Part):
    """An event that Gavel appends by itself. `name` is what later steps know it by; what is not named is not compared."""

    event: str
    name: Name | None = None
    key: str | None = None
    value: Any = None
    reason_code: str | None = None
    asks_for: list[str] | None = None
    expect: OfDecision | None = None


def appended(written: object) -> object:
    """Return what stands for an appended event: its name alone, where nothing else is expected of it."""
    return {"event": written} if isinstance(written, str) else written


AppendedEvents = list[Annotated[Appended, BeforeValidator(appended)]]


class Step(Part):
    """What every step may say: when, and which events Gavel appends before and after its own."""

    verb: ClassVar[str] = ""
    at: Duration | None = None
    before: AppendedEvents = []
    then: AppendedEvents = []


class Wait(Step):
    """Only time passes, and timers that are due speak."""

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
    expect: OfRecord = OfRecord()


class ToolStep(Step):
    """An agent calls a tool: a TOOL_CALL, named NAME.call, and the TOOL_RESULT that has the name."""

    verb: ClassVar[str] = "tool"
    tool: Name
    calls: str = TOOL
    answer: str = ""
    error_code: str = ""
    subject: str = SUBJECT
    by: str = AGENT
    trace: str = TRACE


class ObserveStep(Step):
    """An agent publishes what it read: an OBSERVATION, from a tool's result (`evidence`) or without any."""

    verb: ClassVar[str] = "observe"
    observe: Name
    reads: dict[str, Any]
    evidence: Name | None = None
    calls: str = TOOL
    subject: str = SUBJECT
    by: str = AGENT
    observed_at: Duration | None = None
    trace: str = TRACE
    expect: OfRecord = OfRecord()


class Proposed(Step):
    """What a proposal says."""

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
    expect: OfDecision = OfDecision()


class ProposeStep(Proposed):
    """An agent proposes and is answered with the decision, named NAME.decision; with `waits`, when its contest closes."""

    verb: ClassVar[str] = "propose"
    propose: Name
    waits: bool = False


class PreflightStep(Proposed):
    """An agent asks what a proposal would get; nothing is appended."""

    verb: ClassVar[str] = "preflight"
    preflight: Name


class DecidedStep(Step):
    """The proposal of that name, which has waited, has its decision by now."""

    verb: ClassVar[str] = "decided"
    decided: Name
    expect: OfDecision = OfDecision()


class RepeatStep(Step):
    """An event of that name is sent again, under the same event_id: as it was, or with other content (`but`)."""

    verb: ClassVar[str] = "repeat"
    repeat: Name
    but: dict[str, Any] = {}
    waits: bool = False
    expect: OfDecision = OfDecision()


class BeginStep(Step):
    """An executor asks to start an attempt of the decision of proposal `of`."""

    verb: ClassVar[str] = "begin"
    begin: Name
    of: Name
    by: str = EXECUTOR
    lease: Duration = 30_000
    expect: OfStart = OfStart(started=1)


class RenewStep(Step):
    """An executor keeps the lease of an attempt."""

    verb: ClassVar[str] = "renew"
    renew: Name
    by: str = EXECUTOR
    lease: Duration = 30_000
    expect: OfRecord = OfRecord()


class ReportStep(Step):
    """An executor reports how an attempt (`of`) ended."""

    verb: ClassVar[str] = "report"
    report: Name
    of: Name
    status: Literal["SUCCESS", "FAILED", "PARTIAL", "TIMEOUT", "ABORTED"]
    result: dict[str, Any] = {}
    by: str = EXECUTOR
    expect: OfReport = OfReport()


class DeriveStep(Step):
    """The fact derivation reactor derives the facts of a report and publishes them, as NAME.fact-1, NAME.fact-2 …"""

    verb: ClassVar[str] = "derive"
    derive: Name
    facts: dict[str, Any] | None = None


class ResolveStep(Step):
    """A person answers the open review that `of` called for. The name is the new decision's; the person's FACT is NAME.word."""

    verb: ClassVar[str] = "resolve"
    resolve: Name
    of: Name
    verdict: Literal["APPROVE", "REJECT"]
    by: str = "person-1"
    reason: str = "as seen"
    expect: OfDecision = OfDecision()


class RevokeStep(Step):
    """A person takes back the approval of `of`. Named as for `resolve`."""

    verb: ClassVar[str] = "revoke"
    revoke: Name
    of: Name
    by: str = "person-1"
    reason: str = "as seen"
    expect: OfDecision = OfDecision()


class ActivateStep(Step):
    """A version of a rule set is deployed and put in force, or watches as a shadow."""

    verb: ClassVar[str] = "activate"
    activate: Name
    version: int
    shadow: bool = False
    expect: OfRecord = OfRecord()


class DeactivateStep(Step):
    """A rule set is taken out of force."""

    verb: ClassVar[str] = "deactivate"
    deactivate: Name


AnyStep = (
    Wait
    | FactStep
    | ToolStep
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
    | RevokeStep
    | ActivateStep
    | DeactivateStep
)
STEPS: Final[dict[str, type[Step]]] = {
    step.verb: step
    for step in (
        FactStep,
        ToolStep,
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
        RevokeStep,
        ActivateStep,
        DeactivateStep,
    )
}


class Finally(Part):
    """How it must stand in the end: what the projection says of subjects, all live decisions and open reviews
    by name (of a first decision: its proposal's)."""

    facts: dict[str, dict[str, Any]] = {}
    pending: dict[Name, Literal["APPROVED", "EXECUTING", "AWAITING_FACTS", "UNDER_REVIEW"]] | None = None
    reviews: list[Name] | None = None


class ScenarioPart(Part):
    """A scenario but for its steps, which are read one by one."""

    must: Annotated[str, Field(min_length=10, max_length=200, pattern=r"\.$")]
    gate: Annotated[int, Field(ge=1, le=5)] | None = None
    engines: Literal["agree", "disagree"] = "agree"
    rule_sets: list[Any] | None = None
    in_force: list[str] | None = None
    steps: list[Any]
    finally_: Annotated[Finally, Field(alias="finally")] = Finally()


class FilePart(Part):
    """A file: what its scenarios are about, the rule sets that they share, and the scenarios."""

    about: str
    rule_sets: list[Any] = []
    scenarios: list[Any]
