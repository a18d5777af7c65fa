"""Events in words: one line that says what happened and why, for `gavel log`, `gavel trace` and the demo.

A line is a function of its event alone. Control characters are escaped, so that no event can move a cursor or colour a terminal.
"""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any, Final, Literal

from gavel.v1 import decision_pb2, execution_pb2, fact_pb2
from gavel.v1.common_pb2 import EventCategory, ProducerType
from gavel.v1.decision_pb2 import CounterReading, Decision, FactRequirement, FactRequirementState, Outcome, ReviewPolicy
from gavel.v1.diagnostic_pb2 import AgentDiagnostic, LlmInvocation, ShadowVerdict
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.event_service_pb2 import ToolPair, ToolPairState
from gavel.v1.execution_pb2 import Execution, ExecutionStatus
from gavel.v1.fact_pb2 import DataLossAccepted, Fact, ReviewVerdict, ReviewVoted
from gavel.v1.observation_pb2 import Observation
from gavel.v1.projection_service_pb2 import PendingDecision, PendingReview
from gavel.v1.proposal_pb2 import Proposal
from gavel.v1.tool_pb2 import ToolCall, ToolResult
from gavel_client.values import from_struct, from_value
from gavel_rules.text import printable
from google.protobuf.struct_pb2 import Struct, Value
from google.protobuf.timestamp_pb2 import Timestamp

TEXT_LENGTH_MAX: Final = 200
DIGEST_LENGTH_SHOWN: Final = len("sha256:") + 12
# Units of durations with their milliseconds, largest first.
DURATION_UNITS: Final = (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000))

_STATE_WORDS: Final = {
    decision_pb2.FACT_REQUIREMENT_STATE_MISSING: "missing",
    decision_pb2.FACT_REQUIREMENT_STATE_STALE: "too old",
    decision_pb2.FACT_REQUIREMENT_STATE_TIER_TOO_LOW: "not trusted enough",
    decision_pb2.FACT_REQUIREMENT_STATE_SOURCE_NOT_ACCEPTED: "from a source that is not accepted",
    decision_pb2.FACT_REQUIREMENT_STATE_SUPERSEDED: "superseded",
    decision_pb2.FACT_REQUIREMENT_STATE_WRONG_TYPE: "of the wrong type",
}


def describe(envelope: Envelope, *, beside_name: bool = False) -> str:
    """Return one line on an event's content. Beside the event's name, the kind of a diagnostic with this name is not repeated."""
    match envelope.WhichOneof("payload"):
        case "fact":
            return _fact(envelope.fact) + _lateness(envelope)
        case "proposal":
            return _proposal(envelope.proposal)
        case "decision":
            return outcome_line(envelope.decision)
        case "execution":
            return _execution(envelope.execution)
        case "observation":
            return _observation(envelope.observation)
        case "tool_call":
            return _tool_call(envelope.tool_call)
        case "tool_result":
            return _tool_result(envelope.tool_result)
        case "agent_diagnostic":
            diagnostic = envelope.agent_diagnostic
            kind = "" if beside_name and diagnostic.kind == envelope.event_name else diagnostic.kind
            return printable(": ".join(part for part in (kind, _diagnostic_detail(diagnostic)) if part))
    return "(no payload)"


def outcome_line(decision: Decision) -> str:
    """Return one line on a decision: outcome, reason, rule, conflicts, and the evidence that it lacks or rests on."""
    return ", ".join([verdict_line(decision), *evidence_lines(decision)])


def verdict_line(decision: Decision) -> str:
    """Return one line on a decision's outcome and the reason for it."""
    parts = outcome_words(decision)
    if decision.rule_id:
        parts.append(f"by rule {decision.rule_id} of {decision.policy_id} {decision.policy_version}")
    if decision.compensates_decision_id:
        parts.append(f"compensates {decision.compensates_decision_id} with {decision.action_type} {format_struct(decision.params)}")
    if decision.conflict_with_proposal_ids:
        parts.append(f"conflicts with {', '.join(decision.conflict_with_proposal_ids)}")
    if decision.terminal:
        parts.append("final: do not retry")
    parts += [f"{warning.code} {warning.message}".strip() for warning in decision.warnings]
    return printable(", ".join(parts))


