"""The demo's stage: a server in a process of its own, the story played on it, and the replay of its log after it has stopped."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

from gavel_server.cli import output
from gavel_server.cli.errors import CommandError
from gavel_server.cli.options import explained

if TYPE_CHECKING:
    from gavel.v1.replay_service_pb2 import ReplayVerdict

# A server has to load its log before it answers.
START_TIMEOUT_SECONDS: Final = 120
STOP_TIMEOUT_SECONDS: Final = 60
READY: Final = "gavel: ready on "
# What the server says goes here, in the data directory.
SERVER_LOG: Final = "demo-server.log"
SERVER_LINES_SHOWN: Final = 20


async def perform(data: Path, bus: str) -> int:
    """Play the demo with its log in `data` and prove it; return the exit status of the replay."""
    from gavel_server.cli.replaying import exit_status

    async with _server(data) as address:
        trace = await _play(address, data, bus)
    output.say("")
    output.say(f"The server has stopped; its log stays in {data}. Look around with:")
    output.say(f"  gavel serve --data {data}, and then: gavel trace {trace}, gavel log list, gavel status")
    output.say(f"  gavel replay --data {data}")
    output.say("")
    output.say("Now every decision is made again from the log alone:")
    verdict = await _proved(data, bus)
    output.say(verdict.message)
    return exit_status(verdict)


async def _play(address: str, data: Path, bus: str) -> str:
    """Play the story; return the trace to look at."""
    from gavel_client import GavelClient, GavelError

    from gavel_server.cli.demo_story import Story
    from gavel_server.cli.demo_timeline import Timeline
    from gavel_server.cli.reading import print_projection
    from gavel_server.embedded import noted_url

    redis_url = noted_url(data)
    if redis_url is None:
        raise CommandError(f"the server on {data} does not say where its Redis is; run the demo on another directory with --data")
    output.say(f"gavel demo: a server on {address}, its log in {data}, bus {bus}")
    async with GavelClient(address, bus=bus) as client:
        timeline = Timeline()
        story = Story(client, redis_url, timeline)
        try:
            projection = await story.play()
        except GavelError as error:
            failure = explained(error, address)
            raise CommandError(
                f"the demo cannot go on: {failure}; the server's log is {data / SERVER_LOG}; try a fresh directory with --data DIR"
            ) from error
        timeline.heading("What holds in the end, for the first order")
        print_projection(projection)
        return story.main_trace


@asynccontextmanager
async def _server(data: Path) -> AsyncIterator[str]:
    """Run `gavel serve` as a process of its own; yield its address, and stop it as an operator does."""
    said = data / SERVER_LOG
    command = (sys.executable, "-m", "gavel_server.cli", "serve", "--listen", "127.0.0.1:0", "--data", str(data))
    # Settings of another server in the environment are not the demo's.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GAVEL_")}
    with _created(said) as log:
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, stderr=log, env=environment)
    try:
        yield await _ready(process, said)
    finally:
        status = await _stopped(process)
    if status != 0:
        raise CommandError(f"the server ended with exit status {status}; it said:\n{_tail(said)}")


def _created(path: Path) -> BinaryIO:
    """Open a new file for writing, in a directory that is made if it is not there."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return path.open("wb")
    except OSError as error:
        raise CommandError(f"cannot write {path}: {error.strerror}; give another directory with --data") from error


async def _stopped(process: asyncio.subprocess.Process) -> int:
    """Stop the server as an operator does; return its exit status."""
    if process.returncode is None:
        process.terminate()
    try:
        async with asyncio.timeout(STOP_TIMEOUT_SECONDS):
            return await process.wait()
    except TimeoutError:
        process.kill()
        return await process.wait()


async def _ready(process: asyncio.subprocess.Process, said: Path) -> str:
    """Wait until the server answers; return its address."""
    if process.stdout is None:
        raise AssertionError("the server's stdout is a pipe")
    try:
        async with asyncio.timeout(START_TIMEOUT_SECONDS):
            while line := (await process.stdout.readline()).decode(errors="replace"):
                if line.startswith(READY):
                    return line.removeprefix(READY).strip()
            await process.wait()
    except TimeoutError:
        raise CommandError(f"the server did not answer within {START_TIMEOUT_SECONDS} s; it said:\n{_tail(said)}") from None
    raise CommandError(f"the server did not start; it said:\n{_tail(said)}")


def _tail(said: Path) -> str:
    """Return the newest lines of what the server said."""
    lines = said.read_text(errors="replace").splitlines()
    return "\n".join(f"  {line}" for line in lines[-SERVER_LINES_SHOWN:]) or "  (nothing)"


async def _proved(data: Path, bus: str) -> ReplayVerdict:
    from gavel.v1.decision_pb2 import ENGINE_RETE

    from gavel_server.cli.offline import log_in_directory
    from gavel_server.cli.replaying import verdict_in, verified_here

    return await verdict_in(verified_here(log_in_directory(data, bus), 0, 0, ENGINE_RETE))
