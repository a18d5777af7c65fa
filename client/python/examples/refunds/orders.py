"""The order system of the example: the one process that states what an order is.

    python client/python/examples/refunds/orders.py --server 127.0.0.1:9090 --token-file orders-db.token

It watches the log for decisions that lack facts of the order database, and publishes them. Its credentials alone may publish as
`orders-db` (see grants.yaml).
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from contextlib import suppress
from typing import Final

from gavel.v1.common_pb2 import EVENT_CATEGORY_DECISION_EVENT, PRODUCER_TYPE_DATABASE_SNAPSHOT, Producer
from gavel.v1.decision_pb2 import OUTCOME_REJECTED
from gavel.v1.envelope_pb2 import Envelope
from gavel_client import GavelClient, TokenFile, fact_envelope

ORDERS: Final = Producer(type=PRODUCER_TYPE_DATABASE_SNAPSHOT, id="orders-db")
# Stands for the row of every order in the database.
ROW: Final = {"order.status": "delivered", "order.total": 80, "order.customer_id": "c-77"}


async def publish_missing(client: GavelClient, rejection: Envelope) -> None:
    """Publish the facts of the order database that a decision lacks, in its trace."""
    for row in rejection.decision.retry_hint.fact_requirements:
        if ORDERS.id in row.sources and row.key in ROW:
            fact = fact_envelope(
                row.subject, ORDERS, key=row.key, value=ROW[row.key], trace_id=rejection.trace_id, causation_id=rejection.event_id
            )
            await client.publish_event(fact)


async def run(server: str, bus: str, token_file: str) -> None:
    """Answer the rejections from now on."""
    async with GavelClient(server, bus=bus, credentials=TokenFile(token_file)) as client:
        first = (await client.get_status()).head_sequence_number + 1
        print(f"orders: watching from event {first}", flush=True)
        async for response in client.subscribe_events(
            from_sequence_number=first, categories=[EVENT_CATEGORY_DECISION_EVENT], outcomes=[OUTCOME_REJECTED]
        ):
            if response.HasField("envelope"):
                await publish_missing(client, response.envelope)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="The order system of the example.")
    parser.add_argument("--server", default="127.0.0.1:9090", help="HOST:PORT of a Gavel server")
    parser.add_argument("--bus", default="", help="the bus")
    parser.add_argument("--token-file", required=True, help="the file of the token of orders-db")
    settings = parser.parse_args()
    with suppress(KeyboardInterrupt):
        sys.exit(asyncio.run(run(settings.server, settings.bus, settings.token_file)))
