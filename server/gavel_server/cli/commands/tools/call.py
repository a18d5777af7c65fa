"""`gavel tools call`: calls a tool through a runtime in this process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gavel_server.cli.commands.tools.bind import Session
from gavel_server.cli.commands.tools.profile import open_runtime, read_profile
from gavel_server.cli.connection import command_error, open_client
from gavel_server.cli.errors import CommandError, InvalidInputError
from gavel_server.cli.options import BUS_DEFAULT, SERVER_DEFAULT, WAIT_SECONDS_MAX, Bus, Debug, JsonReport, Server

if TYPE_CHECKING:
    from gavel_client.tools import ToolContext, ToolOutcome
    from gavel_client.tools.profile import ToolProfile


def call_tool(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A canonical name or an alias.")],
    arguments: Annotated[str, typer.Argument(metavar="ARGUMENTS", help="The arguments, a JSON object; - is standard input.")] = "{}",
    profile: Annotated[
        str,
        typer.Option("--profile", envvar="GAVEL_TOOL_PROFILE", metavar="FILE", help="The providers and the evidence store of the runtime."),
    ] = "tools.yaml",
    subject: Annotated[str, typer.Option("--subject", metavar="TYPE/ID", help="Subject of the events.")] = "tool/call",
    trace: Annotated[str, typer.Option("--trace", metavar="ID", help="Trace of the events; the server chooses one if it is omitted.")] = "",
    session: Session = "",
    agent: Annotated[str, typer.Option("--agent", metavar="NAME", help="The agent that asks for the call.")] = "",
    timeout_ms: Annotated[
        int, typer.Option("--timeout-ms", min=1, max=1000 * WAIT_SECONDS_MAX, metavar="MS", help="Time for the tool.")
    ] = 30_000,
    server: Server = SERVER_DEFAULT,
    bus: Bus = BUS_DEFAULT,
    as_json: JsonReport = False,
    debug: Debug = False,
) -> None:
    """Call a tool as an agent would, and print its result. The call and its result are recorded.

    Exit status 1: the tool failed, or agents may not call it.
    """
    from gavel_client.tools import ToolContext

    from gavel_server.cli.rendering import output

    tool_profile, values = read_profile(profile), _read_arguments(arguments)
    context = ToolContext(subject, trace_id=trace, session_id=session, agent_id=agent, timeout_ms=timeout_ms)
    outcome = asyncio.run(_call(server, bus, tool_profile, name, values, context))
    if as_json:
        output.print_report(_report(outcome))
    elif outcome.error is None:
        output.print_report(outcome.data)
    output.print_note(
        f"gavel: {outcome.canonical_tool} by {outcome.provider_id}, {outcome.execution_id}: "
        f"events {outcome.call.sequence_number} and {outcome.result.sequence_number} of trace {outcome.call.trace_id}"
    )
    if outcome.error is not None:
        raise CommandError(f"{outcome.error.code}: {outcome.error.message}")


async def _call(server: str, bus: str, profile: ToolProfile, name: str, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutcome:
    from gavel_client import GavelError

    async with open_client(server, bus) as client:
        runtime = open_runtime(profile, client)
        try:
            return await runtime.invoke(name, arguments, context)
        except GavelError as error:
            raise command_error(error, server, bus) from error
        finally:
            await runtime.close()


def _read_arguments(text: str) -> Mapping[str, Any]:
    from gavel_server.cli.documents import STANDARD_INPUT, read_document

    try:
        arguments = json.loads(read_document(STANDARD_INPUT) if text == STANDARD_INPUT else text)
    except (ValueError, RecursionError) as error:
        raise InvalidInputError(f"ARGUMENTS is not JSON: {error}") from error
    if not isinstance(arguments, dict):
        raise InvalidInputError('ARGUMENTS is not a JSON object, e.g. \'{"path": "/workspace/a.txt"}\'')
    return arguments


def _report(outcome: ToolOutcome) -> dict[str, object]:
    """Return the result envelope (constitution 004 §3) as JSON."""
    error = outcome.error
    return {
        "requested_tool": outcome.requested_tool,
        "canonical_tool": outcome.canonical_tool,
        "tool_version": outcome.tool_version,
        "provider_id": outcome.provider_id,
        "execution_id": outcome.execution_id,
        "arguments_hash": outcome.arguments_hash,
        "result_hash": outcome.result_hash,
        "request_schema_hash": outcome.request_schema_hash,
        "response_schema_hash": outcome.response_schema_hash,
        "started_at": outcome.started_at.isoformat(),
        "finished_at": outcome.finished_at.isoformat(),
        "ok": outcome.ok,
        "data": outcome.data,
        "error": None if error is None else {"code": error.code, "message": error.message, "details": dict(error.details)},
        "evidence_uri": outcome.evidence_uri,
        "evidence_hash": outcome.evidence_hash,
        "trace_id": outcome.call.trace_id,
        "call_event": outcome.call.event_id,
        "result_event": outcome.result.event_id,
    }
