"""From the record of a trace to the messages of an audit: models, tools, decisions with their people."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from gavel.v1.audit_service_pb2 import Audit, DecisionAudit, FactUse, ModelUse, PersonAct, ToolUse
from gavel.v1.common_pb2 import TRUST_TIER_1_SYSTEM_FACT, VersionBinding
from gavel.v1.envelope_pb2 import Envelope
from gavel_rules.events.timestamps import milliseconds
from gavel_rules.state.versions import TraceVersions

from gavel_server.history.audit.trace_record import VALUE_BYTES_MAX, TraceRecord
from gavel_server.log import Record

MODELS_MAX: Final = 200
TOOLS_MAX: Final = 200
DECISIONS_MAX: Final = 100
COUNTERS_MAX: Final = 500
FACTS_MAX: Final = 500
# Different versions of one kind that are compared with what holds now.
VERSIONS_MAX: Final = 128


def collect(record: TraceRecord, events: Sequence[Envelope], decisions: Sequence[Envelope]) -> tuple[Audit, TraceVersions]:
    """Return an audit without facts and drift, and the versions that `events` name. Takes tens of milliseconds: call it in a thread."""
    versions = TraceVersions(0)
    for event in events:
        versions = versions.with_event(event, str(event.WhichOneof("payload")), VERSIONS_MAX)
    model_uses, tool_uses = models(events), tools(events)
    decision_audits = [decision_audit(event, record) for event in decisions[:DECISIONS_MAX]]
    omits_counters = _limit_counters(decision_audits)
    audit = Audit(
        trace_id=record.trace_id,
        version_binding=VersionBinding(**{bound.field: bound.version for bound in versions.bound}) if versions.bound else None,
        models=model_uses[:MODELS_MAX],
        tools=tool_uses[:TOOLS_MAX],
        decisions=decision_audits,
        truncated=record.truncated
        or len(model_uses) > MODELS_MAX
        or len(tool_uses) > TOOLS_MAX
        or len(decisions) > DECISIONS_MAX
        or omits_counters,
    )
    return audit, versions


def models(events: Iterable[Envelope]) -> list[ModelUse]:
    """Return the model calls."""
    return [
        ModelUse(
            sequence_number=event.sequence_number,
            producer=event.producer,
            principal=event.attestation.principal,
            invocation=event.agent_diagnostic.llm_invocation,
        )
        for event in events
        if event.agent_diagnostic.HasField("llm_invocation")
    ]


def tools(events: Sequence[Envelope]) -> list[ToolUse]:
    """Return the tools that were called, by version, provider and schemas. A result belongs to the call with its execution_id."""
    results = {event.tool_result.execution_id: event for event in reversed(events) if event.HasField("tool_result")}
    uses: dict[tuple[str, ...], ToolUse] = {}
    for event in events:
        if not event.HasField("tool_call"):
            continue
        call = event.tool_call
        answer = results.get(call.execution_id) if call.execution_id else None
        result = answer.tool_result if answer is not None else None
        provider_id = call.provider_id or (result.provider_id if result is not None else "")
        response_schema_hash = result.response_schema_hash if result is not None else ""
        key = (call.tool_name, call.tool_version, provider_id, call.request_schema_hash, response_schema_hash)
        use = uses.get(key)
        if use is None:
            use = uses[key] = ToolUse(
                tool_name=call.tool_name,
                tool_version=call.tool_version,
                provider_id=provider_id,
                request_schema_hash=call.request_schema_hash,
                response_schema_hash=response_schema_hash,
                first_sequence_number=event.sequence_number,
            )
        use.calls += 1
        use.failures += result is not None and result.is_error
        use.open += result is None
        for one in (event, answer):
            principal = one.attestation.principal if one is not None else ""
            if principal and principal not in use.principals:
                use.principals.append(principal)
    return list(uses.values())


def decision_audit(event: Envelope, record: TraceRecord) -> DecisionAudit:
    """Return a decision with its proposer, executor, people and counters; its facts are in the log."""
    decision = event.decision
    audit = DecisionAudit(
        sequence_number=event.sequence_number,
        decision_id=decision.decision_id,
        proposal_id=decision.proposal_id,
        previous_decision_id=decision.previous_decision_id,
        action_type=decision.action_type,
        subject=event.subject,
        outcome=decision.outcome,
        reason_code=decision.reason_code,
        policy_id=decision.policy_id,
        policy_version=decision.policy_version,
        rule_id=decision.rule_id,
        evaluated_at=decision.evaluated_at,
        active_rule_sets=decision.active_rule_sets,
        people=[_person_act(act) for act in record.acts.get(decision.decision_id, ())],
        counters=decision.counters,
    )
    proposal = record.proposals.get(decision.proposal_id)
    if proposal is not None:
        audit.proposer.CopyFrom(proposal.producer)
        if proposal.HasField("attestation"):
            audit.proposer_principals.extend([proposal.attestation.principal, *proposal.attestation.actors])
    started = record.starts.get(decision.decision_id)
    if started is not None:
        audit.executor.CopyFrom(started.producer)
        audit.executor_principal = started.attestation.principal
    return audit


def _limit_counters(audits: Iterable[DecisionAudit]) -> bool:
    """Remove the counters beyond COUNTERS_MAX, the latest first; return whether there were any."""
    left = COUNTERS_MAX
    for audit in audits:
        count = len(audit.counters)
        del audit.counters[max(left, 0) :]
        left -= count
    return left < 0


def evidence_of(decision: Envelope, selected: Iterable[tuple[int, str]]) -> list[tuple[int, str]]:
    """Return (sequence number, key) of the evidence of a decision: what it pins, or else what was `selected` for it."""
    return [(pin.sequence_number, pin.key) for pin in decision.decision.pinned_facts] or list(selected)


def fact_numbers(event: Envelope, record: TraceRecord, evidence: Iterable[tuple[int, str]]) -> list[int]:
    """Return the sequence numbers of the facts of a decision: its evidence, and without pins also what its proposal cites."""
    numbers = [number for number, _ in evidence]
    proposal = record.proposals.get(event.decision.proposal_id)
    if proposal is not None and not event.decision.pinned_facts:
        numbers.extend([reference.sequence_number for reference in proposal.proposal.based_on_events])
    return list(dict.fromkeys(numbers))


def fact_uses(decision: Envelope, evidence: Iterable[tuple[int, str]], records: Iterable[Record]) -> list[FactUse]:
    """Return the facts of a decision from the events that state them. Takes milliseconds for large events: call it in a thread."""
    evaluated_at_ms = milliseconds(decision.decision.evaluated_at)
    selected = set(evidence)
    numbers = {number for number, _ in selected}
    uses = []
    for record in records:
        event = Envelope.FromString(record.envelope)
        stated_at_ms = milliseconds(event.occurred_at)
        values = {event.fact.key: event.fact.value} if event.HasField("fact") else dict(event.observation.extracted_fields)
        if event.fact.HasField("aged_from"):
            stated_at_ms = milliseconds(event.fact.aged_from)
        if event.HasField("observation"):
            stated_at_ms = milliseconds(event.observation.observed_at)
            if event.observation.HasField("evidence_recorded_at"):
                stated_at_ms = min(stated_at_ms, milliseconds(event.observation.evidence_recorded_at))
        for key in sorted(values):
            if event.sequence_number in numbers and (event.sequence_number, key) not in selected:
                continue  # the decision rests on other keys of the observation
            use = FactUse(
                key=key,
                subject=event.subject,
                trust_tier=event.observation.trust_tier or event.fact.trust_tier or TRUST_TIER_1_SYSTEM_FACT,
                event_id=event.event_id,
                sequence_number=event.sequence_number,
                age_ms=max(evaluated_at_ms - stated_at_ms, 0),
                producer=event.producer,
                principal=event.attestation.principal,
            )
            if values[key].ByteSize() <= VALUE_BYTES_MAX:
                use.value.CopyFrom(values[key])
            uses.append(use)
    return uses


def _person_act(act: Envelope) -> PersonAct:
    fact = act.fact
    person = PersonAct(sequence_number=act.sequence_number, principal=act.attestation.principal)
    match fact.WhichOneof("system"):
        case "review_resolved":
            resolved = fact.review_resolved
            person.name, person.verdict, person.reason = resolved.reviewer, resolved.verdict, resolved.reason
        case "review_voted":
            voted = fact.review_voted
            person.name, person.verdict, person.reason = voted.reviewer, voted.verdict, voted.reason
        case "revocation_requested":
            person.name, person.reason = fact.revocation_requested.revoked_by, fact.revocation_requested.reason
    return person