def outcome_words(decision: Decision) -> list[str]:
    """Return a decision's outcome, and its reason code unless that is the same word (REVOKED)."""
    outcome = enum_name(Outcome, decision.outcome)
    return [outcome] if decision.reason_code in ("", outcome) else [outcome, decision.reason_code]


def pending_line(pending: PendingDecision | PendingReview) -> str:
    """Return the action of a pending decision or review, and the decision that it compensates."""
    compensates = f", compensates {pending.compensates_decision_id}" if pending.compensates_decision_id else ""
    return f"{pending.action_type} {format_struct(pending.params)}{compensates}"


def voters_text(policy: ReviewPolicy, *, escalated: bool = False) -> str:
    """Return who may vote in a review. With an empty policy, everybody who may review the action may vote."""
    groups = sorted({*policy.groups, *policy.escalate_to}) if escalated and policy.groups else list(policy.groups)
    parts = [f"members of {' or '.join(groups)}" if groups else "everybody"]
    if policy.separation:
        parts.append("other than the proposer")
    if escalated:
        parts.append("(escalated)")
    return printable(" ".join(parts))


def policy_line(policy: ReviewPolicy) -> str:
    """Return who has to resolve a review, and when it is escalated."""
    parts = [f"{policy.quorum} of {voters_text(policy)}"]
    if policy.escalate_after_ms:
        groups = f" to {' and '.join(policy.escalate_to)}" if policy.escalate_to else ""
        parts.append(f"escalated{groups} after {format_duration(policy.escalate_after_ms)}")
    return printable(", ".join(parts))


def votes_text(pending: PendingReview) -> str:
    """Return how many of the votes that a review needs have been given, and by whom, e.g. "1 of 2: ada"."""
    approvers = [vote.reviewer for vote in pending.votes if vote.verdict == fact_pb2.REVIEW_VERDICT_APPROVE]
    count = f"{len(approvers)} of {max(1, pending.review_policy.quorum)}"
    return printable(f"{count}: {', '.join(approvers)}" if approvers else count)


def loss_line(loss: DataLossAccepted) -> str:
    """Return the acceptance of a loss as a line."""
    what = (
        f"ACCEPT the loss of event {loss.acknowledged_sequence_number} ({loss.acknowledged_chain_hash.hex()[:8]}…) "
        f"by a log that ended at event {loss.head_sequence_number} ({loss.head_chain_hash.hex()[:8]}…)"
    )
    return _person_line(loss.accepted_by, what, loss.reason)


def vote_line(voted: ReviewVoted) -> str:
    """Return one line on a vote or comment that did not end its review."""
    what = f"{enum_name(ReviewVerdict, voted.verdict)} on {voted.decision_id}"
    if voted.verdict == fact_pb2.REVIEW_VERDICT_APPROVE:
        what += f", {voted.votes} of {voted.quorum} votes"
    return _person_line(voted.reviewer, what, voted.reason)


def shadow_verdict_line(verdict: ShadowVerdict) -> str:
    """Return one line on a verdict of a ShadowDifference, like `verdict_line`."""
    return verdict_line(
        Decision(
            outcome=verdict.outcome,
            reason_code=verdict.reason_code,
            policy_id=verdict.policy_id,
            policy_version=verdict.policy_version,
            rule_id=verdict.rule_id,
        )
    )


def evidence_lines(decision: Decision) -> list[str]:
    """Return a line for each fact that a refused decision requires, or one line on what an approval rests on. Then the counters that were
    read, what the rule shows, and the delay before a retry.
    """
    lines = [requirement_line(row) for row in decision.retry_hint.fact_requirements]
    if decision.pinned_facts:
        lines.append(f"rests on {', '.join(f'{fact.key} (#{fact.sequence_number})' for fact in decision.pinned_facts)}")
    lines += map(reading_text, decision.counters)
    if decision.details.fields:
        lines.append(format_struct(decision.details))
    if decision.retry_hint.retry_after_ms:
        lines.append(f"retry after {format_delay(decision.retry_hint.retry_after_ms)}")
    return [printable(line) for line in lines]


def reading_text(reading: CounterReading) -> str:
    """Return what a counter gave, e.g. "spent(ann) is 90"."""
    return f"{reading.counter}({reading.key}) is {format_number(reading.value)}"


