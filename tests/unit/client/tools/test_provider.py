"""Providers of functions: functions that hang stop nothing but their provider."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from gavel.v1.tool_pb2 import ToolContract
from gavel_client.tools import FunctionProvider, ToolContext, ToolError, ToolInvocation, errors

CALLER: contextvars.ContextVar[str] = contextvars.ContextVar("CALLER", default="")


def invocation(tool: str) -> ToolInvocation:
    """Return a call of a tool."""
    return ToolInvocation(tool, ToolContract(name=tool), "functions", "exec_000000000000", {}, ToolContext("host/1"))


async def test_functions_that_hang() -> None:
    """Functions that hang take no thread of the event loop's pool; beyond their own threads, calls fail at once and act later again."""
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    begun, end = threading.Semaphore(0), threading.Event()

    def hang(_: ToolInvocation) -> None:
        begun.release()
        end.wait()

    functions = FunctionProvider("functions", {"a.hang": hang, "a.name": lambda _: {"caller": CALLER.get()}}, threads_max=2)
    CALLER.set("agent-1")

    hanging = [asyncio.ensure_future(functions.invoke(invocation("a.hang"))) for _ in range(2)]
    for _ in hanging:
        await asyncio.to_thread(begun.acquire)
    hanging[0].cancel()  # as at the end of its time
    try:
        assert "done" == await asyncio.to_thread(lambda: "done")
        with pytest.raises(ToolError) as failure:
            await functions.invoke(invocation("a.name"))
        assert errors.QUOTA == failure.value.code
    finally:
        end.set()
        await asyncio.wait(hanging)

    while True:  # until the thread of the call that was cancelled has ended, too
        try:
            assert {"caller": "agent-1"} == (await functions.invoke(invocation("a.name"))).data
            break
        except ToolError:
            await asyncio.sleep(0)
    await functions.close()


async def test_a_thread_that_cannot_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call for which no thread can be started fails, and leaves its place to later ones."""

    def fail(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    functions = FunctionProvider("functions", {"a.name": lambda _: {"ok": True}}, threads_max=1)
    with monkeypatch.context() as patch:
        patch.setattr(functions._pool, "submit", fail)
        with pytest.raises(RuntimeError, match="thread"):
            await functions.invoke(invocation("a.name"))
    assert {"ok": True} == (await functions.invoke(invocation("a.name"))).data
