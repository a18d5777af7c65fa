"""`gavel tools bind` and `unbind`: choose the provider of a tool, for the bus or for one session."""

from __future__ import annotations

from typing import Annotated

import typer

from gavel_server.cli.connection import connect
from gavel_server.cli.options import BUS_DEFAULT, SERVER_DEFAULT, Bus, Debug, Json, Server

Tool = Annotated[str, typer.Argument(metavar="TOOL", help="The tool's canonical name.")]
Session = Annotated[str, typer.Option("--session", metavar="ID", help="For this session only.")]


def bind_tool(
    tool: Tool,
    provider: Annotated[str, typer.Argument(metavar="PROVIDER", help="The provider_id of a provider that serves the tool.")],
    session: Session = "",
    server: Server = SERVER_DEFAULT,
    bus: Bus = BUS_DEFAULT,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Bind a tool to a provider."""
    from gavel.v1.tool_pb2 import ToolBinding

    from gavel_server.cli.rendering import output

    with connect(server, bus) as client:
        response = client.bind_tool(ToolBinding(tool_name=tool, provider_id=provider, session_id=session))
    if as_json:
        output.print_json(response)
    else:
        output.print_line(f"{tool} is bound to {provider}{_where(session)}: event {response.sequence_number}")


def unbind_tool(
    tool: Tool, session: Session = "", server: Server = SERVER_DEFAULT, bus: Bus = BUS_DEFAULT, as_json: Json = False, debug: Debug = False
) -> None:
    """End the binding of a tool: it has its default provider again, or in a session that of the bus."""
    from gavel_server.cli.rendering import output

    with connect(server, bus) as client:
        response = client.unbind_tool(tool, session_id=session)
    if as_json:
        output.print_json(response)
    else:
        output.print_line(f"{tool} is no longer bound{_where(session)}: event {response.sequence_number}")


def _where(session: str) -> str:
    return f" in session {session}" if session else ""
