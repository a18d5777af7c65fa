"""Plain functions of applications, which run in threads because they may block."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")


def call_plain(function: Callable[..., Result], *arguments: object) -> Result:
    """Call a function in a thread whose outcome asyncio awaits.

    A future of asyncio cannot hold a StopIteration, so awaiting it would never end. It becomes a RuntimeError, as in a coroutine (PEP 479).
    """
    try:
        return function(*arguments)
    except StopIteration as error:
        # The traceback of the function itself, so that the error is reported with its place.
        raise RuntimeError("the function raised StopIteration").with_traceback(error.__traceback__) from error
