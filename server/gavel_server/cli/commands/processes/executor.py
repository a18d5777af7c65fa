"""`gavel executor`: carries out approved decisions with a Python module's handlers."""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from gavel_rules.limits import LEASE_MS_DEFAULT, LEASE_MS_MAX, LEASE_MS_MIN, PRODUCER_ID

from gavel_server.cli.commands.tools.profile import open_runtime, read_profile
from gavel_server.cli.connection import open_client
from gavel_server.cli.consumer import Data, Redis, run_until_signal, stop_on_signal, work_queue_url
from gavel_server.cli.errors import InvalidInputError
from gavel_server.cli.options import BUS_DEFAULT, SERVER_DEFAULT, Bus, Debug, Server

if TYPE_CHECKING:
    from types import ModuleType

    from gavel_client.handlers import Handlers


def _check_producer_id(value: str) -> str:
    """Return the executor's id. Raises BadParameter for one that the server would refuse at every decision."""
    from gavel_rules.events.kinds import GAVEL

    if not re.fullmatch(PRODUCER_ID, value):
        raise typer.BadParameter(f"{value!r} is not a producer id; use 1 to 128 characters of A-Z, a-z, 0-9 and . _ : @ / -")
    if value == GAVEL:
        raise typer.BadParameter(f"{value} is the server's own id; choose another")
    return value


def _check_group(value: str) -> str:
    if not value.strip():
        raise typer.BadParameter("it is empty; give executors of the same handlers the same name, or omit it")
    return value


ExecutorId = Annotated[
    str, typer.Option("--id", callback=_check_producer_id, metavar="NAME", help="The executor's stable name in the log.")
]
Group = Annotated[
    str,
    typer.Option("--group", callback=_check_group, metavar="NAME", help="The consumer group; the same for executors of the same handlers."),
]


def executor(
    module: Annotated[
        str,
        typer.Argument(metavar="MODULE", help="A module or .py file that has a gavel_client.handlers.Handlers; MODULE:NAME selects one."),
    ],
    producer_id: ExecutorId = "gavel-executor",
    group: Group = "executors",
    concurrency: Annotated[int, typer.Option(min=1, metavar="N", help="Carry out at most this many decisions at a time.")] = 8,
    lease_ms: Annotated[
        int, typer.Option(min=LEASE_MS_MIN, max=LEASE_MS_MAX, metavar="MS", help="How long no other executor may take over an attempt.")
    ] = LEASE_MS_DEFAULT,
    tools: Annotated[
        str, typer.Option("--tools", metavar="FILE", help="Offer the handlers the tools of this profile (ExecutionContext.call_tool).")
    ] = "",
    redis: Redis = "",
    data: Data = None,
    server: Server = SERVER_DEFAULT,
    bus: Bus = BUS_DEFAULT,
    debug: Debug = False,
) -> None:
    """Carry out approved decisions with a module's handlers.

    Decisions come from the server over gRPC; with --data or --redis they come from the server's Redis. SIGTERM, SIGINT and SIGHUP end the
    executor after the decisions that are under way.
    """
    handlers = load_handlers(module)
    url = work_queue_url(data, redis)
    profile = read_profile(tools) if tools else None

    async def run() -> None:
        from gavel_client.executor.executor import Executor

        from gavel_server.cli.rendering import output

        async with AsyncExitStack() as stack:
            client = await stack.enter_async_context(open_client(server, bus))
            runtime = await stack.enter_async_context(open_runtime(profile, client)) if profile is not None else None
            consumer = Executor(
                client,
                handlers,
                redis_url=url,
                producer_id=producer_id,
                group=group,
                concurrency=concurrency,
                lease_ms=lease_ms,
                tools=runtime,
            )
            output.print_line(f"gavel: executor {producer_id} carries out {', '.join(sorted(handlers))} on bus {bus}")
            stop_on_signal(consumer.stop)
            await consumer.run()

    run_until_signal(run)


def load_handlers(name: str) -> Handlers:
    """Return the handlers of a module: "package.module", "file.py", or either with ":NAME". Raises InvalidInputError."""
    from gavel_client.handlers import Handlers

    module_name, _, handlers_name = name.partition(":")
    candidates = {key: value for key, value in vars(_import(module_name)).items() if isinstance(value, Handlers)}
    if handlers_name and handlers_name not in candidates:
        raise InvalidInputError(
            f"{module_name} has no gavel_client.handlers.Handlers named {handlers_name}; it has {', '.join(candidates) or 'none'}"
        )
    if not handlers_name and len(candidates) != 1:
        problem = (
            f"has {len(candidates)} ({', '.join(candidates)}); name one as {module_name}:NAME" if candidates else "has none; declare one"
        )
        raise InvalidInputError(f"{module_name} must have one gavel_client.handlers.Handlers; it {problem}")
    handlers = candidates[handlers_name] if handlers_name else next(iter(candidates.values()))
    if not handlers:
        raise InvalidInputError(f"{module_name} registers no action; decorate a function with @handlers.action(…)")
    return handlers


def _import(name: str) -> ModuleType:
    path = Path(name)
    is_file = path.suffix == ".py"
    # A script such as send.sh has the form of a module's name too; the existing file is what the caller means.
    if not is_file and ((path.suffix and path.is_file()) or not all(part.isidentifier() for part in name.split("."))):
        raise InvalidInputError(f"{name!r} is neither a .py file nor the name of a module, e.g. refunds.py or package.refunds")
    if is_file and not path.is_file():
        raise InvalidInputError(f"there is no file {name}; give a .py file or the name of a module")
    # The module may import its neighbours: in its folder, or in the current one for a module by name.
    sys.path.insert(0, str(path.parent.absolute() if is_file else Path.cwd()))
    try:
        return _import_file(path) if is_file else importlib.import_module(name)
    except Exception as error:
        raise InvalidInputError(
            f"cannot import {name}: {type(error).__name__}: {error}; fix it, or repeat with --debug for the traceback"
        ) from error


def _import_file(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    # As for any import: pickle and others find a class by its module's name.
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[path.stem]
        raise
    return module
