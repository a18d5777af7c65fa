"""Waking an agent against a real server: what fires, what is recorded of it, and where a restart goes on (seeds 002 §9.1)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from gavel.v1.common_pb2 import EVENT_CATEGORY_AGENT_DIAGNOSTIC_EVENT, EVENT_CATEGORY_FACT_EVENT
from gavel.v1.envelope_pb2 import Envelope
from gavel_client import Firing, GavelClient, PositionFile, Trigger, TriggerSubscription, fact_envelope, trigger_subscription
from gavel_client.values import from_struct

from tests.integration.services.world import AGENT, ORDERS, World

ORDERS_CREATED = Trigger("orders", frozenset({EVENT_CATEGORY_FACT_EVENT}), ("OrderCreated",), ("order/*",))


class Woken:
    """What an agent was woken for; `wanted` wakings end the subscription, and `failing` ones raise."""

    def __init__(self, wanted: int, failing: bool = False) -> None:
        self.firings: list[tuple[str, list[int]]] = []
        self._wanted = wanted
        self._failing = failing
        self.subscription: TriggerSubscription | None = None

    async def __call__(self, firing: Firing) -> None:
        """Note it."""
        if self._failing:
            raise ZeroDivisionError
        self.firings.append((firing.trigger.name, [event.sequence_number for event in firing.events]))
        if len(self.firings) == self._wanted and self.subscription is not None:
            self.subscription.stop()


def subscription(client: GavelClient, triggers: Sequence[Trigger], woken: Woken, file: Path) -> TriggerSubscription:
    """Return a subscription of the agent that ends after what `woken` wants."""
    woken.subscription = TriggerSubscription(client, triggers, woken, producer=AGENT, position=PositionFile(file))
    return woken.subscription


async def create(client: GavelClient, subject: str, name: str = "OrderCreated") -> Envelope:
    """Record that an order was created."""
    fact = fact_envelope(subject, ORDERS, key="order.status", value="new", event_name=name)
    return (await client.publish_event(fact)).envelope


async def recorded(client: GavelClient) -> list[Envelope]:
    """Return the diagnostics of firings."""
    listed = await client.list_events(categories=[EVENT_CATEGORY_AGENT_DIAGNOSTIC_EVENT])
    return [event for event in listed.envelopes if event.agent_diagnostic.kind == "TriggerFired"]


@pytest.fixture
async def client(world: World) -> GavelClient:
    """A client of a server."""
    return GavelClient(world.channel)


async def test_what_matches_wakes_the_agent_and_is_recorded(client: GavelClient, tmp_path: Path) -> None:
    """Only what passes the filters fires; the diagnostic stands in the log, in the trace of what caused it."""
    woken = Woken(2)
    running = asyncio.create_task(subscription(client, [ORDERS_CREATED], woken, tmp_path / "p").run())
    await create(client, "parcel/1")
    await create(client, "order/1", "OrderPaid")
    created = [await create(client, f"order/{number}") for number in (1, 2)]
    await running
    assert [("orders", [event.sequence_number]) for event in created] == woken.firings
    fired = await recorded(client)
    assert [(event.event_id, event.trace_id) for event in created] == [(event.causation_id, event.trace_id) for event in fired]
    assert {
        "trigger": "orders",
        "priority": 0,
        "window_ms": 0,
        "first_sequence_number": created[0].sequence_number,
        "last_sequence_number": created[0].sequence_number,
        "event_count": 1,
        "event_ids": [created[0].event_id],
    } == from_struct(fired[0].agent_diagnostic.attributes)
    assert [f"agent/{AGENT.id}"] * 2 == [event.subject for event in fired]


async def test_history_is_gathered_by_windows_and_answered_by_priority(
    client: GavelClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What lies in the log already is gathered like what comes; the more urgent trigger is answered first."""
    created = [await create(client, f"order/{number}") for number in range(5)]
    triggers = [Trigger("all", subjects=("order/*",), window_ms=300), Trigger("last", subjects=("order/4",), window_ms=300, priority=1)]
    woken = Woken(2)
    gathering = subscription(client, triggers, woken, tmp_path / "p")
    moments = [0.0]

    def now_ms() -> float:
        """The time, which stands still until everything is gathered."""
        if gathering._windows.waiting == len(created) + 1:
            moments[0] = 1_000.0
        return moments[0]

    monkeypatch.setattr(trigger_subscription, "_now_ms", now_ms)
    await gathering.run()
    numbers = [event.sequence_number for event in created]
    assert [("last", numbers[4:]), ("all", numbers)] == woken.firings


async def test_a_restart_goes_on_where_it_was(client: GavelClient, tmp_path: Path) -> None:
    """What was answered fires no more; what came meanwhile does."""
    first = await create(client, "order/1")
    woken = Woken(1)
    await subscription(client, [ORDERS_CREATED], woken, tmp_path / "p").run()
    second = await create(client, "order/2")
    again = Woken(1)
    await subscription(client, [ORDERS_CREATED], again, tmp_path / "p").run()
    assert [[("orders", [event.sequence_number])] for event in (first, second)] == [woken.firings, again.firings]


async def test_what_was_not_answered_fires_again_and_is_recorded_once(client: GavelClient, tmp_path: Path) -> None:
    """A waking that fails ends the run and keeps its place; the same firing again adds no second diagnostic."""
    created = await create(client, "order/1")
    with pytest.raises(ZeroDivisionError):
        await subscription(client, [ORDERS_CREATED], Woken(1, failing=True), tmp_path / "p").run()
    woken = Woken(1)
    await subscription(client, [ORDERS_CREATED], woken, tmp_path / "p").run()
    assert [("orders", [created.sequence_number])] == woken.firings
    assert 1 == len(await recorded(client))


async def test_an_agent_does_not_wake_itself(client: GavelClient, tmp_path: Path) -> None:
    """A trigger for everything does not fire for the diagnostics of its own firings."""
    woken = Woken(3)
    running = asyncio.create_task(subscription(client, [Trigger("everything")], woken, tmp_path / "p").run())
    for number in (1, 2):
        await create(client, f"order/{number}")
    await running
    fired = {event.sequence_number for event in await recorded(client)}
    assert fired.isdisjoint(number for _, numbers in woken.firings for number in numbers)


async def test_a_subscription_may_begin_now(client: GavelClient, tmp_path: Path) -> None:
    """With `start=None` what happened before is for nobody."""
    await create(client, "order/1")
    woken = Woken(1)
    started = TriggerSubscription(client, [ORDERS_CREATED], woken, producer=AGENT, position=PositionFile(tmp_path / "p"), start=None)
    woken.subscription = started
    running = asyncio.create_task(started.run())
    while not (tmp_path / "p").exists():  # noqa: ASYNC110  there is no event of a file's coming
        await asyncio.sleep(0.01)
    created = await create(client, "order/2")
    await running
    assert [("orders", [created.sequence_number])] == woken.firings
