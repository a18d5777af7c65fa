"""How the consumers of work queues, `gavel executor` and `gavel fdr`, find the queues, run and end."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from gavel_server.cli.errors import EXIT_FAILURE, CommandError, InvalidInputError
from gavel_server.cli.options import refuse_password

# How long a task or thread that a handler has left running may delay the end of the process.
LEAVE_SECONDS_MAX: Final = 5.0

# Not GAVEL_REDIS: on the server's machine it names the Redis of the log, with a user who may write to it.
REDIS_VARIABLE: Final = "GAVEL_WORK_REDIS"
Redis = Annotated[
    str,
    typer.Option(
        metavar="URL",
        callback=lambda url: refuse_password(url, REDIS_VARIABLE),
        help=f"Take the work from this Redis instead of the server. Give a URL with a password as {REDIS_VARIABLE}.",
    ),
]
Data = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Take the work from the embedded Redis of this data directory instead of the server."),
]


def work_queue_url(data: Path | None, redis: str) -> str:
    """Return the URL of the Redis that the options, or else the environment, name; "" if they name none: the work then comes over gRPC.

    Raises InvalidInputError, CommandError.
    """
    from gavel_server.log.redis.data_directory import last_url
    from gavel_server.log.redis.topology.urls import check_url

    if data is not None and redis:
        raise InvalidInputError("--data and --redis name two different Redis; give one of them")
    name = "--redis" if redis else REDIS_VARIABLE
    url = redis or ("" if data is not None else os.environ.get(REDIS_VARIABLE, ""))
    if url:
        try:
            return check_url(url)
        except ValueError as error:
            raise InvalidInputError(f"{error} ({name})") from error
    if data is None:
        return ""
    url = last_url(data) or ""
    if not url:
        raise CommandError(f"{data} has no embedded Redis with work queues; omit --data to take the work from the server over gRPC")
    return url


def run_until_signal(run: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a consumer's coroutine to its end. Raises CommandError."""
    import asyncio

    from gavel_client import WorkQueueError

    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    # asyncio.run never returns while a task ignores its cancellation or a thread is blocked.
    leave = threading.Timer(LEAVE_SECONDS_MAX, _leave)
    leave.daemon = True

    async def run_and_leave() -> None:
        try:
            await run()
        finally:
            leave.start()

    try:
        asyncio.run(run_and_leave())
    except (WorkQueueError, ValueError) as error:
        raise CommandError(str(error)) from error
    finally:
        leave.cancel()


def stop_on_signal(stop: Callable[[], None]) -> None:
    """Call `stop` on SIGTERM, SIGINT and SIGHUP. Needs a running event loop."""
    import asyncio

    from gavel_server.process.signals import stop_signals

    loop = asyncio.get_running_loop()
    for number in stop_signals():
        loop.add_signal_handler(number, stop)


def _leave() -> None:
    """End the process, together with the threads that still run."""
    logging.getLogger("gavel.consumer").error("a handler has left a task or a thread that does not end; the process ends without it")
    logging.shutdown()
    os._exit(EXIT_FAILURE)
