"""Reads of large states: pages, and how many turns of the event loop they leave to others."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

import pytest
from gavel.v1.event_service_pb2 import BatchPublishEventsRequest, GetTraceRequest
from gavel.v1.projection_service_pb2 import GetProjectionRequest, GetProjectionResponse, GetStatusRequest, Projection
from gavel_client.supervision import Supervisor
from gavel_rules.commands import PublishEvent
from gavel_rules.state.digest import digest_parts
from gavel_rules.values import value_to_python
from gavel_server.bus.sequencer import Sequencer
from gavel_server.errors import ServiceError
from gavel_server.fairness.quotas import QuotaLimits, Quotas
from gavel_server.intake.admission import admit
from gavel_server.log import Head
from gavel_server.rpc.call_context import UNIX_PEER, CallContext, Caller
from gavel_server.services import projection as projection_service
from gavel_server.services.projection import NARROW_ITEMS_MAX, SLICE_UNITS, ProjectionServicer
from gavel_server.services.reads.paging import Page
from gavel_server.services.reads.projection_digests import SLICE_BYTES, ProjectionDigests
from gavel_server.services.reads.subject_projection import ITEM_UNITS, Place

from tests.integration.services.world import World, fact, observation, refusal, tool_call

SUBJECT = "order/1"
FACTS = 2_300
# About 6,000 parts.
VALUE = {f"row-{number}": [number, {"name": "x", "open": True, "note": None}] for number in range(1_000)}


class Turns:
    """Counts the turns of the event loop within a block: `count`."""

    def __init__(self) -> None:
        self.count = 0
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Turns:
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()

    async def _run(self) -> None:
        while True:
            self.count += 1
            await asyncio.sleep(0)


async def turns_of(work: Awaitable[Any]) -> int:
    """Return how often other tasks had a turn during work of the server that waits for nothing else."""
    async with Turns() as turns:
        await work
    return turns.count


async def project(
    world: World, servicer: ProjectionServicer | None = None, peer: str = UNIX_PEER, subject: str = SUBJECT
) -> GetProjectionResponse:
    """Read a subject's first page as the interceptor would, without a transport."""
    servicer = servicer or ProjectionServicer(world.buses, Supervisor(), Quotas(QuotaLimits()))
    context = CallContext("gavel.v1.ProjectionService/GetProjection", lambda: Caller("grpc.aio", peer, (), None))
    return await servicer.GetProjection(GetProjectionRequest(subject=subject), context)


async def publish(world: World, count: int, trace_id: str = "") -> None:
    """Publish facts with keys of their own about the subject, out of order."""
    numbers = [(number * 7_919) % count for number in range(count)]
    for first in range(0, count, 500):
        facts = [fact(SUBJECT, f"key.n{number}", number, trace_id=trace_id) for number in numbers[first : first + 500]]
        results = (await world.events.BatchPublishEvents(BatchPublishEventsRequest(envelopes=facts))).results
        assert not [result.error for result in results if result.HasField("error")]


async def read_pages(world: World, **fields: Any) -> list[Projection]:
    """Return all pages of the subject's projection."""
    pages: list[Projection] = []
    token = ""
    while token or not pages:
        request = GetProjectionRequest(subject=SUBJECT, page_token=token, **fields)
        response = await world.projections.GetProjection(request)
        pages.append(response.projection)
        token = response.next_page_token
    return pages


async def test_a_projection_in_pages(world_with_rules: World) -> None:
    """The pages of a projection hold each item once, in order, whatever their size; the default is one page of up to 1,000 items."""
    world = world_with_rules
    for key in ("order.a", "order.b", "order.c"):
        await world.publish(observation(SUBJECT, key, "seen"))
    for key in ("order.a", "order.c"):
        await world.publish(fact(SUBJECT, key, "fact"))
    await world.begin(await world.approve(SUBJECT))
    (whole,) = await read_pages(world)
    assert (1, 1) == (len(whole.pending_decisions), len(whole.pending_executions))
    assert [3, 3] == [len(whole.facts), len(whole.observations)]
    for size in (1, 2, 3, 7):
        combined = Projection()
        for page in await read_pages(world, page_size=size):
            items = [*page.facts, *page.observations, *page.pending_decisions, *page.pending_executions, *page.pending_proposals]
            assert size >= len(items)
            combined.MergeFrom(page)
        assert whole == combined


async def test_a_subject_with_many_facts(world: World) -> None:
    """A subject with many facts is read in pages of at most 1,000, each of which leaves turns to others."""
    await publish(world, FACTS)
    pages = await read_pages(world)
    assert [1_000, 1_000, 300] == [len(page.facts) for page in pages]
    keys = [one.key for page in pages for one in page.facts]
    assert sorted(f"key.n{number}" for number in range(FACTS)) == keys
    assert await turns_of(project(world)) >= 1_000 * ITEM_UNITS // SLICE_UNITS


@pytest.mark.long
async def test_large_values_in_a_projection(world: World) -> None:
    """A page of large values ends before it outgrows the clients' limit, and is built in many turns; the values are those published."""
    for number in range(20):
        await world.publish(fact(SUBJECT, f"key.n{number}", {**VALUE, "text": ["x" * 60_000] * 4}))
    pages = await read_pages(world)
    assert len(pages) > 1
    assert max(page.ByteSize() for page in pages) < 4 * 1024 * 1024
    assert 20 == sum(len(page.facts) for page in pages)
    assert {**VALUE, "text": ["x" * 60_000] * 4} == value_to_python(pages[0].facts[0].value)
    # Each value has three parts a row that are no list and no map, and more.
    assert await turns_of(project(world)) >= len(pages[0].facts) * 3 * len(VALUE) // SLICE_UNITS


