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
from gavel_server.cli.options import check_store

# How long a task or thread that a handler has left running may delay the end of the process.
LEAVE_SECONDS_MAX: Final = 5.0

Redis = Annotated[str, typer.Option(metavar="URL", callback=check_store, help="Take the work from this Redis instead of the server.")]
Data = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Take the work from the embedded Redis of this data directory instead of the server."),
]


def work_queue_url(data: Path | None, redis: str) -> str:
    """Return the URL of the Redis that the options name, "" if they name none: the work then comes over gRPC.

    Raises InvalidInputError, CommandError.
    """
    from gavel_server.log.redis.data_directory import last_url
    from gavel_server.log.redis.topology.urls import check_url

    if redis:
        try:
            return check_url(redis)
        except ValueError as error:
            raise InvalidInputError(f"{error} (--redis)") from error
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
