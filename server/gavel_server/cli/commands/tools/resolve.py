"""`gavel tools resolve`: shows what is behind a tool's name."""

from __future__ import annotations

from typing import Annotated

import typer

from gavel_server.cli.commands.tools.bind import Session
from gavel_server.cli.connection import connect
from gavel_server.cli.options import BUS_DEFAULT, SERVER_DEFAULT, Bus, Debug, Json, Server


def resolve_tool(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A canonical name or an alias.")],
    session: Session = "",
    canonical_only: Annotated[bool, typer.Option("--canonical-only", help="Do not look for aliases.")] = False,
    server: Server = SERVER_DEFAULT,
    bus: Bus = BUS_DEFAULT,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Print the tool and provider behind a name, how they were found, and whether an agent may call the tool."""
    from gavel.v1.tool_service_pb2 import TOOL_NAME_STEP_ALIAS, ToolProviderStep

    from gavel_server.cli.rendering import output

    with connect(server, bus) as client:
        response = client.resolve_tool(name, session_id=session, canonical_only=canonical_only)
    if as_json:
        output.print_json(response)
        return
    contract, provider, guard = response.contract, response.provider, response.guard
    step = ToolProviderStep.Name(response.provider_step).removeprefix("TOOL_PROVIDER_STEP_").lower()
    found_by = {"session": "bound for the session", "bus": "bound for the bus", "default": "the contract's default"}[step]
    output.print_fields(
        [
            ("tool", f"{contract.name} {contract.version}" + (", by alias" if response.name_step == TOOL_NAME_STEP_ALIAS else "")),
            ("provider", f"{provider.provider_id} {provider.version}, {found_by}"),
            ("side effects", ", ".join(contract.side_effects) or "-"),
            ("schemas", contract.schema_hash),
            ("agents", "may call it" if guard.agents_may_call else guard.reason),
        ]
    )
