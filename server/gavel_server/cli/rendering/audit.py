"""Audits, and drift, for people."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gavel.v1.audit_service_pb2 import Audit, DecisionAudit, DecisionToday, ModelUse, PersonAct
from gavel.v1.common_pb2 import Producer, VersionBinding
from gavel.v1.decision_pb2 import Outcome
from gavel.v1.drift_pb2 import Drift
from gavel.v1.fact_pb2 import ReviewVerdict
from gavel.v1.replay_service_pb2 import ReplayStatus
from gavel_rules.text import printable

from gavel_server.cli.rendering import output
from gavel_server.cli.rendering.decision import counter_row
from gavel_server.cli.rendering.events import enum_name, format_duration, format_struct, format_value, short_digest


def print_audit(audit: Audit) -> None:
    """Print the five answers of an audit."""
    bound = binding_text(audit.version_binding)
    output.print_line(
        f"Trace {printable(audit.trace_id)}, audited at event {audit.head_sequence_number}{f'; bound to {bound}' if bound else ''}"
    )
    output.print_table(
        ("#", "model", "provider", "asked for", "settings", "prompt", "output", "agent"),
        (_model_row(use) for use in audit.models),
        title="1. Models",
        empty="1. Models: no call of a model is recorded.",
    )
    output.print_table(
        ("tool", "version", "provider", "argument schema", "result schema", "calls", "recorded by"),
        (
            (
                printable(use.tool_name),
                printable(use.tool_version) or "-",
                printable(use.provider_id) or "-",
                _hash(use.request_schema_hash),
                _hash(use.response_schema_hash),
                _calls(use.calls, use.failures, use.open),
                printable(", ".join(use.principals)) or "-",
            )
            for use in audit.tools
        ),
        title="2. Tools",
        empty="2. Tools: no call of a tool is recorded.",
    )
    output.print_table(
        ("#", "decision", "outcome", "rule sets", "decided by", "proposed by", "carried out by"),
        (_decision_row(decision) for decision in audit.decisions),
        title="3. Decisions",
        empty="3. Decisions: the trace has none.",
    )
    output.print_table(
        ("decision", "fact", "value", "tier", "age", "event", "stated by"),
        (row for decision in audit.decisions for row in _fact_rows(decision)),
        title="Facts",
    )
    output.print_table(
        ("decision", "counter", "of", "value", "next event leaves"),
        ((f"#{decision.sequence_number}", *counter_row(reading)) for decision in audit.decisions for reading in decision.counters),
        title="Counters",
    )
    output.print_table(
        ("decision", "person", "event", "act"),
        ((f"#{decision.sequence_number}", *_person_row(act)) for decision in audit.decisions for act in decision.people),
        title="People",
    )
    print_drifts(audit.drifts, title="4. Today", empty="4. Today: nothing has drifted.")
    for decision in audit.decisions:
        if decision.HasField("today"):
            output.print_line(f"#{decision.sequence_number}: {_today(decision.today)}")
    recomputed = [decision for decision in audit.decisions if decision.HasField("recomputation")]
    output.print_table(
        ("#", "recomputation", "result"),
        (
            (
                str(decision.sequence_number),
                enum_name(ReplayStatus, decision.recomputation.status).lower().replace("_", " "),
                printable(decision.recomputation.message),
            )
            for decision in recomputed
        ),
        title="5. Recomputation",
        empty="5. Recomputation: " + ("not asked for." if audit.decisions else "there is no decision."),
    )
    if audit.truncated:
        output.print_note("gavel: the audit is cut at its limits; audit single decisions, or read the trace with gavel log list")


def print_drifts(drifts: Iterable[Drift], *, title: str, empty: str = "") -> None:
    """Print drifts as a table."""
    output.print_table(
        ("drift", "of", "recorded", "now", "message"),
        (
            (
                drift.code,
                printable(drift.name),
                f"#{drift.recorded_sequence_number}" + (f" x{drift.count}" if drift.count > 1 else ""),
                f"#{drift.current_sequence_number}" if drift.current_sequence_number else "-",
                printable(drift.message),
            )
            for drift in drifts
        ),
        title=title,
        empty=empty,
    )


def binding_text(binding: VersionBinding) -> str:
    """Return the versions of a binding, e.g. "planner_version 7"; "" if there are none."""
    return printable(", ".join(f"{field.name} {value}" for field, value in binding.ListFields()))


def _model_row(use: ModelUse) -> tuple[str, ...]:
    call = use.invocation
    settings = dict(call.settings.fields) if call.HasField("settings") else {}
    texts = [f"temperature {call.llm_temperature:g}"] if call.HasField("llm_temperature") else []
    if settings:
        texts.append(format_struct(call.settings))
    return (
        str(use.sequence_number),
        printable(call.llm_model) or "no answer",
        printable(call.llm_provider) or "-",
        printable(call.requested_model) or "-",
        printable("; ".join(texts)) or "-",
        _hash(call.prompt_hash),
        _hash(call.output_hash),
        _who(use.producer, [use.principal]),
    )


def _decision_row(decision: DecisionAudit) -> tuple[str, ...]:
    outcome = enum_name(Outcome, decision.outcome) + (f" {decision.reason_code}" if decision.reason_code else "")
    rule = f"{decision.policy_id} {decision.policy_version}" + (f", rule {decision.rule_id}" if decision.rule_id else "")
    return (
        str(decision.sequence_number),
        decision.decision_id,
        printable(outcome),
        printable(", ".join(f"{one.policy_id} {one.version} ({short_digest(one.digest)})" for one in decision.active_rule_sets)) or "-",
        printable(rule),
        _who(decision.proposer, decision.proposer_principals),
        _who(decision.executor, [decision.executor_principal]),
    )


def _fact_rows(decision: DecisionAudit) -> Iterator[tuple[str, ...]]:
    for fact in decision.facts:
        yield (
            f"#{decision.sequence_number}",
            printable(f"{fact.key} of {fact.subject}"),
            format_value(fact.value) if fact.HasField("value") else "(large)",
            str(fact.trust_tier),
            format_duration(fact.age_ms),
            f"#{fact.sequence_number}",
            _who(fact.producer, [fact.principal]),
        )


def _person_row(act: PersonAct) -> tuple[str, ...]:
    what = enum_name(ReviewVerdict, act.verdict).lower() if act.verdict else "revoked"
    name = printable(act.name or act.principal)
    caller = f" (as {printable(act.principal)})" if act.principal and act.principal != act.name else ""
    return f"{name}{caller}", f"#{act.sequence_number}", printable(f"{what}: {act.reason}" if act.reason else what)


def _today(today: DecisionToday) -> str:
    return printable(today.message)


def _who(producer: Producer, principals: Iterable[str]) -> str:
    """Return a producer and the authenticated callers behind it."""
    names = ", ".join(name for name in principals if name)
    if not producer.id:
        return printable(names) or "-"
    version = f" {producer.version}" if producer.version else ""
    return printable(f"{producer.id}{version}" + (f" (as {names})" if names else ""))


def _calls(calls: int, failures: int, open_calls: int) -> str:
    parts = [str(calls)]
    parts += [f"{failures} failed"] if failures else []
    parts += [f"{open_calls} open"] if open_calls else []
    return ", ".join(parts)


def _hash(value: str) -> str:
    return short_digest(value) if value else "-"
