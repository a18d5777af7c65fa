"""A start of an attempt whose answer is lost on the way: the Python client repeats it and gets the same attempt."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import suppress
from typing import TypeVar

from gavel.v1.event_service_pb2 import ListEventsRequest
from gavel_client.rpc.client import GavelClient

from tests.integration.services.world import EXECUTOR, World

Response = TypeVar("Response")


class AnswerCutter:
    """A TCP proxy in front of a server. While `is_cutting`, it drops what the server sends; `cut` closes the connections."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._writers: set[asyncio.StreamWriter] = set()
        self.is_cutting = False

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward one connection."""
        from_server, to_server = await asyncio.open_connection("127.0.0.1", self._port)
        self._writers |= {writer, to_server}
        await asyncio.gather(self._copy(reader, to_server, drops=False), self._copy(from_server, writer, drops=True))

    def cut(self) -> None:
        """Close all connections."""
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def _copy(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, drops: bool) -> None:
        with suppress(OSError):
            while data := await source.read(65_536):
                if not (drops and self.is_cutting):
                    sink.write(data)
        sink.close()


async def test_a_lost_answer_costs_no_attempt(world_with_rules: World) -> None:
    """If the answer to BeginExecution or RenewExecution is lost after the commit, the repeated call gets it, and the log has one event."""
    world = world_with_rules
    decision = await world.approve()
    cutter = AnswerCutter(int(world.address.rpartition(":")[2]))
    proxy = await asyncio.start_server(cutter.serve, "127.0.0.1", 0)
    async with GavelClient(f"127.0.0.1:{proxy.sockets[0].getsockname()[1]}") as client:
        await client.get_status()
        started = (await _through_cut(world, cutter, client.begin_execution(decision.event_id, producer=EXECUTOR))).started
        assert (1, 30_000) == (started.attempt, started.lease_ms)
        renewal = client.renew_execution(decision.event_id, started.execution_id, producer=EXECUTOR, lease_ms=60_000)
        assert 60_000 == (await _through_cut(world, cutter, renewal)).lease_ms
    proxy.close()
    cutter.cut()
    events = (await world.events.ListEvents(ListEventsRequest(from_sequence_number=decision.sequence_number + 1))).envelopes
    assert ["ExecutionStarted", "ExecutionRenewed"] == [event.event_name for event in events]
    assert all(event.event_id == event.execution.request_id for event in events)


async def _through_cut(world: World, cutter: AnswerCutter, call: Awaitable[Response]) -> Response:
    """Make a call whose first answer is lost after its event is in the log."""
    head = await world.head()
    cutter.is_cutting = True
    task = asyncio.ensure_future(call)
    while await world.head() == head:  # noqa: ASYNC110  # the log, not an event, tells that the commit is done
        await asyncio.sleep(0.01)
    cutter.is_cutting = False
    cutter.cut()
    return await task