def requirement_line(row: FactRequirement, *, with_subject: bool = False) -> str:
    """Return what is wrong with a fact, and what is required of it."""
    required = []
    if row.required_trust_tier:
        required.append(f"tier {int(row.required_trust_tier)} or better")
    if row.max_age_ms:
        required.append(f"at most {format_duration(row.max_age_ms)} old")
    if row.sources:
        required.append(f"from {' or '.join(row.sources)}")
    requirement = f" (required: {', '.join(required)})" if required else ""
    fact = f"{row.key} of {printable(row.subject)}" if with_subject else row.key
    return f"{fact} {_STATE_WORDS.get(row.state, enum_name(FactRequirementState, row.state))}{requirement}"


def pair_state(pair: ToolPair) -> str:
    """Return how a tool call and a result were matched, e.g. "paired by name"."""
    state = enum_name(ToolPairState, pair.state).lower().replace("_", " ")
    return f"{state}: {printable(pair.result_tool_name)}" if pair.result_tool_name else state


def describe_pair(pair: ToolPair, result: Envelope, call: Envelope | None) -> str:
    """Return in one line which call a tool result answers."""
    if call is None:
        return f"{pair_state(pair)}: no call of this trace has its execution_id or tool"
    duration_ms = result.recorded_at.ToMilliseconds() - call.recorded_at.ToMilliseconds()
    return f"{pair_state(pair)}: answers #{call.sequence_number} ({printable(pair.tool_name)}) after {format_duration(duration_ms)}"


def category_name(envelope: Envelope) -> str:
    """Return an event's category without prefix and suffix, e.g. "FACT"."""
    return enum_name(EventCategory, envelope.event_category).removesuffix("_EVENT")


def producer_name(envelope: Envelope) -> str:
    """Return the event's producer, e.g. "agent refund-agent"."""
    kind = enum_name(ProducerType, envelope.producer.type).lower().replace("_", "-")
    return printable(f"{kind} {envelope.producer.id}")


def format_time(timestamp: Timestamp, precision: Literal["seconds", "milliseconds"] = "milliseconds") -> str:
    """Return a time as RFC 3339 in UTC; "-" for an unset one."""
    if not timestamp.seconds and not timestamp.nanos:
        return "-"
    return timestamp.ToDatetime().isoformat(timespec=precision) + "Z"


def short_digest(digest: str) -> str:
    """Return the start of a digest, long enough to distinguish two."""
    return f"{digest[:DIGEST_LENGTH_SHOWN]}…"


def format_duration(milliseconds: int) -> str:
    """Return a duration in units of which it has at least two, e.g. "60 s", "24 h" or "23 h 59 min 58 s"; in milliseconds if not whole
    seconds.
    """
    if milliseconds < DURATION_UNITS[-1][1] * 2 or milliseconds % DURATION_UNITS[-1][1]:
        return f"{milliseconds} ms"
    parts: list[str] = []
    for unit, size in DURATION_UNITS:
        if milliseconds >= (size if parts else size * 2):
            count, milliseconds = divmod(milliseconds, size)
            parts.append(f"{count} {unit}")
    return " ".join(parts)


