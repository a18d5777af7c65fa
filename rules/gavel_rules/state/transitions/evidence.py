"""Transitions by evidence: facts, observations, tool calls and tool results."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final

from gavel.v1 import common_pb2, fact_pb2
from gavel.v1.fact_pb2 import Fact

from gavel_rules.codec.evidence_fragments import encode_pin
from gavel_rules.events.kinds import FACT, OBSERVATION
from gavel_rules.events.recorded_event import RecordedEvent
from gavel_rules.events.timestamps import milliseconds
from gavel_rules.identity.attestation import participants
from gavel_rules.limits import TRACE_TOOL_CALLS_MAX, TRACE_TOOL_RESULTS_MAX
from gavel_rules.state.keys import reading_key
from gavel_rules.state.records import Candidate, OutlivingResult, ToolCallRecord, ToolEvidence
from gavel_rules.state.store import Store
from gavel_rules.state.transitions.traces import assign_tool_result, forget_if_lapsed, remember_trace
from gavel_rules.values import value_to_python


def apply_fact(store: Store, event: RecordedEvent, fact: Fact) -> None:
    """Make a fact the candidate of its source. A derived fact may rest on less trusted and older evidence."""
    envelope = event.envelope
    claimed_at_ms = milliseconds(envelope.occurred_at)
    trust_tier = fact.trust_tier or common_pb2.TRUST_TIER_1_SYSTEM_FACT
    aged_from_ms = milliseconds(fact.aged_from) if fact.HasField("aged_from") else claimed_at_ms
    producer = envelope.producer
    subject = event.subject
    number = event.sequence_number
    key = fact.key
    _put_candidate(
        store,
        subject,
        key,
        Candidate(
            pin=encode_pin(key, subject, event.event_id, number, trust_tier, ""),
            sequence_number=number,
            category=FACT,
            trust_tier=trust_tier,
            source=producer.id,
            value=value_to_python(fact.value),
            claimed_at_ms=claimed_at_ms,
            stated_at_ms=min(claimed_at_ms, store.recorded_at_ms),
            aged_from_ms=aged_from_ms,
            max_age_ms=fact.max_age_ms,
            evidence_ref="",
            confidence=0.0,
            producer_type=producer.type,
            producer_id=producer.id,
            producer_version=producer.version,
            observed_from=fact.observed_from,
            derivation_rule_id=fact.derivation_rule_id,
            derivation_rule_version=fact.derivation_rule_version,
        ),
    )


def apply_observation(store: Store, event: RecordedEvent) -> None:
    """Make each field of an observation the candidate of its source, and note what was read in its tool result."""
    envelope = event.envelope
    observation = envelope.observation
    claimed_at_ms = milliseconds(observation.observed_at)
    aged_from_ms = claimed_at_ms
    if observation.HasField("evidence_recorded_at"):
        aged_from_ms = min(aged_from_ms, milliseconds(observation.evidence_recorded_at))
    producer = envelope.producer
    subject, event_id, number = event.subject, event.event_id, event.sequence_number
    trust_tier, evidence_ref, evidence_hash = observation.trust_tier, observation.evidence_ref, observation.evidence_hash
    for key in sorted(observation.extracted_fields):
        value = value_to_python(observation.extracted_fields[key])
        if evidence_ref:
            _note_reading(store, evidence_ref, reading_key(subject, key), _canonical(value))
        _put_candidate(
            store,
            subject,
            key,
            Candidate(
                pin=encode_pin(key, subject, event_id, number, trust_tier, evidence_hash),
                sequence_number=number,
                category=OBSERVATION,
                trust_tier=trust_tier,
                source=observation.source_tool,
                value=value,
                claimed_at_ms=claimed_at_ms,
                stated_at_ms=min(claimed_at_ms, store.recorded_at_ms),
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


def apply_tool_call(store: Store, event: RecordedEvent) -> None:
    """Remember a tool call in its trace."""
    call = event.envelope.tool_call
    execution_id = call.execution_id
    if execution_id:
        forget_if_lapsed(store, store.trace_of_execution.get(execution_id, ""))
        remember_trace(store, event.trace_id)
        calls = store.subtable(store.tool_calls, event.trace_id)
        if len(calls) >= TRACE_TOOL_CALLS_MAX:
            # Later observations of the results of the forgotten calls are inference.
            oldest = sorted(calls, key=lambda each: calls[each].sequence_number)[: TRACE_TOOL_CALLS_MAX // 4]
            for each in oldest:
                store.drop(calls, each)
                store.drop(store.trace_of_execution, each)
        store.put(calls, execution_id, ToolCallRecord(event.sequence_number, call.tool_name))
        if store.semantics.pairs_tool_calls:
            store.put(store.trace_of_execution, execution_id, event.trace_id)


def apply_tool_result(store: Store, event: RecordedEvent) -> None:
    """Remember a tool result in its trace, for observations to refer to.

    Its event_id may be that of an earlier result, whose idempotency window is over. The readings of that one stay.
    """
    result = event.envelope.tool_result
    remember_trace(store, event.trace_id)
    tables = store.tool_result_tables
    results = store.subtable(tables.tool_results, event.trace_id)
    if len(results) >= TRACE_TOOL_RESULTS_MAX:
        for event_id in tables.unread_results(results):
            store.drop(results, event_id)
            store.drop(tables.readings, event_id)
            store.drop(tables.trace_of_result, event_id)
    keeps_readings = store.semantics.keeps_readings
    if keeps_readings:  # after the loop, which may drop an earlier result of this event_id
        assign_tool_result(store, event.event_id, event.trace_id)
    envelope = event.envelope
    evidence = ToolEvidence(
        result.execution_id,
        result.tool_name,
        result.content_hash,
        result.is_error,
        store.recorded_at_ms,
        event.sequence_number,
        participants(envelope.attestation) if envelope.HasField("attestation") else (),
        envelope.producer.type == common_pb2.PRODUCER_TYPE_TOOL_RUNTIME,
    )
    store.put(results, event.event_id, evidence)
    if not keeps_readings:
        store.put(tables.readings, event.event_id, {})
    elif event.event_id not in tables.readings:
        _begin_readings(store, event.event_id)


def _begin_readings(store: Store, event_id: str) -> None:
    """Let a tool result have readings: at first none, or those of an earlier result of its event_id that has outlived its trace."""
    tables = store.tool_result_tables
    outliving = tables.outliving_result(event_id)
    if outliving is None:
        store.put(tables.readings, event_id, {})
        return
    store.put(tables.readings, event_id, dict(outliving.readings))
    store.put(tables.candidate_counts, event_id, outliving.candidate_count)
    if outliving.contradiction:
        store.put(tables.contradictions, event_id, outliving.contradiction)
    _put_outliving(store, event_id, {}, "", 0)


def _put_candidate(store: Store, subject: str, key: str, candidate: Candidate) -> None:
    """Replace the candidate of the same category, source and tier, unless that one is later."""
    keys = store.changeable_evidence(subject)
    others = []
    replaced_ref = ""
    for other in keys.get(key, ()):
        if (other.category, other.source, other.trust_tier) != (candidate.category, candidate.source, candidate.trust_tier):
            others.append(other)
        elif (other.claimed_at_ms, other.sequence_number) > (candidate.claimed_at_ms, candidate.sequence_number):
            return
        else:
            replaced_ref = other.evidence_ref
    store.put(keys, key, (*others, candidate))
    if store.semantics.keeps_readings and replaced_ref != candidate.evidence_ref:
        _count_candidate(store, candidate.evidence_ref, 1)
        _count_candidate(store, replaced_ref, -1)


def _count_candidate(store: Store, evidence_ref: str, change: int) -> None:
    """Count a candidate more (1) or less (-1) for the tool result that it was read in, if that is remembered."""
    tables = store.tool_result_tables
    if evidence_ref in tables.readings:
        count = tables.candidate_counts.get(evidence_ref, 0) + change
        if count > 0:
            store.put(tables.candidate_counts, evidence_ref, count)
        else:
            store.drop(tables.candidate_counts, evidence_ref)
        return
    outliving = tables.outliving_result(evidence_ref) if evidence_ref else None
    if outliving is not None:
        count = outliving.candidate_count + change
        _put_outliving(store, evidence_ref, outliving.readings if count else {}, outliving.contradiction if count else "", count)


def _note_reading(store: Store, evidence_ref: str, key: str, value: str) -> None:
    """Note an observation's reading of a tool result, and a contradiction with an earlier one (constitution §4.6)."""
    tables = store.tool_result_tables
    forget_if_lapsed(store, tables.trace_of_result.get(evidence_ref, ""))
    live = tables.readings.get(evidence_ref)
    if live is not None:
        if key not in live:
            store.put(live, key, value)
        elif evidence_ref not in tables.contradictions and live[key] != value:
            store.put(tables.contradictions, evidence_ref, key)
        return
    outliving = tables.outliving_result(evidence_ref)
    if outliving is None:
        return
    if key not in outliving.readings:
        readings = {**outliving.readings, key: value}
        _put_outliving(store, evidence_ref, readings, outliving.contradiction, outliving.candidate_count)
    elif not outliving.contradiction and outliving.readings[key] != value:
        _put_outliving(store, evidence_ref, outliving.readings, key, outliving.candidate_count)


def _put_outliving(store: Store, event_id: str, readings: Mapping[str, str], contradiction: str, count: int) -> None:
    result = OutlivingResult(readings, contradiction, count, store.head)
    store.put(store.tool_result_tables.outliving_results.changes, event_id, result)


# About the length of the hash that replaces longer texts.
_READING_LENGTH_MAX: Final = 64


def _canonical(value: Any) -> str:
    """Return a short text that is equal for equal JSON values: their JSON, or its hash if that is long. True differs from 1."""
    text = json.dumps(value, sort_keys=True)
    return text if len(text) <= _READING_LENGTH_MAX else "sha256:" + hashlib.sha256(text.encode()).hexdigest()
