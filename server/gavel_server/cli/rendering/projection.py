"""A subject's state and pending decisions as tables, for `gavel projection`, `gavel pending` and the demo."""

from __future__ import annotations

from collections.abc import Iterable

from gavel.v1.execution_pb2 import ExecutionStatus
from gavel.v1.projection_service_pb2 import PendingDecision, PendingPhase, Projection
from gavel_rules.text import printable

from gavel_server.cli.rendering import output
from gavel_server.cli.rendering.events import enum_name, format_time, format_value, pending_line


def print_projection(projection: Projection) -> None:
    """Print a subject's facts, observations, pending decisions and pending executions."""
    output.print_line(f"{printable(projection.subject)} as of event {projection.projection_version}")
    output.print_table(
        ("fact", "value", "event", "producer", "occurred"),
        (
            (
                fact.key,
                format_value(fact.value),
                f"#{fact.source_event.sequence_number}",
                printable(fact.producer.id),
                format_time(fact.occurred_at, "seconds"),
            )
            for fact in projection.facts
        ),
        title="Facts",
        fold="value",
        empty="No facts.",
    )
    output.print_table(
        ("observation", "value", "event", "tool", "tier", "observed"),
        (
            (
                observation.key,
                format_value(observation.value),
                f"#{observation.source_event.sequence_number}",
                printable(observation.source_tool),
                str(int(observation.trust_tier)),
                format_time(observation.observed_at, "seconds"),
            )
            for observation in projection.observations
        ),
        title="Observations",
        fold="value",
    )
    print_pending_decisions(projection.pending_decisions, title="Pending decisions")
    output.print_table(
        ("execution", "attempt", "status", "leased until", "executor"),
        (
            (
                pending.execution_id,
                str(pending.attempt),
                enum_name(ExecutionStatus, pending.status),
                format_time(pending.lease_until),
                printable(pending.producer.id),
            )
            for pending in projection.pending_executions
        ),
        title="Pending executions",
    )


def print_pending_decisions(decisions: Iterable[PendingDecision], *, title: str = "", empty: str = "", with_subject: bool = False) -> None:
    """Print approved decisions that have not ended, or the sentence `empty`."""
    rows = (
        (
            f"#{pending.sequence_number}",
            *((printable(pending.subject),) if with_subject else ()),
            enum_name(PendingPhase, pending.phase),
            format_time(pending.valid_until),
            pending_line(pending),
        )
        for pending in decisions
    )
    columns = ("event", *(("subject",) if with_subject else ()), "phase", "valid until", "action")
    output.print_table(columns, rows, title=title, empty=empty)
