"""`gavel mcp scaffold`: writes a rule set, its tests and the proxy's configuration from the tools that servers list."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from gavel_server.cli.commands.mcp.options import RULE_SET_DEFAULT, configuration_errors, mcp_extra
from gavel_server.cli.errors import CommandError, InvalidInputError
from gavel_server.cli.options import Debug

if TYPE_CHECKING:
    from gavel_client.mcp.configuration import ServerSettings
    from gavel_client.mcp.upstreams.definitions import ToolDefinition

TESTS: Final = "{stem}_test.yaml"
RULE_SET_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,128}")
# Programs such as npx and uvx need these to fetch a server in many networks. An MCP server gets none of them by itself.
NETWORK_VARIABLES: Final = (
    *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "all_proxy", "no_proxy"),
    *("NODE_EXTRA_CA_CERTS", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE"),
    *("NPM_CONFIG_REGISTRY", "npm_config_registry", "UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL"),
)


def _check_name(value: str) -> str:
    if not RULE_SET_NAME.fullmatch(value):
        raise typer.BadParameter(f"{value!r} is not a name; write up to 128 of A-Z a-z 0-9 . _ -")
    return value


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
    rule_set: Annotated[
        str,
        typer.Option(
            "--rule-set",
            metavar="NAME",
            callback=_check_name,
            help="The name of the rule set. Rule sets of one bus have different names.",
        ),
    ] = RULE_SET_DEFAULT,
    variables: Annotated[
        list[str] | None,
        typer.Option(
            "--env",
            metavar="VARIABLE",
            help="An environment variable that the servers get, e.g. HTTPS_PROXY; the configuration names it without its value. May be "
            "repeated.",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace files that exist.")] = False,
    debug: Debug = False,
) -> None:
    """Print a rule set for the tools of MCP servers; write its tests and the proxy's configuration.

    Tools that a server calls read-only are allowed and witnessed. Tools that it calls harmless are approved; all others need a person.
    """
    import asyncio

    from gavel_server.cli.commands.mcp.documents import write_documents
    from gavel_server.cli.documents import write_document
    from gavel_server.cli.rendering import output

    mcp_extra()
    tests = rules.with_name(TESTS.format(stem=rules.stem))
    existing = [str(path) for path in (tests, config) if path.exists()]
    if existing and not force:
        raise InvalidInputError(f"{' and '.join(existing)} exist already; name other files (--rules, --config) or replace them (--force)")
    listed = asyncio.run(list_tools([_server(text, variables or ()) for text in servers], Path.cwd()))
    documents = write_documents(listed, agent, rules.name, rule_set)
    for path, text in ((tests, documents.tests), (config, documents.configuration)):
        if text:
            write_document(path, text)
            output.print_note(f"wrote {path}")
    if not documents.rules:
        raise CommandError("all tools are read-only, so no rule set is written; the proxy needs none for reads")
    output.print_line(documents.rules.rstrip("\n"))


def _server(text: str, variables: Sequence[str]) -> tuple[str, ServerSettings]:
    """Return the name and the settings of a server that gets these environment variables. Raises InvalidInputError."""
    from gavel_client.mcp.configuration import Configuration
    from pydantic import ValidationError

    name, _, target = text.partition("=")
    try:
        is_remote = target.startswith(("http://", "https://"))
        env = {variable: {"from_env": variable} for variable in variables}
        settings = {"url": target} if is_remote else {"command": shlex.split(target), "env": env}
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
        with configuration_errors():
            upstream = Upstream(name, settings, folder)
        connection = asyncio.create_task(upstream.run())
        try:
            await upstream.wait_for_first_try()
            if upstream.problem:
                problem = upstream.problem.removesuffix("; it is tried again")
                target = shlex.join(settings.command) or settings.url
                raise CommandError(f"{problem}; check its command or URL: {target}{_missing_variables(settings)}")
            listed.append((name, settings, list(upstream.definitions.values())))
        finally:
            connection.cancel()
            await asyncio.wait({connection})
    return listed


def _missing_variables(settings: ServerSettings) -> str:
    """Return a hint at the variables of the network that are set here and that the server does not get; "" if there are none."""
    missing = [name for name in NETWORK_VARIABLES if os.environ.get(name) and name not in settings.env]
    if not settings.command or not missing:
        return ""
    return (
        f"\nThe server does not get these variables, which are set here: {', '.join(missing)}. If it needs them to reach the network, "
        "pass them on: --env of gavel mcp scaffold, or env in the configuration."
    )
