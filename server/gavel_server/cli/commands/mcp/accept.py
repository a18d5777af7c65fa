"""`gavel mcp accept`: accepts the present definitions of tools that have drifted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from gavel_server.cli.commands.mcp.options import ConfigFile, load, mcp_extra, open_proxy_client
from gavel_server.cli.errors import CommandError, InvalidInputError
from gavel_server.cli.options import BUS_DEFAULT, SERVER_DEFAULT, Bus, Debug, Server

if TYPE_CHECKING:
    from pathlib import Path

    from gavel_client.mcp.configuration import Configuration
    from gavel_client.mcp.upstreams.definitions import ToolDefinition


def accept(
    config: ConfigFile,
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="TOOL…", help="Tools to accept, e.g. git.git_commit. Without any, the tools that have drifted are listed."),
    ] = None,
    server: Server = SERVER_DEFAULT,
    bus: Bus = BUS_DEFAULT,
    debug: Debug = False,
) -> None:
    """Accept tools as their servers list them now, so that the proxy opens them again.

    Read the printed definition first, and the changes of its schemas. The model reads the description, and the schema says which arguments
    the model may send.
    """
    import asyncio

    mcp_extra()
    configuration = load(config)
    asyncio.run(_accept(list(names or ()), configuration, config.parent, server, bus))


async def _accept(names: list[str], configuration: Configuration, folder: Path, server: str, bus: str) -> None:
    from gavel_client import GavelError
    from gavel_client.mcp.errors import DefinitionError
    from gavel_client.mcp.proxy import PRODUCER_ID
    from gavel_client.mcp.upstreams.pins import Pins

    from gavel_server.cli.connection import command_error
    from gavel_server.cli.rendering import output

    definitions = {definition.name: definition for definition in await _list_definitions(configuration, folder)}
    unknown = sorted(set(names) - definitions.keys())
    if unknown:
        raise InvalidInputError(f"no server lists {', '.join(unknown)}; the tools are {', '.join(sorted(definitions)) or 'none'}")
    async with open_proxy_client(server, bus) as client:
        pins = Pins(client, configuration, PRODUCER_ID)
        try:
            closed = await pins.check(definitions[name] for name in names or sorted(definitions))
            drifted = [definitions[name] for name, closure in closed.items() if closure.drifted]
            for definition in drifted:
                output.print_line(_describe(definition))
                for line in pins.changes(definition):
                    output.print_line(line)
                if names:
                    await pins.accept(definition)
                    output.print_line(f"accepted {definition.name} as {definition.digest}")
                    if configuration.settings(definition.server, definition.tool.name).digest not in ("", definition.digest):
                        output.print_note(
                            "the configuration names another digest; to open the tool, change it and start the proxy again: "
                            f"servers.{definition.server}.tools.{definition.tool.name}.digest: {definition.digest}"
                        )
            if not drifted:
                output.print_line("no tool has drifted")
        except GavelError as error:
            raise command_error(error, server, bus) from error
        except DefinitionError as error:
            raise CommandError(str(error)) from error


async def _list_definitions(configuration: Configuration, folder: Path) -> list[ToolDefinition]:
    from gavel_server.cli.commands.mcp.scaffold import list_tools

    server_tools = await list_tools(list(configuration.servers.items()), folder)
    return [definition for _, _, definitions in server_tools for definition in definitions]


def _describe(definition: ToolDefinition) -> str:
    """Return a definition as JSON; characters that a terminal would obey are escaped."""
    import json

    content = definition.tool.model_dump(mode="json", by_alias=True, exclude_none=True, exclude={"meta", "icons"})
    return f"{definition.name} {definition.digest}\n{json.dumps(content, indent=2)}"
