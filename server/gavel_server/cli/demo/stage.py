"""The demo's stage: starts a server process, plays the story on it, stops it, and replays its log."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

from gavel_server.cli.connection import command_error
from gavel_server.cli.demo.parties import OPERATOR, create_tokens, token_file, token_path
from gavel_server.cli.errors import CommandError
from gavel_server.cli.rendering import output
from gavel_server.process.private_files import make_directory

if TYPE_CHECKING:
    from gavel.v1.replay_service_pb2 import ReplayVerdict

# Long enough for a server to load a long log.
START_TIMEOUT_SECONDS: Final = 120
STOP_TIMEOUT_SECONDS: Final = 60
READY: Final = "gavel: ready on "
# The server's stderr, in the data directory.
SERVER_LOG: Final = "demo-server.log"
SERVER_LINES_SHOWN: Final = 20


async def perform(data: Path, bus: str) -> int:
    """Play the demo with its log in `data` and replay the log; return the replay's exit status. Raises CommandError."""
    from gavel_server.cli.commands.reads.replay import exit_status

    token = create_tokens(data)
    async with _server(data) as address:
        trace = await _play(address, data, bus, token)
    output.print_line("")
    output.print_line(f"The server has stopped; its log stays in {data}. Explore it with:")
    output.print_line(f"  export GAVEL_AUTHENTICATION=required GAVEL_TOKEN_FILE={token_file(data)}")
    output.print_line(f"  export GAVEL_CLIENT_TOKEN_FILE={token_path(data, OPERATOR)}")
    output.print_line(f"  gavel serve --data {data}, and then: gavel trace {trace}, gavel log list")
    output.print_line(f"  gavel replay --data {data}")
    output.print_line("")
    output.print_line("The replay recomputes every decision from the log alone:")
    verdict = await _replay(data, bus)
    output.print_line(verdict.message)
    return exit_status(verdict)


async def _play(address: str, data: Path, bus: str, token: str) -> str:
    """Play the story as the operator, who has `token`; return its main trace."""
    from gavel_client import GavelClient, GavelError

    from gavel_server.cli.demo.parties import run_parties
    from gavel_server.cli.demo.story import Story
    from gavel_server.cli.demo.timeline import Timeline
    from gavel_server.cli.rendering.projection import print_projection

    output.print_line(f"gavel demo: a server on {address}, its log in {data}, bus {bus}")
    async with GavelClient(address, bus=bus, credentials=token) as client, run_parties(address, bus, data) as parties:
        timeline = Timeline()
        story = Story(client, parties, timeline)
        try:
            projection = await story.play()
        except GavelError as error:
            failure = command_error(error, address, bus)
            raise CommandError(
                f"the demo cannot continue: {failure}; the server's log is {data / SERVER_LOG}; try an empty directory with --data DIR"
            ) from error
        timeline.heading("The first order in the end")
        print_projection(projection)
        return story.main_trace


@asynccontextmanager
async def _server(data: Path) -> AsyncIterator[str]:
    """Run `gavel serve` as a process; yield its address, and stop it with SIGTERM."""
    log_file = data / SERVER_LOG
    options = ("--listen", "127.0.0.1:0", "--data", str(data), "--authentication", "required", "--token-file", str(token_file(data)))
    command = (sys.executable, "-m", "gavel_server.cli", "serve", *options)
    # The environment may hold another server's settings. An administrator deploys the first grants.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GAVEL_")}
    environment["GAVEL_ADMINS"] = json.dumps([OPERATOR])
    with _create_file(log_file) as log:
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, stderr=log, env=environment)
    try:
        yield await _wait_until_ready(process, log_file)
    finally:
        status = await _stop(process)
    if status != 0:
        raise CommandError(f"the server ended with exit status {status}; the end of its log:\n{_tail(log_file)}")


def _create_file(path: Path) -> BinaryIO:
    """Open a new file for writing and create its directory. Raises CommandError."""
    try:
        make_directory(path.parent)
        return path.open("wb")
    except OSError as error:
        raise CommandError(f"cannot write {path}: {error.strerror}; give another directory with --data") from error


async def _stop(process: asyncio.subprocess.Process) -> int:
    """Stop the server with SIGTERM; return its exit status."""
    if process.returncode is None:
        process.terminate()
    try:
        async with asyncio.timeout(STOP_TIMEOUT_SECONDS):
            return await process.wait()
    except TimeoutError:
        process.kill()
        return await process.wait()


async def _wait_until_ready(process: asyncio.subprocess.Process, log_file: Path) -> str:
    """Return the address of the server once it is ready. Raises CommandError."""
    if process.stdout is None:
        raise AssertionError("the server's stdout is a pipe")
    try:
        async with asyncio.timeout(START_TIMEOUT_SECONDS):
            while line := (await process.stdout.readline()).decode(errors="replace"):
                if line.startswith(READY):
                    return line.removeprefix(READY).strip()
            await process.wait()
    except TimeoutError:
        raise CommandError(f"the server did not answer within {START_TIMEOUT_SECONDS} s; the end of its log:\n{_tail(log_file)}") from None
    raise CommandError(f"the server did not start; the end of its log:\n{_tail(log_file)}")


def _tail(log_file: Path) -> str:
    """Return the last lines of the server's log."""
    lines = log_file.read_text(errors="replace").splitlines()
    return "\n".join(f"  {line}" for line in lines[-SERVER_LINES_SHOWN:]) or "  (nothing)"


async def _replay(data: Path, bus: str) -> ReplayVerdict:
    from gavel.v1.decision_pb2 import ENGINE_RETE

    from gavel_server.cli.commands.reads.replay import read_verdict, verify_log
    from gavel_server.cli.offline_log import open_directory

    return await read_verdict(verify_log(open_directory(data, bus), 0, 0, ENGINE_RETE))
