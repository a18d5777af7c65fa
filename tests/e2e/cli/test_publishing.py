"""`gavel publish` and `gavel signal` against a real server: how work gets into the log from outside."""

from __future__ import annotations

import json
import uuid

from gavel_client import fact_envelope

from tests.e2e.cli.programs import as_text, gavel
from tests.e2e.world import DEPOT, Server


def test_publish(shop: Server, bus: str) -> None:
    """An event from a document is recorded once, however often the document is sent, and shown as recorded."""
    envelope = as_text(fact_envelope(f"parcel/{bus}", DEPOT, key="parcel.status", value="ready", event_name="ParcelPacked"))
    done = gavel("publish", "-", "--bus", bus, server=shop, text=envelope)
    assert (0, "") == (done.returncode, done.stderr)
    lines = [line.split() for line in done.stdout.splitlines()]
    assert ["name", "ParcelPacked"] in lines
    assert ["subject", f"parcel/{bus}"] in lines
    again = json.loads(gavel("publish", "-", "--bus", bus, "--json", server=shop, text=envelope).stdout)["envelope"]
    assert f"{again['event_id']} (event {again['sequence_number']})" in done.stdout


def test_publish_what_is_invalid(shop: Server) -> None:
    """What the contract does not allow is exit status 2, with what is wrong."""
    envelope = fact_envelope("parcel", DEPOT, key="Parcel Status", value=1)
    done = gavel("publish", "-", server=shop, text=as_text(envelope))
    assert (2, "") == (done.returncode, done.stdout)
    assert "subject" in done.stderr


def test_a_person_and_a_system_begin_work(shop: Server, bus: str) -> None:
    """A person's request and a system's call become facts of their own names and channels; the same id adds nothing."""
    event_id = str(uuid.uuid4())
    arguments = ["order/7", "order.complaint", '{"text": "broken"}', "--user", "--source", "chat", "--trace", "t-1", "--event-id", event_id]
    first, again = (json.loads(gavel("signal", *arguments, "--bus", bus, "--json", server=shop).stdout)["envelope"] for _ in range(2))
    assert first == again
    assert ("UserIntentDetected", "t-1", "PRODUCER_TYPE_SYSTEM", "chat") == (
        first["event_name"],
        first["trace_id"],
        first["producer"]["type"],
        first["producer"]["id"],
    )
    assert ("OBSERVED_FROM_HUMAN_INPUT", {"text": "broken"}) == (first["fact"]["observed_from"], first["fact"]["value"])
    called = json.loads(gavel("signal", "order/7", "order.parcel", "lost", "--bus", bus, "--json", server=shop).stdout)["envelope"]
    assert ("ExternalSignalReceived", "OBSERVED_FROM_WEBHOOK", "lost") == (
        called["event_name"],
        called["fact"]["observed_from"],
        called["fact"]["value"],
    )


def test_a_value_that_cannot_be_sent(shop: Server) -> None:
    """A number that would be rounded is refused before anything is sent."""
    done = gavel("signal", "order/7", "order.number", str(2**60), server=shop)
    assert (2, "") == (done.returncode, done.stdout)
    assert "2^53" in done.stderr
