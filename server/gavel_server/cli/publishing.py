"""`gavel publish` and `gavel signal`: events from outside, as gateways and adapters record them (seeds 002 §9.1).

Nothing starts by itself in a governed system: a request from outside becomes a fact first, and the fact wakes an agent. `signal`
makes the two facts by which that begins, `publish` records any event that the contract takes.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Final

import typer

from gavel_server.cli.options import BUS_DEFAULT, SERVER_DEFAULT, Bus, Debug, Json, Server, connected

if TYPE_CHECKING:
    from gavel.v1.envelope_pb2 import Envelope

USER_INTENT: Final = "UserIntentDetected"
EXTERNAL_SIGNAL: Final = "ExternalSignalReceived"


def publish(
    file: Annotated[str, typer.Argument(metavar="FILE", help="An Envelope in protobuf JSON or YAML; - is standard input.")],
    server: Server = SERVER_DEFAULT,
    bus: Bus = BUS_DEFAULT,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Record a fact, an observation, a tool event or a diagnostic, and print it as it stands in the log."""
    from gavel_server.cli import documents

    _record(documents.read_envelope(file), server, bus, as_json)


def signal(
    subject: Annotated[str, typer.Argument(metavar="SUBJECT", help='What it is about, "type/id", e.g. order/7.')],
    key: Annotated[str, typer.Argument(metavar="KEY", help="The fact's key, e.g. order.complaint.")],
    value: Annotated[str, typer.Argument(metavar="VALUE", help="The fact's value in JSON; what is no JSON is taken as text.")],
    user: Annotated[
        bool, typer.Option("--user", help=f"A person asks, through a gateway: {USER_INTENT}. Otherwise a system calls: {EXTERNAL_SIGNAL}.")
    ] = False,
    source: Annotated[str, typer.Option("--source", metavar="ID", help="The gateway's stable name in the log.")] = "gateway",
    trace: Annotated[str, typer.Option("--trace", metavar="TRACE_ID", help="The piece of work it belongs to. Default: a new one.")] = "",
    event_id: Annotated[
        str, typer.Option("--event-id", metavar="UUID", help="The idempotency key: the same call again adds nothing.")
    ] = "",
    server: Server = SERVER_DEFAULT,
    bus: Bus = BUS_DEFAULT,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Record a request from outside as the fact that begins a piece of work."""
    from gavel.v1.common_pb2 import PRODUCER_TYPE_API, PRODUCER_TYPE_SYSTEM, Producer
    from gavel.v1.fact_pb2 import OBSERVED_FROM_HUMAN_INPUT, OBSERVED_FROM_WEBHOOK
    from gavel_client import fact_envelope

    from gavel_server.cli.errors import InvalidInputError

    try:
        envelope = fact_envelope(
            subject,
            Producer(type=PRODUCER_TYPE_SYSTEM if user else PRODUCER_TYPE_API, id=source),
            key=key,
            value=_value(value),
            observed_from=OBSERVED_FROM_HUMAN_INPUT if user else OBSERVED_FROM_WEBHOOK,
            event_name=USER_INTENT if user else EXTERNAL_SIGNAL,
            trace_id=trace,
            event_id=event_id,
        )
    except (ValueError, TypeError) as error:
        raise InvalidInputError(f"VALUE cannot be sent: {error}") from error
    _record(envelope, server, bus, as_json)


def _value(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _record(envelope: Envelope, server: str, bus: str, as_json: bool) -> None:
    from gavel_server.cli import output
    from gavel_server.cli.describe import describe, printable, producer_name

    with connected(server, bus) as client:
        response = client.publish_event(envelope)
    if as_json:
        output.print_json(response)
        return
    recorded = response.envelope
    output.print_fields(
        [
            ("event", f"{recorded.event_id} (event {recorded.sequence_number})"),
            ("name", recorded.event_name),
            ("says", describe(recorded)),
            ("subject", printable(recorded.subject)),
            ("producer", producer_name(recorded)),
            ("trace", printable(recorded.trace_id)),
        ]
    )
