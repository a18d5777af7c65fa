"""`gavel publish`: records an event from outside, as gateways and adapters do (constitution §9.1)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gavel_server.cli.connection import connect
from gavel_server.cli.options import BUS_DEFAULT, SERVER_DEFAULT, Bus, Debug, EnvelopeFile, Json, Server

if TYPE_CHECKING:
    from gavel.v1.envelope_pb2 import Envelope


def publish(
    file: EnvelopeFile,
    server: Server = SERVER_DEFAULT,
    bus: Bus = BUS_DEFAULT,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Record an event from outside and print it.

    The event is a fact, an observation, a tool call or result, or a diagnostic.
    """
    from gavel_server.cli import documents

    publish_envelope(documents.read_envelope(file), server, bus, as_json=as_json)


def publish_envelope(envelope: Envelope, server: str, bus: str, *, as_json: bool) -> None:
    """Publish an event and print it as recorded. Raises CommandError."""
    from gavel_rules.text import printable

    from gavel_server.cli.rendering import output
    from gavel_server.cli.rendering.events import describe, producer_name

    with connect(server, bus) as client:
        response = client.publish_event(envelope)
    if as_json:
        output.print_json(response)
        return
    recorded = response.envelope
    output.print_fields(
        [
            ("event", f"{recorded.event_id} (event {recorded.sequence_number})"),
            ("name", recorded.event_name),
            ("content", describe(recorded, beside_name=True)),
            ("subject", printable(recorded.subject)),
            ("producer", producer_name(recorded)),
            ("trace", printable(recorded.trace_id)),
        ]
    )
