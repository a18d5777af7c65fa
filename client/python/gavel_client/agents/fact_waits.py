"""Waits for the facts of a trusted channel, which watches the log and publishes the facts that decisions lack under its own identity."""

from __future__ import annotations

from contextlib import aclosing

from gavel.v1.common_pb2 import EVENT_CATEGORY_FACT_EVENT
from gavel.v1.envelope_pb2 import Envelope

from gavel_client.agents.providers import FactNeed
from gavel_client.rpc.client import GavelClient


async def wait_for_facts(client: GavelClient, need: FactNeed) -> list[Envelope]:
    """Return the newest facts for the keys of `need`, as soon as all of them have been published after the rejection.

    For providers of facts: `FactProviders.facts` limits the time. The caller needs the rights `read` and `subscribe`.
    """
    rejection = (await client.get_event(event_id=need.causation_id)).envelope
    sources = {row.key: row.sources for row in need.rows}
    newest: dict[str, Envelope] = {}
    stream = client.subscribe_events(
        from_sequence_number=rejection.sequence_number + 1, categories=[EVENT_CATEGORY_FACT_EVENT], subject_prefix=need.subject
    )
    async with aclosing(stream):
        async for response in stream:
            event, key = response.envelope, response.envelope.fact.key
            if event.subject == need.subject and key in sources and (not sources[key] or event.producer.id in sources[key]):
                newest[key] = event
            if len(newest) == len(sources):
                break
    return list(newest.values())
