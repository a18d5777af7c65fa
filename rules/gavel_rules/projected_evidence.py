"""How what is observed, and the traces that it belongs to, change the present of a bus: the lowest layer of `projection`.

A trace is remembered while it is alive: its count of rejections, what it may not propose any more, its tool calls and results.
The candidates for evidence outlive it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final

from gavel.v1 import fact_pb2
from gavel.v1.decision_pb2 import Decision
from gavel.v1.envelope_pb2 import Envelope

from gavel_rules.events import OBSERVATION, milliseconds
from gavel_rules.limits import TRACE_ENDINGS_MAX, TRACE_LAPSE_MS, TRACE_TOOL_CALLS_MAX, TRACE_TOOL_RESULTS_MAX
from gavel_rules.made import Made
from gavel_rules.pins import pin
from gavel_rules.records import NO_REJECTIONS, Candidate, Ended, Kept, Rejections, ToolEvidence, Trace, packed
from gavel_rules.tables import Tables, action_on, read_key
from gavel_rules.values import value_to_python


class EvidenceProjection(Tables):
    """The tables, with what changes evidence and traces."""

    def _apply_observation(self, made: Made) -> None:
        envelope = made.envelope
        observation = envelope.observation
        claimed_at_ms = milliseconds(observation.observed_at)
        aged_from_ms = claimed_at_ms
        if observation.HasField("evidence_recorded_at"):
            aged_from_ms = min(aged_from_ms, milliseconds(observation.evidence_recorded_at))
        producer = envelope.producer
        subject, event_id, number = made.subject, made.event_id, made.sequence_number
        trust_tier, evidence_ref, evidence_hash = observation.trust_tier, observation.evidence_ref, observation.evidence_hash
        of_evidence = self.readings.get(evidence_ref)
        for key in sorted(observation.extracted_fields):
            value = value_to_python(observation.extracted_fields[key])
            if of_evidence is not None:
                self._note_reading(evidence_ref, of_evidence, read_key(subject, key), _as_read(value))
            self._put_candidate(
                subject,
                key,
                Candidate(
                    pin=pin(key, subject, event_id, number, trust_tier, evidence_hash),
                    sequence_number=number,
                    category=OBSERVATION,
                    trust_tier=trust_tier,
                    source=observation.source_tool,
                    value=value,
                    claimed_at_ms=claimed_at_ms,
                    stated_at_ms=min(claimed_at_ms, self.recorded_at_ms),
                    aged_from_ms=aged_from_ms,
                    max_age_ms=0,
                    evidence_ref=evidence_ref,
                    confidence=observation.confidence,
                    producer_type=producer.type,
                    producer_id=producer.id,
                    producer_version=producer.version,
                    observed_from=fact_pb2.OBSERVED_FROM_UNSPECIFIED,
                    derivation_rule_id="",
                    derivation_rule_version=0,
                ),
            )

    def _note_reading(self, evidence_ref: str, of_evidence: dict[str, str], what: str, value: str) -> None:
        """Note what an observation, whoever made it, says that a tool result says (seeds 002 §4.6)."""
        if what not in of_evidence:
            self._put(of_evidence, what, value)
        elif evidence_ref not in self.contradicted and of_evidence[what] != value:
            self._put(self.contradicted, evidence_ref, what)

    def _put_candidate(self, subject: str, key: str, candidate: Candidate) -> None:
        keys = self._inner(self.evidence, subject)
        others = []
        for other in keys.get(key, ()):
            if (other.category, other.source, other.trust_tier) != (candidate.category, candidate.source, candidate.trust_tier):
                others.append(other)
            elif (other.claimed_at_ms, other.sequence_number) > (candidate.claimed_at_ms, candidate.sequence_number):
                return
        self._put(keys, key, (*others, candidate))

    def _apply_tool_call(self, made: Made) -> None:
        call = made.envelope.tool_call
        if call.execution_id:
            self._keep_trace(made.trace_id)
            calls = self._inner(self.tool_calls, made.trace_id)
            if len(calls) >= TRACE_TOOL_CALLS_MAX:
                # What observes a result of theirs from here on is inference.
                self._drop_oldest(calls, calls, TRACE_TOOL_CALLS_MAX // 4)
            self._put(calls, call.execution_id, made.sequence_number)

    def _apply_tool_result(self, made: Made) -> None:
        result = made.envelope.tool_result
        self._keep_trace(made.trace_id)
        results = self._inner(self.tool_results, made.trace_id)
        if len(results) >= TRACE_TOOL_RESULTS_MAX:
            for event_id in self._spare_results(results):
                self._drop(results, event_id)
                self._drop(self.readings, event_id)
        evidence = ToolEvidence(
            result.execution_id, result.tool_name, result.content_hash, result.is_error, self.recorded_at_ms, made.sequence_number
        )
        self._put(results, made.event_id, evidence)
        self._put(self.readings, made.event_id, {})

    def _keep_trace(self, trace_id: str) -> None:
        if trace_id not in self.traces:
            self._put_trace(trace_id, Trace(NO_REJECTIONS, self.recorded_at_ms))

    def _end(self, made: Made, decision: Decision, by_person: bool) -> None:
        """Note that the action on the subject is hopeless for the trace, as the decision says."""
        ended = Ended(_ending(made, decision), made.event_id, self.head, by_person)
        of_trace = self._inner(self.ended, made.trace_id)
        self._put(of_trace, action_on(decision.action_type, made.subject), ended)
        if len(of_trace) > TRACE_ENDINGS_MAX:
            # What a person has rejected stays so. The rules can be asked again: they come to the same, or the facts have changed.
            by_rules = {what: ended.sequence_number for what, ended in of_trace.items() if not ended.by_person}
            if len(by_rules) > TRACE_ENDINGS_MAX:
                self._drop_oldest(of_trace, by_rules, len(by_rules) // 4)

    def _count(self, trace_id: str, rejections: Rejections, review: str, refused: str) -> None:
        trace = self.traces.get(trace_id)
        if rejections.total and trace is not None:
            refused = refused or trace.refused
        review = review or (trace.review if trace else "")
        if rejections.total or review or trace_id in self.tool_calls or trace_id in self.tool_results or trace_id in self.ended:
            self._put_trace(trace_id, Trace(rejections, self.recorded_at_ms, review, refused))
        elif trace is not None:
            self._drop_trace(trace_id, trace)

    def _drop_oldest(self, table: dict[str, Any], numbers: Mapping[str, int], count: int) -> None:
        """Drop the `count` oldest by sequence number. Many at once: to look for them takes longer than to drop them."""
        for name in sorted(numbers, key=numbers.__getitem__)[:count]:
            self._drop(table, name)

    def _put_trace(self, trace_id: str, trace: Trace) -> None:
        old = self.traces.get(trace_id)
        if old is not None:
            if old.last_event_ms == trace.last_event_ms:
                self._put(self.traces, trace_id, trace)
                return
            self._unschedule(self._lapses, (old.last_event_ms, trace_id))
        self._put(self.traces, trace_id, trace)
        self._schedule(self._lapses, (trace.last_event_ms, trace_id))

    def _drop_trace(self, trace_id: str, trace: Trace) -> None:
        self._unschedule(self._lapses, (trace.last_event_ms, trace_id))
        self._drop(self.traces, trace_id)
        self._forget_endings(trace_id)
        self._drop(self.tool_calls, trace_id)
        for event_id in self.tool_results.get(trace_id, ()):
            self._drop(self.readings, event_id)
            self._drop(self.contradicted, event_id)
        self._drop(self.tool_results, trace_id)

    def _forget_endings(self, trace_id: str) -> None:
        """Drop what the rules have ended in a trace, and keep what a person has."""
        kept = {what: ended for what, ended in self.ended.get(trace_id, {}).items() if ended.by_person}
        self._drop(self.ended, trace_id)
        if kept:
            self._put(self.ended, trace_id, kept)

    def _forget_lapsed_traces(self) -> None:
        """Drop traces that have been silent for too long; one under review stays, without its tool evidence."""
        horizon_ms = self.recorded_at_ms - TRACE_LAPSE_MS
        while self._lapses and self._lapses[0][0] < horizon_ms:
            trace_id = self._lapses[0][1]
            trace = self.traces[trace_id]
            self._drop_trace(trace_id, trace)
            if trace.review:
                self._put_trace(trace_id, Trace(NO_REJECTIONS, self.recorded_at_ms, trace.review))


def _ending(made: Made, decision: Decision) -> Kept:
    """Return the decision by which something ended, or where its agent had much to say what `Ended` reads in it."""
    if decision.params.ByteSize() <= _ENDING_PARAMS_BYTES_MAX:
        return made.kept
    return packed(
        Envelope(
            decision=Decision(
                active_rule_sets=decision.active_rule_sets, pinned_facts=decision.pinned_facts, absent_facts=decision.absent_facts
            )
        )
    )


# A trace may have TRACE_ENDINGS_MAX endings for a day, and params a megabyte.
_ENDING_PARAMS_BYTES_MAX: Final = 1_024


def _as_read(value: Any) -> str:
    """Return what stands for a JSON value among readings: equal if the values are, and short. A boolean is no number."""
    text = json.dumps(value, sort_keys=True)
    return text if len(text) <= _READING_LENGTH_MAX else "sha256:" + hashlib.sha256(text.encode()).hexdigest()


# About as long as the hash that stands for what is longer.
_READING_LENGTH_MAX: Final = 64