def format_delay(milliseconds: int) -> str:
    """Return a minimum delay, like `format_duration` but rounded up, in at most two units, e.g. "24 d 21 h" or "60 s"."""
    if milliseconds < 1000:
        return format_duration(milliseconds)
    precision = next((smaller for (_, size), (_, smaller) in pairwise(DURATION_UNITS) if milliseconds >= size * 2), 1000)
    rounded = -(-milliseconds // precision) * precision
    return format_duration(rounded) if rounded > precision else f"{rounded // 1000} s"


def format_number(value: float) -> str:
    """Return a number with all its digits, e.g. "1000000000000001" or "0.1"."""
    return str(int(value)) if value.is_integer() else repr(value)


def enum_name(enumeration: Any, value: int) -> str:
    """Return an enum value's name without the enum's prefix, e.g. "APPROVED"; the number of a value that only a newer server knows."""
    if value not in enumeration.values():
        return str(value)
    name: str = enumeration.Name(value)
    prefix = "".join(f"_{letter}" if letter.isupper() else letter.upper() for letter in enumeration.DESCRIPTOR.name).lstrip("_")
    return name.removeprefix(f"{prefix}_")


def format_struct(struct: Struct) -> str:
    """Return a Struct as compact JSON."""
    return printable(json.dumps(from_struct(struct), ensure_ascii=False, sort_keys=True))


def format_value(value: Value) -> str:
    """Return a Value as compact JSON."""
    return printable(json.dumps(from_value(value), ensure_ascii=False, sort_keys=True))


def _fact(fact: Fact) -> str:
    system = fact.WhichOneof("system")
    if system is not None:
        return _system_fact(fact, system)
    limit = f", good for {format_duration(fact.max_age_ms)}" if fact.max_age_ms else ""
    origin = f", derived by {fact.derivation_rule_id} {fact.derivation_rule_version}" if fact.derivation_rule_id else ""
    if fact.trust_tier:
        origin += f" from evidence of trust tier {fact.trust_tier}"
    if fact.HasField("aged_from"):
        origin += f" as of {format_time(fact.aged_from)}"
    if fact.value.HasField("null_value"):
        return printable(f"{fact.key} retracted{origin}")
    return printable(f"{fact.key} = {format_value(fact.value)}{limit}{origin}")


def _lateness(envelope: Envelope) -> str:
    """Return how long before its recording the event happened, if a second or more."""
    seconds = round((envelope.recorded_at.ToMilliseconds() - envelope.occurred_at.ToMilliseconds()) / 1000)
    return f", happened {format_duration(seconds * 1000)} earlier" if envelope.HasField("occurred_at") and seconds else ""


def _system_fact(fact: Fact, system: str) -> str:
    match system:
        case "bus_opened":
            return f"bus opened, arbiter version {fact.bus_opened.arbiter_version}"
        case "rule_set_deployed":
            deployed = fact.rule_set_deployed
            what = f"rule set {deployed.policy_id} {deployed.version} deployed"
            return f"{what}{_cause(deployed.principal, deployed.reason)}, {short_digest(deployed.digest)}"
        case "counters_opened":
            opened = fact.counters_opened
            return f"counters of rule set {opened.policy_id} {opened.version} opened: {len(opened.digests)}"
        case "counter_filled":
            filled = fact.counter_filled
            rest = "" if filled.complete else ", more follow"
            return f"counter {short_digest(filled.digest)} filled with {len(filled.entries)} entries{rest}"
        case "rule_set_activated":
            activated = fact.rule_set_activated
            before = f" in place of {activated.previous_version}" if activated.previous_version else ""
            now = "a shadow" if activated.mode == fact_pb2.ACTIVATION_MODE_SHADOW else "in force"
            return f"rule set {activated.policy_id} {activated.version} {now}{before}{_cause(activated.principal, activated.reason)}"
        case "rule_set_deactivated":
            deactivated = fact.rule_set_deactivated
            now = "no longer a shadow" if deactivated.mode == fact_pb2.ACTIVATION_MODE_SHADOW else "out of force"
            return f"rule set {deactivated.policy_id} {deactivated.version} {now}{_cause(deactivated.principal, deactivated.reason)}"
        case "grants_deployed":
            grants = fact.grants_deployed
            what = f"grants {grants.name} {grants.version} in force"
            return f"{what}{_cause(grants.principal, grants.reason)}, {short_digest(grants.digest)}"
        case "clock_accepted":
            accepted = fact.clock_accepted
            return _person_line(accepted.accepted_by, "ACCEPT the time of the bus", accepted.reason)
        case "data_loss_accepted":
            return loss_line(fact.data_loss_accepted)
        case "review_resolved":
            resolved = fact.review_resolved
            return _person_line(
                resolved.reviewer, f"{enum_name(ReviewVerdict, resolved.verdict)} on {resolved.decision_id}", resolved.reason
            )
        case "review_voted":
            return vote_line(fact.review_voted)
        case "revocation_requested":
            requested = fact.revocation_requested
            return _person_line(requested.revoked_by, f"REVOKE {requested.decision_id}", requested.reason)
    return system.replace("_", " ")


def _cause(principal: str, reason: str) -> str:
    """Return who caused a change, if the log names anybody, and why."""
    by = f", by {printable(principal)}" if principal else ""
    return f"{by}{f': {printable(_cut(reason))}' if reason else ''}"


def _person_line(person: str, statement: str, reason: str) -> str:
    return printable(f"{person} said {statement}{f': {_cut(reason)}' if reason else ''}")


def _proposal(proposal: Proposal) -> str:
    cited = ", ".join(f"#{reference.sequence_number}" for reference in proposal.based_on_events)
    rests = f", resting on {cited}" if cited else ", resting on nothing"
    contest = proposal.contest
    competes = (
        f", competes for {printable(contest.conflict_key)} until {format_time(contest.closes_at)}" if proposal.HasField("contest") else ""
    )
    return f"{proposal.action_type} {format_struct(proposal.params)}, risk {proposal.risk:g}{rests}{competes}"


def _execution(execution: Execution) -> str:
    parts = [f"attempt {execution.attempt} {enum_name(ExecutionStatus, execution.status)}"]
    if execution.status == execution_pb2.EXECUTION_STATUS_STARTED:
        parts.append(f"leased until {format_time(execution.lease_until)}")
    if execution.reason_code and execution.reason_code != execution.error.code:
        parts.append(execution.reason_code)
    if execution.error.code:
        parts.append(f"{execution.error.code} {execution.error.message}".strip())
    if execution.result.fields:
        parts.append(format_struct(execution.result))
    if execution.completed_steps:
        parts.append(f"done: {', '.join(execution.completed_steps)}")
    if execution.will_retry:
        parts.append("another attempt follows")
    parts.extend(map(reading_text, execution.counters))
    return printable(", ".join(parts))


def _observation(observation: Observation) -> str:
    fields = ", ".join(f"{key} = {format_value(value)}" for key, value in sorted(observation.extracted_fields.items()))
    tier = f", trust tier {int(observation.trust_tier)}" if observation.trust_tier else ""
    return printable(f"{fields}, read through {observation.source_tool or 'no tool'}{tier}")


def _tool_call(call: ToolCall) -> str:
    summary = f" {_cut(call.arguments_summary)}" if call.arguments_summary else ""
    return printable(f"{call.tool_name}{summary} ({call.execution_id})")


def _tool_result(result: ToolResult) -> str:
    content = f"failed: {result.error_code}" if result.is_error else _cut(result.result_summary) or short_digest(result.content_hash)
    return printable(f"{result.tool_name}: {content} ({result.execution_id})")


def _diagnostic_detail(diagnostic: AgentDiagnostic) -> str:
    match diagnostic.WhichOneof("detail"):
        case "fact_collection":
            detail = "; ".join(requirement_line(row) for row in diagnostic.fact_collection.fact_requirements)
        case "late_execution":
            detail = f"by {diagnostic.late_execution.executor_id}: {_execution(diagnostic.late_execution.execution)}"
        case "shadow_difference":
            difference = diagnostic.shadow_difference
            shadow = f"{difference.policy_id} {difference.policy_version}"
            detail = f"{shadow} would say {shadow_verdict_line(difference.shadowed)}; it was {shadow_verdict_line(difference.decided)}"
        case "review_escalated":
            escalated = diagnostic.review_escalated
            groups = f"; {' and '.join(escalated.groups)} may vote too" if escalated.groups else ""
            detail = f"{escalated.decision_id} was not resolved in time{groups}"
        case "access_refused":
            refused = diagnostic.access_refused
            rpc = refused.rpc.rpartition("/")[2]
            detail = f"{refused.count} x {refused.reason} for {refused.principal or 'callers without valid credentials'}, first {rpc}"
            detail += f" as {refused.producer.id}" if refused.producer.id else ""
        case "llm_invocation":
            detail = _invocation(diagnostic.llm_invocation)
        case "graph_transition":
            detail = f"to {diagnostic.graph_transition.graph_node}"
        case _:
            detail = format_struct(diagnostic.attributes) if diagnostic.attributes.fields else ""
    return detail


def _invocation(invocation: LlmInvocation) -> str:
    answer = f"{invocation.llm_provider} {invocation.llm_model}".strip() or "no answer"
    if invocation.requested_model and invocation.requested_model != invocation.llm_model:
        answer += f" (asked for {invocation.requested_model})"
    attempts = f", {len(invocation.attempts)} attempts" if len(invocation.attempts) > 1 else ""
    return f"{answer}, {invocation.token_count} tokens{attempts}"


def _cut(text: str) -> str:
    return text if len(text) <= TEXT_LENGTH_MAX else text[:TEXT_LENGTH_MAX] + "…"
