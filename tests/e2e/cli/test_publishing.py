"""`gavel publish` and `gavel signal` against a real server."""

from __future__ import annotations

import json
import uuid

from gavel_client import fact_envelope

from tests.e2e.cli.programs import as_text, gavel
from tests.e2e.world import DEPOT, Server


def test_publish(shop: Server, bus: str) -> None:
    """An event from a document is recorded once, however often it is sent, and printed as recorded."""
    envelope = as_text(fact_envelope(f"parcel/{bus}", DEPOT, key="parcel.status", value="ready", event_name="ParcelPacked"))
    result = gavel("publish", "-", "--bus", bus, server=shop, text=envelope)
    assert (0, "") == (result.returncode, result.stderr)
    lines = [line.split() for line in result.stdout.splitlines()]
    assert ["name", "ParcelPacked"] in lines
    assert ["subject", f"parcel/{bus}"] in lines
    repetition = json.loads(gavel("publish", "-", "--bus", bus, "--json=snake", server=shop, text=envelope).stdout)["envelope"]
    assert f"{repetition['event_id']} (event {repetition['sequence_number']})" in result.stdout


def test_invalid_event(shop: Server) -> None:
    """An invalid event is exit status 2, with the field."""
    envelope = fact_envelope("parcel", DEPOT, key="Parcel Status", value=1)
    result = gavel("publish", "-", server=shop, text=as_text(envelope))
    assert (2, "") == (result.returncode, result.stdout)
    assert "subject" in result.stderr


def test_signal(shop: Server, bus: str) -> None:
    """Requests of a person and of a system become facts with different names and channels; a repeated event_id adds nothing."""
    event_id = str(uuid.uuid4())
    arguments = ["order/7", "order.complaint", '{"text": "broken"}', "--user", "--source", "chat", "--trace", "t-1", "--event-id", event_id]
    first, repetition = (
        json.loads(gavel("signal", *arguments, "--bus", bus, "--json=snake", server=shop).stdout)["envelope"] for _ in range(2)
    )
    assert first == repetition
    assert ("UserIntentDetected", "t-1", "PRODUCER_TYPE_SYSTEM", "chat") == (
        first["event_name"],
        first["trace_id"],
        first["producer"]["type"],
        first["producer"]["id"],
    )
    assert ("OBSERVED_FROM_HUMAN_INPUT", {"text": "broken"}) == (first["fact"]["observed_from"], first["fact"]["value"])
    request = json.loads(gavel("signal", "order/7", "order.parcel", "lost", "--bus", bus, "--json=snake", server=shop).stdout)["envelope"]
    assert ("ExternalSignalReceived", "OBSERVED_FROM_WEBHOOK", "lost") == (
        request["event_name"],
        request["fact"]["observed_from"],
        request["fact"]["value"],
    )


def test_inexact_value(shop: Server) -> None:
    """A number that would be rounded is exit status 2, and nothing is sent."""
    result = gavel("signal", "order/7", "order.number", str(2**60), server=shop)
    assert (2, "") == (result.returncode, result.stdout)
    assert "2^53" in result.stderr
