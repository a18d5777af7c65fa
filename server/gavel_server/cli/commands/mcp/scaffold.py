"""`gavel mcp scaffold`: writes a rule set, its tests and the proxy's configuration from the tools that servers list."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from gavel_server.cli.commands.mcp.options import mcp_extra
from gavel_server.cli.errors import CommandError, InvalidInputError
from gavel_server.cli.options import Debug

if TYPE_CHECKING:
    from gavel_client.mcp.configuration import ServerSettings
    from gavel_client.mcp.upstreams.definitions import ToolDefinition

TESTS: Final = "{stem}_test.yaml"


def scaffold(
    servers: Annotated[
        list[str],
        typer.Option(
            "--server",
            metavar="NAME=COMMAND",
            help="An MCP server: the command that starts it, or the URL of its streamable HTTP endpoint. Repeat it for several.",
        ),
    ],
    rules: Annotated[
        Path, typer.Option(metavar="FILE", help="The name of the rule set's file, beside which the tests are written.")
    ] = Path("rules.yaml"),
    config: Annotated[Path, typer.Option("--config", metavar="FILE", help="Write the proxy's configuration here.")] = Path("proxy.yaml"),
    agent: Annotated[str, typer.Option(metavar="NAME", help="The agent in whose name the proxy proposes.")] = "mcp-agent",
    force: Annotated[bool, typer.Option("--force", help="Replace files that exist.")] = False,
    debug: Debug = False,
) -> None:
    """Print a rule set for the tools of MCP servers; write its tests and the proxy's configuration.

    Tools that a server calls read-only are allowed and witnessed. Tools that it calls harmless are approved; all others need a person.
    """
    import asyncio

    from gavel_server.cli.commands.mcp.documents import write_documents
    from gavel_server.cli.rendering import output

    mcp_extra()
    tests = rules.with_name(TESTS.format(stem=rules.stem))
    existing = [str(path) for path in (tests, config) if path.exists()]
    if existing and not force:
        raise InvalidInputError(f"{' and '.join(existing)} exist already; name other files (--rules, --config) or replace them (--force)")
    listed = asyncio.run(list_tools([_server(text) for text in servers], Path.cwd()))
    documents = write_documents(listed, agent, rules.name)
    for path, text in ((tests, documents.tests), (config, documents.configuration)):
        if text:
            _write(path, text)
            output.print_note(f"wrote {path}")
    if not documents.rules:
        raise CommandError("all tools are read-only, so no rule set is written; the proxy needs none for reads")
    output.print_line(documents.rules.rstrip("\n"))


def _server(text: str) -> tuple[str, ServerSettings]:
    """Return the name and the settings of a server. Raises InvalidInputError."""
    from gavel_client.mcp.configuration import Configuration
    from pydantic import ValidationError

    name, _, target = text.partition("=")
    try:
        settings = {"url": target} if target.startswith(("http://", "https://")) else {"command": shlex.split(target)}
        return name, Configuration.model_validate({"agent": {"id": "a"}, "servers": {name: settings}}).servers[name]
    except (ValueError, ValidationError) as error:
        raise InvalidInputError(
            f"{text!r} is not a server; write NAME=COMMAND or NAME=URL, with a name of a-z 0-9 - and single underscores (--server)"
        ) from error


async def list_tools(servers: list[tuple[str, ServerSettings]], folder: Path) -> list[tuple[str, ServerSettings, list[ToolDefinition]]]:
    """Return the tools of each server. Paths in the settings are relative to `folder`. Raises CommandError for an unusable server."""
    import asyncio

    from gavel_client.mcp.upstreams.connection import Upstream

    listed: list[tuple[str, ServerSettings, list[ToolDefinition]]] = []
    for name, settings in servers:
        upstream = Upstream(name, settings, folder)
        connection = asyncio.create_task(upstream.run())
        try:
            await upstream.wait_for_first_try()
            if upstream.problem:
                raise CommandError(f"{upstream.problem}; check its command or URL: {shlex.join(settings.command) or settings.url}")
            listed.append((name, settings, list(upstream.definitions.values())))
        finally:
            connection.cancel()
            await asyncio.wait({connection})
    return listed


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise CommandError(f"cannot write {path}: {error.strerror}") from error
