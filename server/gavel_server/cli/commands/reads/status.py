"""`gavel status`: the state of a bus and of the server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from gavel_server.cli.connection import connect
from gavel_server.cli.options import BUS_DEFAULT, SERVER_DEFAULT, Bus, Debug, Json, Server

if TYPE_CHECKING:
    from gavel.v1.projection_service_pb2 import GetStatusResponse
    from gavel.v1.work_service_pb2 import WorkQueue


def status(
    digest: Annotated[bool, typer.Option("--digest", help="Also compute the projection's digest, which reads the whole state.")] = False,
    server: Server = SERVER_DEFAULT,
    bus: Bus = BUS_DEFAULT,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Print the state of the bus and of the server."""
    from gavel_server.cli.rendering import output

    with connect(server, bus) as client:
        response = client.get_status(include_projection_digest=digest)
    if as_json:
        output.print_json(response)
    else:
        _print_status(bus, response)


def _queue_name(queue: WorkQueue.ValueType) -> str:
    """Return the name of a work queue as the command line has it, e.g. "decisions"."""
    from gavel.v1.work_service_pb2 import WorkQueue

    return WorkQueue.Name(queue).removeprefix("WORK_QUEUE_").lower()


def _background_rows(response: GetStatusResponse) -> list[tuple[str, str]]:
    """Return a row for each background task with a problem; one row if there is none."""
    problems = [f"{task.name}: {task.problem}" for task in response.background_tasks if task.problem]
    rows = problems or (["well"] if response.background_tasks else [])
    return [("" if number else "background tasks", row) for number, row in enumerate(rows)]


def _snapshot(response: GetStatusResponse) -> str:
    """Return the newest snapshot in words."""
    from gavel_server.cli.rendering.events import format_time

    newest = response.newest_snapshot
    if not response.HasField("newest_snapshot"):
        return "none"
    return f"of event {newest.sequence_number}, written {format_time(newest.written_at)}, {newest.size_bytes:,} bytes"


def _print_status(bus: str, response: GetStatusResponse) -> None:
    from gavel.v1.fact_pb2 import CrossCheckMode

    from gavel_server.cli.rendering import output
    from gavel_server.cli.rendering.events import enum_name, format_time, short_digest

    sample = f" every {response.cross_check.sample_every}" if response.cross_check.sample_every else ""
    rows = [
        ("server", response.server_version),
        ("bus", bus),
        ("head", f"{response.head_sequence_number}, recorded {format_time(response.head_recorded_at)}"),
        ("chain hash", response.head_chain_hash.hex()),
        ("arbiter version", str(response.arbiter_version)),
        ("cross-check", enum_name(CrossCheckMode, response.cross_check.mode).lower() + sample),
        ("durable", "yes" if response.durable else "no"),
        *(("", warning) for warning in response.durability_warnings),
        ("writable", "yes" if response.writable else f"no: {response.unwritable_reason}"),
        ("queued commands", str(response.queued_commands)),
        ("snapshot", _snapshot(response)),
        *_background_rows(response),
    ]
    if response.projection_digest:
        rows.append(("projection", response.projection_digest))
    output.print_fields(rows)
    output.print_table(
        ("rule set", "version", "digest", "actions"),
        (
            (rule_set.policy_id, str(rule_set.version), short_digest(rule_set.digest), ", ".join(rule_set.action_types))
            for rule_set in response.active_rule_sets
        ),
        title="In force",
        empty="No rule set is in force; deploy one with gavel rules deploy FILE --activate",
    )
    output.print_table(
        ("rule set", "version", "since", "would differ"),
        (
            (
                rule_set.policy_id,
                str(rule_set.version),
                f"#{rule_set.activated_at_sequence_number}",
                f"{rule_set.shadow_differences} of {rule_set.shadow_decisions}",
            )
            for rule_set in response.shadow_rule_sets
        ),
        title="Shadows",
    )
    output.print_table(
        ("group", "queue", "not delivered", "not acknowledged", "members"),
        (
            (consumer.group, _queue_name(consumer.queue), str(consumer.lag), str(consumer.pending), str(consumer.members))
            for consumer in response.consumers
        ),
        title="Consumers",
    )
    output.print_table(
        ("caller", "quota", "refused calls", "last"),
        (
            (throttled.caller, throttled.quota, str(throttled.refused), f"{throttled.since_ms / 1000:.0f} s ago")
            for throttled in response.throttled_callers
        ),
        title="Throttled",
    )
