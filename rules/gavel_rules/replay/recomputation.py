"""What a replay recomputes: the decider again, compared with the log.

An input event is turned back into its command, which is handled again at its recorded time. Every event that the command or a timer records
must be equal to the log.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from gavel.v1 import decision_pb2
from gavel.v1.common_pb2 import EventReference
from gavel.v1.decision_pb2 import Decision, Engine
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.fact_pb2 import DataLossAccepted
from gavel.v1.replay_service_pb2 import Divergence, FieldDifference
from google.protobuf.message import DecodeError

from gavel_rules.arbitration.contest import EarlyJudgement
from gavel_rules.arbitration.evaluation import evaluator
from gavel_rules.arbitration.evidence_reselection import reselect_evidence
from gavel_rules.arbitration.pipeline import arbitrate
from gavel_rules.authorization import principal_of
from gavel_rules.codec.fields import Field
from gavel_rules.commands import Fault, Tick
from gavel_rules.decider import handle
from gavel_rules.events.citation import CitedEvent, cited_event
from gavel_rules.events.kinds import PROPOSAL, SYSTEM_FACT_KEY
from gavel_rules.events.proposal_view import ProposalView
from gavel_rules.events.recorded_event import RecordedEvent
from gavel_rules.events.stored_event import StoredEvent
from gavel_rules.events.timestamps import milliseconds
from gavel_rules.language.rule_set import CompiledAction, CompiledRuleSet, DocumentError, compile_rule_set
from gavel_rules.replay.counter_fills import RecordedFill
from gavel_rules.replay.differences import field_differences
from gavel_rules.replay.duplicate_fields import find_duplicate_field
from gavel_rules.replay.errors import DivergedError
from gavel_rules.replay.inputs import command_of, is_consequence, unjudged_candidates
from gavel_rules.replay.integrity import decode
from gavel_rules.state.records import OpenContest
from gavel_rules.state.state import State

DATA_LOSSES_MAX: Final = 100
# Bytes that every event whose command cites others contains: the category of proposals, or the key of a verdict or vote.
_CITING_EVENTS: Final = (
    Field(Envelope, "event_category").number(PROPOSAL),
    SYSTEM_FACT_KEY["ReviewResolved"].encode(),
    SYSTEM_FACT_KEY["ReviewVoted"].encode(),
)


class Recomputation:
    """The recomputation of a bus's log. Feed every record from number 1 in order, then call `finish`.

    Records before `compare_from` build the state and are not compared. `compile_document` returns the rule set of a document; a caller
    that compiles ahead gives its own.
    """

    def __init__(
        self,
        bus: str,
        *,
        engine: Engine.ValueType = decision_pb2.ENGINE_RETE,
        compare_from: int = 1,
        compile_document: Callable[[str], CompiledRuleSet] = compile_rule_set,
        state: State | None = None,
    ) -> None:
        """`state`: begin after this state, which is that of the log at the end of a commit, and feed the record that follows it."""
        self.state = State(bus) if state is None else state
        self._begins_within_commit = state is None
        self._engine = engine
        self._compare_from = compare_from
        self._compile_document = compile_document
        self._expected: deque[RecordedEvent] = deque()
        self._cited_events: dict[int, CitedEvent] = {}
        self._input: StoredEvent | None = None
        self._early_judgement: EarlyJudgement | None = None
        # For `FillProof`. Counters of the given state may be opened and yet to be filled.
        self.fills = [
            RecordedFill(table.opened_at, self.state.rule_sets[table.policy_id, table.version], [digest])
            for digest, table in self.state.counters.items()
            if not table.is_filled
        ]
        self.events = 0
        self.decisions = 0
        self.derived_facts = 0
        self.data_losses: list[DataLossAccepted] = []  # the first DATA_LOSSES_MAX

    def early_judgement(self, envelope_bytes: bytes) -> EarlyJudgement | None:
        """Return the early judging of a contest that closes before this event, the next to be fed; None if none does.

        A caller that shares its thread may step it to the end before `feed`, which otherwise judges all candidates at once.
        """
        self._early_judgement = None
        if self._expected or not self.state.contests:
            return None
        try:
            recorded = Envelope.FromString(envelope_bytes)
        except DecodeError:
            return None  # `feed` reports it
        now_ms = milliseconds(recorded.recorded_at)
        due = self.state.next_due(now_ms)
        if isinstance(due, OpenContest) and not unjudged_candidates(recorded):
            self._early_judgement = EarlyJudgement(self.state, due, now_ms, evaluator(self.state, self.state.head + 1, self._engine))
        return self._early_judgement

    def decide_under(self, envelope_bytes: bytes, actions: tuple[CompiledAction, ...]) -> Decision | str:
        """Return the decision that the next proposal would get if `actions` governed it, or the reason why it cannot be computed."""
        recorded = Envelope.FromString(envelope_bytes)
        if recorded.proposal.HasField("contest"):
            return "it competed in a contest"
        counters = [counter for action in actions for counter in (*action.read_counters, *action.reserving_counters)]
        tables = self.state.counters
        if not all(counter.digest in tables and tables[counter.digest].is_filled for counter in counters):
            return "the rule sets that are active now have counters that the bus did not have then"
        evaluate = evaluator(self.state, recorded.sequence_number + 1, self._engine)
        now_ms = milliseconds(recorded.recorded_at)
        return arbitrate(self.state, ProposalView(recorded), self._cited_events, now_ms, evaluate, actions)

    def reselect_evidence(self, proposal_bytes: bytes, decision: Decision) -> list[tuple[int, str]]:
        """Return (sequence number, key) of the evidence that was selected for the first decision on a proposal, which was fed last."""
        return reselect_evidence(self.state, ProposalView(Envelope.FromString(proposal_bytes)), decision)

    def feed(self, sequence_number: int, envelope_bytes: bytes, decoded: Envelope | None = None) -> Envelope:
        """Recompute one event and return its recorded envelope.

        `decoded` is the envelope of the bytes, if the caller has it; it is taken over and changed.

        Raises DivergedError at the first event that differs, and DamagedError if the bytes are not an envelope.
        """
        if not self._expected:
            recorded = decode(sequence_number, envelope_bytes) if decoded is None else decoded
            is_cut = self._begins_within_commit and not self.events and is_consequence(recorded)
            if sequence_number < self._compare_from or is_cut:
                # A consequence of an input before `compare_from` cannot be compared without that input.
                event = self.state.apply(recorded)
                self.state.commit()
                self._remember(event, envelope_bytes)
                return recorded
            self._predict(sequence_number, recorded, envelope_bytes)
        event = self._expected.popleft()
        self._compare(sequence_number, envelope_bytes, event.envelope)
        self._count(event)
        self._remember(event, envelope_bytes)
        return event.envelope

    def cite(self, envelope: Envelope) -> None:
        """Let proposals cite an event from before the state that the recomputation began with."""
        self._cited_events[envelope.sequence_number] = cited_event(envelope)

    def missing_citations(self, envelope_bytes: bytes) -> list[int]:
        """Return the events that an event's command cites, directly or by the reviewed proposal, and that have not been fed or cited."""
        if not any(kind in envelope_bytes for kind in _CITING_EVENTS):
            return []
        recorded = Envelope.FromString(envelope_bytes)
        proposal = recorded.proposal
        review = self.state.reviews.get(recorded.fact.review_resolved.decision_id or recorded.fact.review_voted.decision_id)
        if review is not None:
            proposal = review.proposal.proposal
        numbers = [reference.sequence_number for reference in proposal.based_on_events]
        return [number for number in numbers if number not in self._cited_events]

    def finish(self, *, at_head: bool) -> None:
        """Check that no event is missing at the end. A log that is cut off on purpose (not `at_head`) may end inside a commit."""
        if self._expected and at_head:
            missing = self._expected[0].envelope
            raise self._divergence(missing, "missing-event", f"event {missing.sequence_number} should follow, but the log ends", [])

    def _remember(self, event: RecordedEvent, envelope_bytes: bytes) -> None:
        """Remember what later events, and the result, need of an event; it then takes no more memory than its bytes."""
        event.pack(envelope_bytes)
        if event.payload == "fact":
            self._note_system_fact(event.envelope)
        elif event.payload != "observation":
            return
        citation = cited_event(event.envelope)
        if citation.keys:
            self._cited_events[event.sequence_number] = citation

    def _note_system_fact(self, envelope: Envelope) -> None:
        """Note events that open and fill counters or accept a loss."""
        fact = envelope.fact
        match fact.WhichOneof("system"):
            case "counters_opened":
                opened = fact.counters_opened
                rule_set = self.state.rule_sets[opened.policy_id, opened.version]
                self.fills.append(RecordedFill(envelope.sequence_number, rule_set, opened.digests))
            case "counter_filled":
                for fill in self.fills:
                    if fill.awaits(fact.counter_filled):
                        fill.events.append(envelope)
            case "data_loss_accepted":
                if len(self.data_losses) < DATA_LOSSES_MAX:
                    self.data_losses.append(fact.data_loss_accepted)

    def _predict(self, number: int, recorded: Envelope, envelope_bytes: bytes) -> None:
        """Handle the command of an input again, or fire a timer that is due before it, and expect the events.

        The command takes `recorded` over and changes it; `envelope_bytes` still have it.
        """
        self.state.commit()
        now_ms = milliseconds(recorded.recorded_at)
        judgements = self._early_judgement.judgements if self._early_judgement is not None else {}
        self._early_judgement = None
        # Timers wait until a loss is accepted.
        if self.state.next_due(now_ms) is not None and recorded.event_name != "DataLossAccepted":
            timers = handle(self.state, Tick(1, unjudged_candidates(recorded), judgements), now_ms=now_ms, engine=self._engine)
            self._input = timers.events[0].stored
            self._expected.extend(timers.events)
            return
        self._input = StoredEvent(None, envelope_bytes)
        principal = principal_of(recorded)
        try:
            command, references = command_of(recorded, self.state, self._cited_events, self._compile_document)
        except DocumentError as error:
            what, kind = ("grants", "grants-invalid") if recorded.fact.HasField("grants_deployed") else ("rule set", "rule-set-invalid")
            message = f"the {what} of event {number} does not compile: {error}"
            raise self._divergence(self._input.read(), kind, message, []) from error
        if command is None:
            message = f"event {number} ({recorded.event_name}) follows from nothing in the log"
            raise self._divergence(self._input.read(), "unexpected-event", message, [])
        handled = handle(self.state, command, references, now_ms, self._engine, principal)
        if not handled.events:
            reason = handled.answer.message if isinstance(handled.answer, Fault) else "it appends nothing"
            message = f"event {number} is refused when it is handled again: {reason}"
            raise self._divergence(self._input.read(), "refused-event", message, [])
        self._expected.extend(handled.events)

    def _compare(self, sequence_number: int, envelope_bytes: bytes, expected: Envelope) -> None:
        """Compare an event with the expected one: their bytes, and if these differ their fields, because one message has many encodings.

        An encoding with a duplicate field is refused: another reader may read another message in it.
        """
        if expected.SerializeToString(deterministic=True) == envelope_bytes:
            return
        envelope = decode(sequence_number, envelope_bytes)
        if envelope == expected:
            duplicate = find_duplicate_field(envelope_bytes, Envelope.DESCRIPTOR)
            if duplicate:
                message = f"event {sequence_number} ({envelope.event_name}) has the field {duplicate} twice in its bytes"
                raise self._divergence(envelope, "duplicate-field", message, [])
            return
        differences = list(field_differences(envelope, expected))
        summary = ", ".join(difference.path for difference in differences[:5]) or "its encoding"
        message = f"event {envelope.sequence_number} ({envelope.event_name}) is recomputed differently: {summary}"
        raise self._divergence(envelope, "field-mismatch", message, differences)

    def _divergence(self, event: Envelope, kind: str, message: str, differences: list[FieldDifference]) -> DivergedError:
        inputs = []
        if self._input is not None:
            envelope = self._input.read()
            inputs.append(EventReference(event_id=envelope.event_id, sequence_number=envelope.sequence_number))
            inputs.extend(envelope.proposal.based_on_events)
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

    def _count(self, event: RecordedEvent) -> None:
        self.events += 1
        if event.payload == "decision":
            self.decisions += 1
        elif event.payload == "fact" and event.envelope.fact.decision_id:
            self.derived_facts += 1
