"""`gavel executor` and `gavel fdr`: the consumers of the work queues as processes of their own."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from gavel_rules.limits import LEASE_MS_DEFAULT, LEASE_MS_MAX, LEASE_MS_MIN, PRODUCER_ID

from gavel_server.cli.errors import EXIT_FAILURE, CommandError, InvalidInputError
from gavel_server.cli.options import BUS_DEFAULT, SERVER_DEFAULT, Bus, Debug, Server, named_log

if TYPE_CHECKING:
    from types import ModuleType

    from gavel_client.handlers import Handlers

# How long what a handler has left behind, once it has been reported, may hold up the end of the process.
LEAVE_SECONDS_MAX: Final = 5.0

Redis = Annotated[str, typer.Option(metavar="URL", help="The Redis of the server, where it is not embedded. Or GAVEL_REDIS.")]
Data = Annotated[
    Path | None, typer.Option(metavar="DIR", help="The server's data directory: its embedded Redis has the work queues. Default: .gavel.")
]


def _producer_id(value: str) -> str:
    """Refuse what the server would refuse with every decision."""
    from gavel_rules.events import GAVEL

    if not re.fullmatch(PRODUCER_ID, value):
        raise typer.BadParameter(f"{value!r} is no producer's id: it has 1 to 128 characters of A-Z, a-z, 0-9 and . _ : @ / -")
    if value == GAVEL:
        raise typer.BadParameter(f"{value} is the server's own id; choose another")
    return value


def _group(value: str) -> str:
    if not value.strip():
        raise typer.BadParameter("it is empty; the same name for the same handlers, or leave it out")
    return value


ExecutorId = Annotated[str, typer.Option("--id", callback=_producer_id, metavar="NAME", help="The executor's stable name in the log.")]
Group = Annotated[str, typer.Option("--group", callback=_group, metavar="NAME", help="The consumer group; the same for the same handlers.")]


def executor(
    module: Annotated[
        str, typer.Argument(metavar="MODULE", help="A module or a .py file with a gavel_client.handlers.Handlers; MODULE:NAME picks one.")
    ],
    producer_id: ExecutorId = "gavel-executor",
    group: Group = "executors",
    concurrency: Annotated[int, typer.Option(min=1, metavar="N", help="Decisions carried out at the same time, at most.")] = 8,
    lease_ms: Annotated[
        int, typer.Option(min=LEASE_MS_MIN, max=LEASE_MS_MAX, metavar="MS", help="How long nobody else may take over an attempt.")
    ] = LEASE_MS_DEFAULT,
    redis: Redis = "",
    data: Data = None,
    server: Server = SERVER_DEFAULT,
    bus: Bus = BUS_DEFAULT,
    debug: Debug = False,
) -> None:
    """Carry out approved decisions with a module's handlers.

    It ends by SIGTERM or SIGINT.
    """
    handlers = load_handlers(module)
    url = _work_queues(redis, data)

    async def run() -> None:
        from gavel_client import GavelClient
        from gavel_client.executor import Executor

        from gavel_server.cli import output

        async with GavelClient(server, bus=bus) as client:
            consumer = Executor(client, url, handlers, producer_id=producer_id, group=group, concurrency=concurrency, lease_ms=lease_ms)
            output.say(f"gavel: executor {producer_id} carries out {', '.join(sorted(handlers))} on bus {bus}")
            await _until_signalled(consumer.run, consumer.stop)

    _run(run)


def fdr(redis: Redis = "", data: Data = None, server: Server = SERVER_DEFAULT, bus: Bus = BUS_DEFAULT, debug: Debug = False) -> None:
    """Derive facts from executions, until SIGTERM or SIGINT. A server does it by itself unless it runs with --no-fdr."""
    url = _work_queues(redis, data)

    async def run() -> None:
        from gavel_client import GavelClient
        from gavel_client.fdr import FactDerivationReactor

        from gavel_server.cli import output

        async with GavelClient(server, bus=bus) as client:
            reactor = FactDerivationReactor(client, url)
            output.say(f"gavel: deriving facts on bus {bus}")
            await _until_signalled(reactor.run, reactor.stop)

    _run(run)


def load_handlers(name: str) -> Handlers:
    """Return the handlers of a module: "package.module", "file.py", or either with ":NAME". Raises InvalidInputError."""
    from gavel_client.handlers import Handlers

    module_name, _, chosen = name.partition(":")
    found = {key: value for key, value in vars(_imported(module_name)).items() if isinstance(value, Handlers)}
    if chosen and chosen not in found:
        raise InvalidInputError(f"{module_name} has no gavel_client.handlers.Handlers named {chosen}; it has {', '.join(found) or 'none'}")
    if not chosen and len(found) != 1:
        what = f"has {len(found)} ({', '.join(found)}); name one as {module_name}:NAME" if found else "has none; declare one"
        raise InvalidInputError(f"{module_name} must have one gavel_client.handlers.Handlers; it {what}")
    handlers = found[chosen] if chosen else next(iter(found.values()))
    if not handlers:
        raise InvalidInputError(f"{module_name} registers no action; decorate a coroutine function with @handlers.action(…)")
    return handlers


def _imported(name: str) -> ModuleType:
    path = Path(name)
    is_file = path.suffix == ".py"
    # Where Python finds what the module imports: beside it, or where the command was given.
    sys.path.insert(0, str(path.parent.absolute() if is_file else Path.cwd()))
    try:
        return _loaded(path) if is_file else importlib.import_module(name)
    except Exception as error:
        raise InvalidInputError(f"cannot import {name}: {type(error).__name__}: {error}; mend it, or see more with --debug") from error


def _loaded(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    # As with any import, so that what it defines can be found again by name.
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[path.stem]
        raise
    return module


def _work_queues(redis: str, data: Path | None) -> str:
    """The URL of the Redis that has the work queues. Raises InvalidInputError, CommandError."""
    from gavel_server.embedded import noted_url
    from gavel_server.log.wire import check_url

    directory, url = named_log(data, redis)
    if url:
        try:
            return check_url(url)
        except ValueError as error:
            raise InvalidInputError(f"{error} (--redis, GAVEL_REDIS)") from error
    url = noted_url(directory) or ""
    if not url:
        raise CommandError(f"no server has used {directory}; give the server's data directory with --data, or its Redis with --redis URL")
    return url


async def _until_signalled(run: Callable[[], Coroutine[Any, Any, None]], stop: Callable[[], None]) -> None:
    import asyncio

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    await run()


def _run(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    import asyncio

    from gavel_client import WorkQueueError

    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    # A task that does not heed its cancellation, or a thread that still waits for something, would never let asyncio end.
    leaving = threading.Timer(LEAVE_SECONDS_MAX, _leave)
    leaving.daemon = True

    async def run() -> None:
        try:
            await work()
        finally:
            leaving.start()

    try:
        asyncio.run(run())
    except (WorkQueueError, ValueError) as error:
        raise CommandError(str(error)) from error
    finally:
        leaving.cancel()


def _leave() -> None:
    """End the process without whatever still runs in it."""
    logging.getLogger("gavel.consumer").error("what a handler has left behind does not end; the process ends without it")
    logging.shutdown()
    os._exit(EXIT_FAILURE)
