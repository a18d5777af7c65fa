"""Proof that a log's decisions follow from the log (seeds 002 §8).

Two passes, each fed one record at a time, so the caller decides how to read. `Integrity` looks at the log as a log: hash
chain, numbers, times, causes, who published what. `Recomputation` then runs the decider again: every event is either an
input, which is turned back into the command that made it and handled again at its recorded time, or one of the events
that such a command makes, which must come out equal field by field. Verifiers never re-serialize; the chain is over the
recorded bytes.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final

from gavel.v1 import common_pb2, decision_pb2, execution_pb2, fact_pb2
from gavel.v1.common_pb2 import EventReference
from gavel.v1.decision_pb2 import Engine
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.fact_pb2 import Fact, RuleSetActivated, RuleSetDeactivated
from gavel.v1.replay_service_pb2 import Divergence, FieldDifference
from google.protobuf import text_format
from google.protobuf.json_format import Error as JsonFormatError
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import DecodeError
from google.protobuf.timestamp_pb2 import Timestamp

from gavel_rules import reasons
from gavel_rules.chain import chain, genesis_hash
from gavel_rules.commands import (
    ActivateRuleSet,
    BeginExecution,
    ChangeCrossCheck,
    Command,
    DeactivateRuleSet,
    DeployRuleSet,
    Fault,
    OpenBus,
    PublishEvent,
    References,
    RenewExecution,
    ReportExecution,
    ResolveReview,
    RevokeDecision,
    SubmitProposal,
    Tick,
)
from gavel_rules.decider import handle
from gavel_rules.errors import GavelRulesError
from gavel_rules.events import (
    ARBITER_VERSION,
    CATEGORIES_OF_PRODUCER,
    GAVEL,
    PAYLOAD_OF_CATEGORY,
    SYSTEM_PRODUCER,
    TIME_MS_MAX,
    milliseconds,
)
from gavel_rules.evidence import Cited, cited
from gavel_rules.language.ruleset import CompiledRuleSet, DocumentError, compile_rule_set
from gavel_rules.made import Made
from gavel_rules.projection import State


class DamagedError(GavelRulesError):
    """The log is not intact: chain, gap or undecodable entry."""

    def __init__(self, divergence: Divergence) -> None:
        super().__init__(divergence.message)
        self.divergence = divergence


class DivergedError(GavelRulesError):
    """The log holds something that does not follow from the log."""

    def __init__(self, divergence: Divergence) -> None:
        super().__init__(divergence.message)
        self.divergence = divergence


class VersionNotImplementedError(GavelRulesError):
    """The log needs semantics that this build does not have."""

    def __init__(self, sequence_number: int, arbiter_version: int) -> None:
        super().__init__(f"event {sequence_number} sets arbiter_version {arbiter_version}; this build implements {ARBITER_VERSION}")
        self.sequence_number = sequence_number
        self.arbiter_version = arbiter_version


class Integrity:
    """The first pass: the log as a log. Feed every record from number 1 in order."""

    def __init__(self, bus: str) -> None:
        self._bus = bus
        self._hash = genesis_hash(bus)
        self._recorded_at_ms = 0
        self._window_ms = 0
        self._recorded_at_ms_of: dict[bytes, int] = {}  # by event_id
        self.events = 0

    def feed(self, sequence_number: int, envelope_bytes: bytes, chain_hash: bytes) -> None:
        """Check one record. Raises DamagedError, DivergedError or VersionNotImplementedError."""
        if sequence_number != self.events + 1:
            raise DamagedError(
                Divergence(
                    sequence_number=self.events + 1,
                    kind="sequence-gap",
                    message=f"event {self.events + 1} is missing; the next entry is {sequence_number}",
                )
            )
        self._hash = chain(self._hash, envelope_bytes)
        if self._hash != chain_hash:
            raise DamagedError(
                Divergence(
                    sequence_number=sequence_number,
                    kind="chain-broken",
                    message=f"the chain breaks at event {sequence_number}: its bytes are not those that were hashed",
                )
            )
        envelope = decode(sequence_number, envelope_bytes)
        self.events = sequence_number
        problem = self._problem(envelope)
        if problem:
            raise DivergedError(
                Divergence(sequence_number=sequence_number, event_id=envelope.event_id, kind="unlawful-event", message=problem)
            )
        self._note(envelope)

    def _problem(self, envelope: Envelope) -> str:
        number = self.events
        payload = envelope.WhichOneof("payload")
        if envelope.sequence_number != number or envelope.bus != self._bus:
            return f"entry {number} of bus {self._bus} says it is event {envelope.sequence_number} of bus {envelope.bus}"
        if payload is None or PAYLOAD_OF_CATEGORY.get(envelope.event_category) != payload:
            return f"event {number} has category {envelope.event_category} and payload {payload}"
        if (number == 1) != (envelope.fact.WhichOneof("system") == "bus_opened"):
            return f"event {number}: BusOpened is the first event of a bus, and only that"
        if envelope.event_category not in CATEGORIES_OF_PRODUCER.get(envelope.producer.type, frozenset()):
            return f"event {number}: producer type {envelope.producer.type} may not publish a {payload}"
        if not _is_time(envelope.recorded_at) or not _is_time(envelope.occurred_at):
            return f"event {number} was recorded, or occurred, at what is no time between 1970 and 9999"
        if milliseconds(envelope.recorded_at) < self._recorded_at_ms:
            return f"event {number} was recorded before event {number - 1}"
        known_ms = self._recorded_at_ms_of.get(envelope.event_id.encode())
        if known_ms is not None and milliseconds(envelope.recorded_at) - known_ms <= self._window_ms:
            return f"event {number} repeats event_id {envelope.event_id} within the bus's idempotency window"
        if envelope.causation_id and envelope.causation_id.encode() not in self._recorded_at_ms_of:
            return f"event {number} names a cause, {envelope.causation_id}, that is not before it"
        return ""

    def _note(self, envelope: Envelope) -> None:
        self._recorded_at_ms = milliseconds(envelope.recorded_at)
        self._recorded_at_ms_of[envelope.event_id.encode()] = self._recorded_at_ms
        match envelope.fact.WhichOneof("system"):
            case "bus_opened":
                version = envelope.fact.bus_opened.arbiter_version
                self._window_ms = envelope.fact.bus_opened.idempotency_window_ms
            case "arbiter_version_changed":
                version = envelope.fact.arbiter_version_changed.arbiter_version
            case _:
                return
        if version != ARBITER_VERSION:
            raise VersionNotImplementedError(envelope.sequence_number, version)


class Recomputation:
    """The second pass: the decider again. Feed every record from number 1 in order, then call `finish`.

    What comes before `compare_from` builds the state and is not compared. `compiled` stands in for `compile_rule_set`: a caller
    may have compiled beforehand what comes next.
    """

    def __init__(
        self,
        bus: str,
        *,
        engine: Engine.ValueType = decision_pb2.ENGINE_RETE,
        compare_from: int = 1,
        compiled: Callable[[str], CompiledRuleSet] = compile_rule_set,
    ) -> None:
        self.state = State(bus)
        self._engine = engine
        self._compare_from = compare_from
        self._compiled = compiled
        self._expected: deque[Made] = deque()
        self._cited: dict[int, Cited] = {}
        self._input: Envelope | None = None
        self.events = 0
        self.decisions = 0
        self.derived_facts = 0

    def feed(self, sequence_number: int, envelope_bytes: bytes) -> Envelope:
        """Recompute one event and return it as recorded. Raises DivergedError at the first that differs."""
        recorded = decode(sequence_number, envelope_bytes)
        if sequence_number < self._compare_from or (not self.events and not self._expected and _is_made(recorded)):
            # What a commit made from an input before `compare_from` cannot be compared without that input.
            made = self.state.apply(recorded)
            self.state.commit()
        else:
            if not self._expected:
                self._predict(recorded)
            made = self._expected.popleft()
            self._compare(recorded, made.envelope)
            self._tally(recorded)
        made.pack(envelope_bytes)
        citation = cited(recorded)
        if citation.keys:
            self._cited[sequence_number] = citation
        return recorded

    def finish(self, *, at_head: bool) -> None:
        """Check that nothing is missing at the end. A log that was cut off on purpose may end inside a commit."""
        if self._expected and at_head:
            missing = self._expected[0].envelope
            raise self._diverged(missing, "missing-event", f"event {missing.sequence_number} should follow, but the log ends", [])

    def _predict(self, recorded: Envelope) -> None:
        """Turn an input back into its command and handle it again; timers that are due come first."""
        self.state.commit()
        now_ms = milliseconds(recorded.recorded_at)
        timers = handle(self.state, Tick(1, _unjudged(recorded)), now_ms=now_ms, engine=self._engine)
        if timers.events:
            self._input = timers.events[0]
            self._expected.extend(timers.made)
            return
        try:
            command, references = self._command(recorded, now_ms)
        except DocumentError as error:
            raise self._diverged(
                recorded, "rule-set-invalid", f"the rule set of event {recorded.sequence_number} does not compile: {error}", []
            ) from error
        if command is None:
            raise self._diverged(
                recorded, "unexpected-event", f"nothing in the log makes event {recorded.sequence_number} ({recorded.event_name})", []
            )
        self._input = recorded
        handled = handle(self.state, command, references, now_ms, self._engine)
        if not handled.made:
            reason = handled.answer.message if isinstance(handled.answer, Fault) else "it would append nothing"
            raise self._diverged(recorded, "refused-event", f"event {recorded.sequence_number} would be refused today: {reason}", [])
        self._expected.extend(handled.made)

    def _command(self, recorded: Envelope, now_ms: int) -> tuple[Command | None, References]:
        """Return the command that made an input event, or None if no command makes such an event."""
        copy = Envelope()
        copy.CopyFrom(recorded)
        copy.ClearField("sequence_number")
        copy.ClearField("recorded_at")
        match recorded.WhichOneof("payload"):
            case "fact" if recorded.fact.WhichOneof("system") is not None:
                return _system_command(recorded, self._compiled), References(cited=self._cited)
            case "agent_diagnostic" if _is_late_report(recorded):
                return self._late_report_command(recorded), References()
            case "decision" if recorded.decision.reason_code == reasons.RETRY_FACTS_CHANGED:
                # The one decision that a call makes which is itself no event: an attempt was to be started again.
                return BeginExecution(recorded.decision.previous_decision_id, recorded.producer, 1), References()
            case _ if recorded.producer.id == GAVEL:
                return None, References()  # nobody publishes in Gavel's name
            case "proposal":
                copy.proposal.ClearField("contest")
                return SubmitProposal(copy), References(cited=self._cited)
            case "fact" | "observation" | "tool_call" | "tool_result" | "agent_diagnostic":
                return PublishEvent(copy), References()
            case "execution":
                return self._execution_command(recorded, copy, now_ms), References()
        return None, References()

    def _late_report_command(self, recorded: Envelope) -> Command:
        late = recorded.agent_diagnostic.late_execution
        report = Envelope(event_id=recorded.event_id, execution=late.execution)
        report.producer.type = common_pb2.PRODUCER_TYPE_EXECUTOR
        report.producer.id = late.executor_id
        report.producer.version = late.executor_version
        return ReportExecution(report)

    def _execution_command(self, recorded: Envelope, copy: Envelope, now_ms: int) -> Command:
        execution = recorded.execution
        live = self.state.decisions.get(execution.decision_id)
        if execution.status == execution_pb2.EXECUTION_STATUS_STARTED:
            lease_ms = milliseconds(execution.lease_until) - now_ms
            if live is not None and live.attempt == execution.attempt:
                return RenewExecution(execution.decision_id, execution.execution_id, recorded.producer, lease_ms)
            return BeginExecution(execution.decision_id, recorded.producer, lease_ms)
        if execution.status == execution_pb2.EXECUTION_STATUS_ABORTED and execution.attempt == 0:
            return BeginExecution(execution.decision_id, recorded.producer, 1)
        return ReportExecution(copy)

    def _compare(self, recorded: Envelope, expected: Envelope) -> None:
        if recorded == expected:
            return
        differences = list(field_differences(recorded, expected))
        summary = ", ".join(difference.path for difference in differences[:5]) or "its encoding"
        raise self._diverged(
            recorded,
            "field-mismatch",
            f"event {recorded.sequence_number} ({recorded.event_name}) comes out otherwise: {summary}",
            differences,
        )

    def _diverged(self, event: Envelope, kind: str, message: str, differences: list[FieldDifference]) -> DivergedError:
        inputs = []
        if self._input is not None:
            inputs.append(EventReference(event_id=self._input.event_id, sequence_number=self._input.sequence_number))
            inputs.extend(self._input.proposal.based_on_events)
        return DivergedError(
            Divergence(
                sequence_number=event.sequence_number,
                event_id=event.event_id,
                kind=kind,
                message=message,
                differences=differences,
                inputs=inputs,
            )
        )

    def _tally(self, recorded: Envelope) -> None:
        self.events += 1
        if recorded.HasField("decision"):
            self.decisions += 1
        elif recorded.fact.decision_id:
            self.derived_facts += 1


def _is_time(value: Timestamp) -> bool:
    """Whether a time is one that a bus records: admission takes no other from producers."""
    return 0 <= value.seconds <= TIME_MS_MAX // 1000 and 0 <= value.nanos < 1_000_000_000


def _is_made(recorded: Envelope) -> bool:
    """Whether Gavel makes such an event from another one in the same commit."""
    if recorded.HasField("decision"):
        return True
    return recorded.HasField("agent_diagnostic") and recorded.producer == SYSTEM_PRODUCER and not _is_late_report(recorded)


def _unjudged(recorded: Envelope) -> frozenset[str]:
    """Return the candidates of a contest that could not be judged when it closed, as its first decision says."""
    rows = recorded.decision.contest.candidates
    return frozenset(row.proposal_id for row in rows if row.reason_code == reasons.NOT_JUDGED)


def _is_late_report(recorded: Envelope) -> bool:
    return recorded.agent_diagnostic.WhichOneof("detail") == "late_execution"


def decode(sequence_number: int, envelope_bytes: bytes) -> Envelope:
    """Return the envelope of an entry. Raises DamagedError if the bytes are none."""
    try:
        return Envelope.FromString(envelope_bytes)
    except DecodeError as error:
        message = f"event {sequence_number} cannot be decoded"
        raise DamagedError(Divergence(sequence_number=sequence_number, kind="undecodable", message=message)) from error


def field_differences(recorded: Envelope, expected: Envelope) -> Iterator[FieldDifference]:
    """Yield every field in which two envelopes differ, by path, with both values as JSON.

    What JSON cannot say, e.g. a time beyond the year 9999, only a forger writes: then the envelopes are given whole, as text.
    """
    try:
        left, right = _as_dict(recorded), _as_dict(expected)
    except JsonFormatError:
        yield FieldDifference(path="envelope", recorded=_as_text(recorded), expected=_as_text(expected))
        return
    yield from _differences("", left, right)


_ABSENT: Final = object()


def _differences(path: str, recorded: Any, expected: Any) -> Iterator[FieldDifference]:
    if isinstance(recorded, dict) and isinstance(expected, dict):
        for key in sorted(recorded.keys() | expected.keys()):
            inner = f"{path}.{key}" if path else key
            yield from _differences(inner, recorded.get(key, _ABSENT), expected.get(key, _ABSENT))
    elif isinstance(recorded, list) and isinstance(expected, list) and len(recorded) == len(expected):
        for index, (left, right) in enumerate(zip(recorded, expected, strict=True)):
            yield from _differences(f"{path}[{index}]", left, right)
    elif recorded != expected:
        yield FieldDifference(path=path, recorded=_as_json(recorded), expected=_as_json(expected))


def _as_dict(envelope: Envelope) -> dict[str, Any]:
    return MessageToDict(envelope, preserving_proto_field_name=True)


def _as_text(envelope: Envelope) -> str:
    return text_format.MessageToString(envelope, as_one_line=True)


def _as_json(value: Any) -> str:
    return "(absent)" if value is _ABSENT else json.dumps(value, ensure_ascii=False, sort_keys=True)


def _system_command(recorded: Envelope, compiled: Callable[[str], CompiledRuleSet]) -> Command | None:
    """Return the command behind a fact about Gavel itself."""
    fact = recorded.fact
    match fact.WhichOneof("system"):
        case "bus_opened":
            return OpenBus(recorded.event_id, fact.bus_opened.cross_check, fact.bus_opened.idempotency_window_ms)
        case "cross_check_changed":
            return ChangeCrossCheck(recorded.event_id, fact.cross_check_changed.cross_check)
        case "rule_set_deployed":
            deployed = fact.rule_set_deployed
            return DeployRuleSet(recorded.event_id, compiled(deployed.document), deployed.document)
        case "rule_set_activated":
            activated = fact.rule_set_activated
            return ActivateRuleSet(recorded.event_id, activated.policy_id, activated.version, None, _is_shadow(activated))
        case "rule_set_deactivated":
            deactivated = fact.rule_set_deactivated
            return DeactivateRuleSet(recorded.event_id, deactivated.policy_id, None, _is_shadow(deactivated))
        case "review_resolved":
            return ResolveReview(Envelope(event_id=recorded.event_id, fact=Fact(review_resolved=fact.review_resolved)))
        case "revocation_requested":
            return RevokeDecision(Envelope(event_id=recorded.event_id, fact=Fact(revocation_requested=fact.revocation_requested)))
    return None


def _is_shadow(event: RuleSetActivated | RuleSetDeactivated) -> bool:
    return event.mode == fact_pb2.ACTIVATION_MODE_SHADOW
