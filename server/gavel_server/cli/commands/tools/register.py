"""`gavel tools register`: registers contracts, providers and bindings of a file."""

from __future__ import annotations

from typing import Annotated

import typer

from gavel_server.cli.connection import connect
from gavel_server.cli.options import BUS_DEFAULT, SERVER_DEFAULT, Bus, Debug, Server


def register_tools(
    file: Annotated[
        str, typer.Argument(metavar="[FILE]", help="Lists contracts, providers and bindings, in YAML or JSON; - is standard input.")
    ] = "",
    shipped: Annotated[bool, typer.Option("--shipped", help="Register the tools that ship with Gavel, and their providers.")] = False,
    server: Server = SERVER_DEFAULT,
    bus: Bus = BUS_DEFAULT,
    debug: Debug = False,
) -> None:
    """Register tools. Content that is registered already stays as it is, so the command may be repeated."""
    from gavel_client.tools.contracts import shipped_contracts, shipped_providers

    from gavel_server.cli import documents
    from gavel_server.cli.errors import InvalidInputError
    from gavel_server.cli.rendering import output

    if not file and not shipped:
        raise InvalidInputError("there is nothing to register; name a FILE, or give --shipped")
    contracts, providers, bindings = documents.read_tools(file) if file else ([], [], [])
    if shipped:
        contracts, providers = [*shipped_contracts(), *contracts], [*shipped_providers(), *providers]
    with connect(server, bus, document=file) as client:
        for contract in contracts:
            registered = client.register_contract(contract)
            output.print_line(f"{contract.name} {contract.version}: event {registered.sequence_number}, {registered.schema_hash}")
        for provider in providers:
            number = client.register_provider(provider).sequence_number
            output.print_line(f"provider {provider.provider_id} {provider.version}: event {number}")
        for binding in bindings:
            number = client.bind_tool(binding).sequence_number
            where = f" in session {binding.session_id}" if binding.session_id else ""
            output.print_line(f"{binding.tool_name} is bound to {binding.provider_id}{where}: event {number}")
