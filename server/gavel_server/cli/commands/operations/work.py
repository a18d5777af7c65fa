"""`gavel work list|parked|retry|discard`: the groups of consumers of the work queues, and the items that were parked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from gavel_server.cli.connection import connect
from gavel_server.cli.errors import CommandError, InvalidInputError
from gavel_server.cli.options import BUS_DEFAULT, SERVER_DEFAULT, Bus, Debug, Json, Server

if TYPE_CHECKING:
    from gavel.v1.work_service_pb2 import ParkedWork, WorkQueue
    from gavel_client import SyncGavelClient

QUEUES: Final = ("decisions", "executions", "requests")
PAGE_ITEMS: Final = 1000

work = typer.Typer(help="Show the consumers of the work queues, and settle parked items.", no_args_is_help=True)


def _check_queue(value: str) -> str:
    if value not in QUEUES:
        raise typer.BadParameter(f"{value!r} is not one of {', '.join(QUEUES)}")
    return value


Queue = Annotated[str, typer.Argument(metavar="QUEUE", callback=_check_queue, help="decisions, executions or requests.")]
Group = Annotated[str, typer.Argument(metavar="GROUP", help="The group of consumers, as gavel work list shows it.")]
Items = Annotated[list[str] | None, typer.Argument(metavar="ITEM...", help="Parked items, as gavel work parked shows them.")]
All = Annotated[bool, typer.Option("--all", help="All parked items of the group.")]


@work.command("list")
def list_groups(server: Server = SERVER_DEFAULT, bus: Bus = BUS_DEFAULT, as_json: Json = False, debug: Debug = False) -> None:
    """List the groups of consumers, and how many items wait for them."""
    from gavel.v1.work_service_pb2 import WorkQueue

    from gavel_server.cli.rendering import output

    with connect(server, bus) as client:
        response = client.list_consumers()
    if as_json:
        output.print_json(response)
        return
    output.print_table(
        ("queue", "group", "waiting", "pending", "parked", "members"),
        (
            (
                WorkQueue.Name(group.queue).removeprefix("WORK_QUEUE_").lower(),
                group.group,
                str(group.lag),
                str(group.pending),
                str(group.parked),
                str(group.members),
            )
            for group in response.consumers
        ),
        empty="No group consumes work on this bus.",
    )


@work.command("parked")
def list_parked(
    queue: Queue, group: Group, server: Server = SERVER_DEFAULT, bus: Bus = BUS_DEFAULT, as_json: Json = False, debug: Debug = False
) -> None:
    """List the parked items of a group, oldest first."""
    from gavel.v1.work_service_pb2 import ListParkedResponse
    from gavel_rules.text import printable

    from gavel_server.cli.rendering import output
    from gavel_server.cli.rendering.events import format_time

    with connect(server, bus) as client:
        items = _read_parked(client, queue, group)
    if as_json:
        output.print_json(ListParkedResponse(items=items))
        return
    output.print_table(
        ("item", "event", "deliveries", "parked", "reason"),
        (
            (item.item_id, item.event_id, str(item.deliveries), format_time(item.parked_at, "seconds"), printable(item.reason))
            for item in items
        ),
        empty="No item is parked.",
    )


@work.command("retry")
def retry(
    queue: Queue,
    group: Group,
    items: Items = None,
    every: All = False,
    server: Server = SERVER_DEFAULT,
    bus: Bus = BUS_DEFAULT,
    debug: Debug = False,
) -> None:
    """Deliver parked items again."""
    from gavel_server.cli.rendering import output

    _check_choice(items, every)
    with connect(server, bus) as client:
        count = client.retry_parked(_number(queue), group, item_ids=items or ()).retried
    output.print_line(f"delivered again to {group}: {_items(count)} of {queue}")
    _check_all_parked(items or [], count)


@work.command("discard")
def discard(
    queue: Queue,
    group: Group,
    items: Items = None,
    every: All = False,
    server: Server = SERVER_DEFAULT,
    bus: Bus = BUS_DEFAULT,
    debug: Debug = False,
) -> None:
    """Drop parked items for their group. Their events stay in the log."""
    from gavel_server.cli.rendering import output

    _check_choice(items, every)
    with connect(server, bus) as client:
        item_ids = items or [item.item_id for item in _read_parked(client, queue, group)]
        count = 0
        for first in range(0, len(item_ids), PAGE_ITEMS):
            count += client.discard_parked(_number(queue), group, item_ids[first : first + PAGE_ITEMS]).discarded
    output.print_line(f"dropped for {group}: {_items(count)} of {queue}")
    _check_all_parked(items or [], count)


def _check_choice(items: list[str] | None, every: bool) -> None:
    if bool(items) == every:
        raise InvalidInputError("name the items, as gavel work parked shows them, or give --all")


def _check_all_parked(items: list[str], count: int) -> None:
    """Raise CommandError if some of the named items were not parked."""
    missing = len(set(items)) - count
    if missing > 0:
        raise CommandError(
            f"{_items(missing)} of those named {'is' if missing == 1 else 'are'} not parked; gavel work parked lists what is"
        )


def _items(count: int) -> str:
    return "1 item" if count == 1 else f"{count} items"


def _number(queue: str) -> WorkQueue.ValueType:
    from gavel.v1.work_service_pb2 import WorkQueue

    return WorkQueue.Value(f"WORK_QUEUE_{queue.upper()}")


def _read_parked(client: SyncGavelClient, queue: str, group: str) -> list[ParkedWork]:
    items: list[ParkedWork] = []
    token = ""
    while True:
        page = client.list_parked(_number(queue), group, page_size=PAGE_ITEMS, page_token=token)
        items += page.items
        token = page.next_page_token
        if not token:
            return items
