"""Triggers against a real server: which events fire, what is recorded, and where a restart continues (constitution §9.1)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from gavel.v1.common_pb2 import EVENT_CATEGORY_AGENT_DIAGNOSTIC_EVENT, EVENT_CATEGORY_FACT_EVENT
from gavel.v1.envelope_pb2 import Envelope
from gavel_client import Firing, GavelClient, PositionFile, Trigger, TriggerSubscription, fact_envelope
from gavel_client.agents import trigger_subscription
from gavel_client.values import from_struct
from gavel_rules.limits import IDEMPOTENCY_WINDOW_MS_DEFAULT

from tests.integration.services.world import AGENT, ORDERS, World

DAY_MS = 24 * 60 * 60 * 1_000
ORDERS_CREATED = Trigger("orders", frozenset({EVENT_CATEGORY_FACT_EVENT}), ("OrderCreated",), ("order/*",))


class RecordingAgent:
    """An agent that records its firings and stops after `firings_max` of them; a failing one raises."""

    def __init__(self, firings_max: int, failing: bool = False) -> None:
        self.firings: list[tuple[str, list[int]]] = []
        self._firings_max = firings_max
        self._failing = failing
        self.subscription: TriggerSubscription | None = None

    async def __call__(self, firing: Firing) -> None:
        """Record the firing, or raise."""
        if self._failing:
            raise ZeroDivisionError
        self.firings.append((firing.trigger.name, [event.sequence_number for event in firing.events]))
        if len(self.firings) == self._firings_max and self.subscription is not None:
            self.subscription.stop()


def subscription(client: GavelClient, triggers: Sequence[Trigger], agent: RecordingAgent, file: Path) -> TriggerSubscription:
    """Return a subscription that wakes the agent and that the agent stops."""
    agent.subscription = TriggerSubscription(client, triggers, agent, producer=AGENT, position=PositionFile(file))
    return agent.subscription


async def create(client: GavelClient, subject: str, name: str = "OrderCreated") -> Envelope:
    """Record that an order was created."""
    fact = fact_envelope(subject, ORDERS, key="order.status", value="new", event_name=name)
    return (await client.publish_event(fact)).envelope


async def firing_diagnostics(client: GavelClient) -> list[Envelope]:
    """Return the diagnostics of firings."""
    page = await client.list_events(categories=[EVENT_CATEGORY_AGENT_DIAGNOSTIC_EVENT])
    return [event for event in page.envelopes if event.agent_diagnostic.kind == "TriggerFired"]


@pytest.fixture
async def client(world: World) -> GavelClient:
    """A client of a server."""
    return GavelClient(world.channel)


async def test_matching_events_wake_the_agent_and_are_recorded(client: GavelClient, tmp_path: Path) -> None:
    """Only events that pass the filters fire; the diagnostic is recorded in the trace of its cause."""
    agent = RecordingAgent(2)
    running = asyncio.create_task(subscription(client, [ORDERS_CREATED], agent, tmp_path / "p").run())
    await create(client, "parcel/1")
    await create(client, "order/1", "OrderPaid")
    created = [await create(client, f"order/{number}") for number in (1, 2)]
    await running
    assert [("orders", [event.sequence_number]) for event in created] == agent.firings
    fired = await firing_diagnostics(client)
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


async def test_past_events_fire_by_window_and_priority(client: GavelClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Events that are already in the log join windows like new ones; the trigger with the higher priority fires first."""
    created = [await create(client, f"order/{number}") for number in range(5)]
    triggers = [Trigger("all", subjects=("order/*",), window_ms=300), Trigger("last", subjects=("order/4",), window_ms=300, priority=1)]
    agent = RecordingAgent(2)
    gathering = subscription(client, triggers, agent, tmp_path / "p")
    moments = [0.0]

    def now_ms() -> float:
        """Return a time that stands still until all events are in the windows."""
        if gathering._windows.event_count == len(created) + 1:
            moments[0] = 1_000.0
        return moments[0]

    monkeypatch.setattr(trigger_subscription, "_now_ms", now_ms)
    await gathering.run()
    numbers = [event.sequence_number for event in created]
    assert [("last", numbers[4:]), ("all", numbers)] == agent.firings


async def test_restart_resumes_at_the_stored_position(client: GavelClient, tmp_path: Path) -> None:
    """A handled event does not fire again after a restart; an event recorded in between does."""
    first = await create(client, "order/1")
    agent = RecordingAgent(1)
    await subscription(client, [ORDERS_CREATED], agent, tmp_path / "p").run()
    second = await create(client, "order/2")
    successor = RecordingAgent(1)
    await subscription(client, [ORDERS_CREATED], successor, tmp_path / "p").run()
    assert [[("orders", [event.sequence_number])] for event in (first, second)] == [agent.firings, successor.firings]


async def test_failed_firing_is_repeated_and_recorded_once(client: GavelClient, tmp_path: Path) -> None:
    """A failed waking ends the run without advancing the position; repeating the firing adds no second diagnostic."""
    created = await create(client, "order/1")
    with pytest.raises(ZeroDivisionError):
        await subscription(client, [ORDERS_CREATED], RecordingAgent(1, failing=True), tmp_path / "p").run()
    agent = RecordingAgent(1)
    await subscription(client, [ORDERS_CREATED], agent, tmp_path / "p").run()
    assert [("orders", [created.sequence_number])] == agent.firings
    assert 1 == len(await firing_diagnostics(client))


async def test_events_older_than_the_idempotency_window(world: World, client: GavelClient, tmp_path: Path) -> None:
    """An event older than the idempotency window wakes the agent; its firing is recorded once, without a cause, even if repeated."""
    created = await create(client, "order/1")
    world.clock.now_ms += IDEMPOTENCY_WINDOW_MS_DEFAULT + DAY_MS
    (await world.buses.open("")).recent_events._locations.clear()
    with pytest.raises(ZeroDivisionError):
        await subscription(client, [ORDERS_CREATED], RecordingAgent(1, failing=True), tmp_path / "positions").run()
    agent = RecordingAgent(1)
    await subscription(client, [ORDERS_CREATED], agent, tmp_path / "positions").run()
    assert [("orders", [created.sequence_number])] == agent.firings
    (diagnostic,) = await firing_diagnostics(client)
    assert ("", created.trace_id) == (diagnostic.causation_id, diagnostic.trace_id)


async def test_an_agent_does_not_wake_itself(client: GavelClient, tmp_path: Path) -> None:
    """A trigger for everything does not fire for the diagnostics of its own firings."""
    agent = RecordingAgent(3)
    running = asyncio.create_task(subscription(client, [Trigger("everything")], agent, tmp_path / "p").run())
    for number in (1, 2):
        await create(client, f"order/{number}")
    await running
    fired = {event.sequence_number for event in await firing_diagnostics(client)}
    assert fired.isdisjoint(number for _, numbers in agent.firings for number in numbers)


async def test_subscription_from_now(client: GavelClient, tmp_path: Path) -> None:
    """With `start=None` earlier events do not fire."""
    await create(client, "order/1")
    agent = RecordingAgent(1)
    trigger_subscription = TriggerSubscription(
        client, [ORDERS_CREATED], agent, producer=AGENT, position=PositionFile(tmp_path / "p"), start=None
    )
    agent.subscription = trigger_subscription
    running = asyncio.create_task(trigger_subscription.run())
    while not (tmp_path / "p").exists():  # noqa: ASYNC110  # the creation of a file sets no event
        await asyncio.sleep(0.01)
    created = await create(client, "order/2")
    await running
    assert [("orders", [created.sequence_number])] == agent.firings
