"""`gavel signal`: records a request from outside as a fact (constitution §9.1).

The fact may then wake an agent.
"""

from __future__ import annotations

import json
from typing import Annotated, Final

import typer

from gavel_server.cli.commands.submissions.publish import publish_envelope
from gavel_server.cli.errors import InvalidInputError
from gavel_server.cli.options import BUS_DEFAULT, SERVER_DEFAULT, Bus, Debug, Json, Server

USER_INTENT: Final = "UserIntentDetected"
EXTERNAL_SIGNAL: Final = "ExternalSignalReceived"


def signal(
    subject: Annotated[str, typer.Argument(metavar="SUBJECT", help='The fact\'s subject, "type/id", e.g. order/7.')],
    key: Annotated[str, typer.Argument(metavar="KEY", help="The fact's key, e.g. order.complaint.")],
    value: Annotated[str, typer.Argument(metavar="VALUE", help="The fact's value in JSON; anything else is taken as text.")],
    user: Annotated[
        bool, typer.Option("--user", help=f"Record the request of a person ({USER_INTENT}), not of a system ({EXTERNAL_SIGNAL}).")
    ] = False,
    source: Annotated[str, typer.Option("--source", metavar="ID", help="The gateway's stable name in the log.")] = "gateway",
    trace: Annotated[str, typer.Option("--trace", metavar="TRACE_ID", help="The trace that the fact belongs to. Default: a new one.")] = "",
    event_id: Annotated[
        str, typer.Option("--event-id", metavar="UUID", help="The idempotency key: repeating the call with it adds nothing.")
    ] = "",
    server: Server = SERVER_DEFAULT,
    bus: Bus = BUS_DEFAULT,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Record a request from outside as the fact that starts a trace."""
    from gavel.v1.common_pb2 import PRODUCER_TYPE_API, PRODUCER_TYPE_SYSTEM, Producer
    from gavel.v1.fact_pb2 import OBSERVED_FROM_HUMAN_INPUT, OBSERVED_FROM_WEBHOOK
    from gavel_client import fact_envelope

    try:
        envelope = fact_envelope(
            subject,
            Producer(type=PRODUCER_TYPE_SYSTEM if user else PRODUCER_TYPE_API, id=source),
            key=key,
            value=_parse_value(value),
            observed_from=OBSERVED_FROM_HUMAN_INPUT if user else OBSERVED_FROM_WEBHOOK,
            event_name=USER_INTENT if user else EXTERNAL_SIGNAL,
            trace_id=trace,
            event_id=event_id,
        )
    except (ValueError, TypeError) as error:
        raise InvalidInputError(f"VALUE cannot be sent: {error}") from error
    publish_envelope(envelope, server, bus, as_json=as_json)


def _parse_value(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
