"""`gavel upgrade`: lets a later arbiter version decide on a bus.

The plan shows the steps and the obstacles, and changes nothing. The upgrade first proves the log with the version that has
decided it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Final

import typer

from gavel_server.cli.connection import SERVER_OPTION, as_person, connect
from gavel_server.cli.errors import EXIT_FAILURE, CommandError
from gavel_server.cli.options import BUS_DEFAULT, SERVER_DEFAULT, Bus, By, Debug, Reason, Server, check_address, check_reason, person

if TYPE_CHECKING:
    from gavel.v1.projection_service_pb2 import GetStatusResponse

# The server computes the digest of the whole state.
_TIMEOUT_MS: Final = 600_000
_OTHER_SERVER: Final = "--other-server"


def upgrade(
    to: Annotated[int, typer.Option("--to", min=0, metavar="N", help="The arbiter version. 0: the latest that the server implements.")] = 0,
    plan: Annotated[bool, typer.Option("--plan", help="Print the steps and the obstacles; change nothing.")] = False,
    other_servers: Annotated[
        list[str] | None,
        typer.Option(
            _OTHER_SERVER,
            callback=lambda addresses: [check_address(address) for address in addresses or []],
            metavar="HOST:PORT",
            help="Another server of the bus, which must implement the version, too. Repeat it for each.",
        ),
    ] = None,
    reason: Reason = "",
    by: By = None,
    server: Server = SERVER_DEFAULT,
    bus: Bus = BUS_DEFAULT,
    debug: Debug = False,
) -> None:
    """Let a later arbiter version decide on a bus.

    Restart every server of the bus with a build that implements the version first. There is no way back.

    Exit status: 0 upgraded, or the plan has no obstacle; 1 refused; 3, 4, 5 the log is not proved, as of gavel replay.
    """
    addresses = [server, *(other_servers or [])]
    statuses = [_read_status(server, bus, SERVER_OPTION), *(_read_status(other, bus, _OTHER_SERVER) for other in addresses[1:])]
    current = statuses[0].arbiter_version
    target = to or max(statuses[0].implemented_arbiter_versions, default=current + 1)
    obstacles = _obstacles(addresses, statuses, bus, current, target)
    if plan:
        _print_plan(addresses, statuses, bus, target, obstacles)
        raise typer.Exit(EXIT_FAILURE if obstacles else 0)
    if obstacles:
        raise CommandError("\n".join(obstacles))
    # What is wrong with the request is said before the log is read, which may take long.
    checked_reason = check_reason(reason)
    if by is not None:
        person(by)
    _prove(server, bus, statuses[0].head_sequence_number)
    with connect(server, bus) as client:
        response = as_person(
            by,
            lambda upgraded_by: client.upgrade_bus(
                from_arbiter_version=current,
                arbiter_version=target,
                upgraded_by=upgraded_by,
                reason=checked_reason,
                timeout_ms=_TIMEOUT_MS,
            ),
        )
    from gavel_server.cli.rendering import output

    envelope = response.envelope
    output.print_line(f"bus {bus} is decided by arbiter version {target} after event {envelope.sequence_number}; it was {current} before.")
    output.print_line(f"state before: {envelope.fact.arbiter_version_changed.state_digest}")


def _read_status(server: str, bus: str, option: str) -> GetStatusResponse:
    with connect(server, bus, option=option) as client:
        return client.get_status()


def _obstacles(addresses: Sequence[str], statuses: Sequence[GetStatusResponse], bus: str, current: int, target: int) -> list[str]:
    """Return the reasons why the bus cannot be upgraded, each with its remedy; none if it can."""
    obstacles: list[str] = []
    if target < current:
        obstacles.append(f"bus {bus} has arbiter version {current}, and a bus never goes back to an earlier one; use a later build")
    elif target == current:
        obstacles.append(f"bus {bus} has arbiter version {current} already; there is nothing to do")
    for address, status in zip(addresses, statuses, strict=True):
        if status.bus_incarnation != statuses[0].bus_incarnation:
            obstacles.append(f"the server at {address} has another bus {bus}; name the servers of one bus")
        if target not in status.implemented_arbiter_versions:
            obstacles.append(
                f"the server at {address} implements {_versions(status)}, not arbiter version {target}; restart it with a build that does"
            )
        if not status.writable:
            obstacles.append(f"the server at {address} does not write: {status.unwritable_reason}")
    return obstacles


def _versions(status: GetStatusResponse) -> str:
    """Return the versions that a server implements in words. Builds that cannot upgrade a bus do not tell."""
    versions = " and ".join(map(str, status.implemented_arbiter_versions))
    return f"arbiter version {versions}" if versions else "unknown arbiter versions"


def _print_plan(addresses: Sequence[str], statuses: Sequence[GetStatusResponse], bus: str, target: int, obstacles: Sequence[str]) -> None:
    from gavel_rules.events.arbiter_versions import CHANGES

    from gavel_server.cli.rendering import output

    current = statuses[0].arbiter_version
    output.print_fields(
        [
            ("bus", bus),
            ("arbiter version", f"{current}, to become {target}"),
            ("head", str(statuses[0].head_sequence_number)),
        ]
    )
    output.print_table(
        ("server", "build", "implements", "writable", "newest snapshot"),
        (
            (
                address,
                status.server_version,
                _versions(status),
                "yes" if status.writable else "no",
                f"#{status.newest_snapshot.sequence_number}" if status.HasField("newest_snapshot") else "none",
            )
            for address, status in zip(addresses, statuses, strict=True)
        ),
        title="Servers",
    )
    output.print_table(
        ("version", "what changes for decisions"),
        ((str(version), change) for version, changes in sorted(CHANGES.items()) if current < version <= target for change in changes),
        title="Changes",
    )
    output.print_table(
        ("step", "what happens"),
        (
            ("1", f"events 1 to {statuses[0].head_sequence_number} are recomputed with the versions that decided them, and must be equal"),
            (
                "2",
                f"ArbiterVersionChanged is recorded, with both versions and a digest of the state: the last event of version {current}",
            ),
            ("3", f"counts of rejections begin anew, and every later decision is one of version {target}"),
            ("4", "snapshots stay valid; servers that do not implement the version can read the bus and no longer write it"),
        ),
        title="Steps",
    )
    for obstacle in obstacles:
        output.print_line(f"obstacle: {obstacle}")
    if not obstacles:
        output.print_line("the bus can be upgraded; run the command again without --plan")


def _prove(server: str, bus: str, head: int) -> None:
    """Let the server prove its log up to an event; print the verdict, and exit with its status if the log is not proved."""
    from gavel_server.cli.commands.reads.replay import print_verdict
    from gavel_server.cli.rendering.progress import REPLAY_PASSES, Passes

    with connect(server, bus) as client, Passes(REPLAY_PASSES) as passes:
        verdict = None
        for response in client.verify_replay(to_sequence_number=head):
            if response.HasField("verdict"):
                verdict = response.verdict
            else:
                passes.show(response.progress)
    if verdict is None:
        raise CommandError("the replay ended without a verdict; try again")
    status = print_verdict(verdict, as_json=False)
    if status:
        raise typer.Exit(status)
