"""`gavel tools list` and `providers`: print the registry of tools."""

from __future__ import annotations

from gavel_server.cli.connection import connect
from gavel_server.cli.options import BUS_DEFAULT, SERVER_DEFAULT, Bus, Debug, Json, Server


def list_tools(server: Server = SERVER_DEFAULT, bus: Bus = BUS_DEFAULT, as_json: Json = False, debug: Debug = False) -> None:
    """Print every tool, by name, with the bindings of the bus."""
    from gavel.v1.tool_service_pb2 import ListContractsResponse
    from gavel_client.rpc.paging import sync_pages

    from gavel_server.cli.rendering import output
    from gavel_server.cli.rendering.events import short_digest

    response = ListContractsResponse()
    with connect(server, bus) as client:
        for page in sync_pages(client.list_contracts):
            response.contracts.extend(page.contracts)
        bindings = [binding for page in sync_pages(client.list_bindings) for binding in page.bindings]
    if as_json:
        output.print_json(response)
        return
    bound = {binding.tool_name: binding.provider_id for binding in bindings if not binding.session_id}
    output.print_table(
        ("tool", "version", "aliases", "side effects", "provider", "schemas"),
        (
            (
                contract.name,
                contract.version,
                ", ".join(contract.aliases) or "-",
                ", ".join(contract.side_effects) or "-",
                bound.get(contract.name, contract.default_provider) or "-",
                short_digest(contract.schema_hash),
            )
            for contract in response.contracts
        ),
        empty="No tools are registered; register them with gavel tools register FILE",
    )


def list_providers(server: Server = SERVER_DEFAULT, bus: Bus = BUS_DEFAULT, as_json: Json = False, debug: Debug = False) -> None:
    """Print every provider with the tools that it serves."""
    from gavel.v1.tool_service_pb2 import ListProvidersResponse
    from gavel_client.rpc.paging import sync_pages

    from gavel_server.cli.rendering import output

    response = ListProvidersResponse()
    with connect(server, bus) as client:
        for page in sync_pages(client.list_providers):
            response.providers.extend(page.providers)
    if as_json:
        output.print_json(response)
        return
    output.print_table(
        ("provider", "version", "tools"),
        ((provider.provider_id, provider.version, ", ".join(provider.tools) or "-") for provider in response.providers),
        empty="No providers are registered; register them with gavel tools register FILE",
    )