async def test_tokens_of_other_projections_are_refused(world: World) -> None:
    """A page token belongs to one subject of one bus."""
    await publish(world, 3)
    page = await world.projections.GetProjection(GetProjectionRequest(subject=SUBJECT, page_size=1))
    problem = await refusal(world.projections.GetProjection(GetProjectionRequest(subject="order/2", page_token=page.next_page_token)))
    assert ["page_token"] == problem.fields
    assert ["page_size"] == (await refusal(world.projections.GetProjection(GetProjectionRequest(subject=SUBJECT, page_size=1_001)))).fields


async def test_digests_are_computed_in_slices_and_remembered(world: World) -> None:
    """The digest of a large state leaves many turns to others; as long as the bus rests it is not computed again."""
    await publish(world, FACTS)
    request = GetStatusRequest(include_projection_digest=True)
    first, again = [await world.projections.GetStatus(request) for _ in range(2)]
    sequencer = await world.buses.open("")
    state = await sequencer.settled_state()
    assert (state.digest(), state.digest()) == (first.projection_digest, again.projection_digest)
    digests = ProjectionDigests()
    text_bytes = sum(map(len, digest_parts(state.store)))
    assert await turns_of(digests.read(sequencer, "caller")) >= text_bytes // SLICE_BYTES > 3
    assert 0 == await turns_of(digests.read(sequencer, "caller"))
    await world.publish(fact(SUBJECT, "key.n0", "changed"))
    moved = await world.projections.GetStatus(request)
    assert moved.projection_digest not in ("", first.projection_digest)


async def test_the_digest_of_a_bus_that_moves(world: World) -> None:
    """Events start a digest again; a bus that never rests gets none, but an error that says so, and its writes do not wait."""
    await publish(world, FACTS)
    sequencer = await world.buses.open("")
    digests = ProjectionDigests()

    async def read() -> tuple[Head, str]:
        digest = await digests.read(sequencer, "caller")
        return sequencer.head, digest

    expected = {sequencer.head: (await sequencer.settled_state()).digest()}
    reading = asyncio.create_task(read())
    await asyncio.sleep(0)
    await world.publish(fact(SUBJECT, "key.n0", "changed"))
    expected[sequencer.head] = (await sequencer.settled_state()).digest()
    head, digest = await reading
    assert expected[head] == digest

    async def write() -> None:
        while True:
            envelope = fact(SUBJECT, "key.n0", "changed")
            admit(envelope, sequencer.bus, frozenset({"fact"}))
            await sequencer.execute(PublishEvent(envelope))

    writing = asyncio.create_task(write())
    await sequencer.wait_beyond(sequencer.head.sequence_number)
    with pytest.raises(ServiceError, match="changed while the digest"):
        await digests.read(sequencer, "caller")
    writing.cancel()


async def test_a_trace_with_many_tool_calls(world: World) -> None:
    """All calls of a long trace are paired, in a thread of their own."""
    calls = [tool_call("long", execution_id=f"exec_{number:012x}") for number in range(2_000)]
    for first in range(0, len(calls), 500):
        await world.events.BatchPublishEvents(BatchPublishEventsRequest(envelopes=calls[first : first + 500]))
    trace = await world.events.GetTrace(GetTraceRequest(trace_id="long"))
    assert (2_000, 2_000) == (len(trace.envelopes), len(trace.pairs))


async def test_few_reads_of_wide_subjects_at_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of subjects with more than NARROW_ITEMS_MAX keys, two pages are read at once, one for each address; all callers get theirs."""
    await publish(world, NARROW_ITEMS_MAX + 1)
    await world.publish(fact("order/2", "order.status", "paid"))
    running: list[tuple[str, str]] = []
    snapshots: list[list[tuple[str, str]]] = []
    read = projection_service._projection

    async def noted(sequencer: Sequencer, subject: str, page: Page, after: Place, caller: str) -> GetProjectionResponse:
        running.append((subject, caller.rsplit(":", 1)[0]))
        snapshots.append(list(running))
        await asyncio.sleep(0)  # as a read of a large page does
        try:
            return await read(sequencer, subject, page, after, caller)
        finally:
            running.remove((subject, caller.rsplit(":", 1)[0]))

    monkeypatch.setattr(projection_service, "_projection", noted)
    servicer = ProjectionServicer(world.buses, Supervisor(), Quotas(QuotaLimits()))
    peers = [f"ipv4:10.0.0.{address}:{port}" for address in range(4) for port in range(1, 5)]
    narrow = [project(world, servicer, peer, "order/2") for peer in peers]

    pages = await asyncio.gather(*(project(world, servicer, peer) for peer in peers), *narrow)

    assert [NARROW_ITEMS_MAX + 1] * 16 + [1] * 16 == [len(page.projection.facts) for page in pages]
    wide = [[address for subject, address in reads if subject == SUBJECT] for reads in snapshots]
    assert all(len(addresses) == len(set(addresses)) for addresses in wide)
    assert 2 == max(map(len, wide))
    assert 2 < max(map(len, snapshots))
