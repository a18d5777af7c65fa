"""The event_ids of runs."""

from __future__ import annotations

from gavel.v1.common_pb2 import PRODUCER_TYPE_AGENT, PRODUCER_TYPE_API, Producer
from gavel_client.agents.run_ids import first_event_id


def test_producers_have_separate_keys() -> None:
    """Runs of two producers, or with two keys, never have one event_id, whatever separators ids and keys contain."""
    runs = [
        (Producer(type=producer_type, id=producer_id), key)
        for producer_type in (PRODUCER_TYPE_AGENT, PRODUCER_TYPE_API)
        for producer_id, key in (("a", "b/c"), ("a/b", "c"), ("a", "b,c"), ("a", 'b", "c'), ("a", "c"))
    ]
    ids = {first_event_id(producer, key) for producer, key in runs}
    assert len(runs) == len(ids)
    assert ids == {first_event_id(producer, key) for producer, key in runs}
