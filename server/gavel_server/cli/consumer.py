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
from gavel_server.cli.options import check_redis, log_location

# How long a task or thread that a handler has left running may delay the end of the process.
LEAVE_SECONDS_MAX: Final = 5.0

Redis = Annotated[
    str, typer.Option(metavar="URL", callback=check_redis, help="The server's Redis, which has the work queues. Default: GAVEL_REDIS.")
]
Data = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="The data directory of a server with an embedded Redis. Default: GAVEL_DATA, else .gavel."),
]


def work_queue_url(data: Path | None, redis: str, server: str) -> str:
    """Return the URL of the Redis that has the work queues of `server`. Raises InvalidInputError, CommandError."""
    from gavel_server.log.redis.connection import check_url
    from gavel_server.log.redis.data_directory import noted_url

    directory, url = log_location(data, redis)
    if url:
        try:
            return check_url(url)
        except ValueError as error:
            raise InvalidInputError(f"{error} (--redis, GAVEL_REDIS)") from error
    url = noted_url(directory) or ""
    if not url:
        raise CommandError(
            f"the work queues of the server at {server} are in its Redis, and {directory} has none: give the server's data directory with "
            "--data DIR (GAVEL_DATA), or its Redis with --redis URL (GAVEL_REDIS)"
        )
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
