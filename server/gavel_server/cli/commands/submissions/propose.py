"""`gavel propose`: submits a proposal from a document and prints its decision."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from gavel_server.cli.connection import connect
from gavel_server.cli.errors import CommandError
from gavel_server.cli.options import BUS_DEFAULT, SERVER_DEFAULT, WAIT_SECONDS_MAX, Bus, Debug, EnvelopeFile, ExitCode, Json, Server

if TYPE_CHECKING:
    from gavel.v1.arbitration_service_pb2 import SubmitProposalResponse
    from gavel.v1.envelope_pb2 import Envelope
    from gavel_client import SyncGavelClient


def propose(
    file: EnvelopeFile,
    wait_seconds: Annotated[
        float,
        typer.Option(
            "--wait",
            metavar="SECONDS",
            min=0.1,
            max=WAIT_SECONDS_MAX,
            help="How long to wait for the decision. A contest decides when it closes.",
        ),
    ] = 30.0,
    exit_code: ExitCode = False,
    server: Server = SERVER_DEFAULT,
    bus: Bus = BUS_DEFAULT,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Submit a proposal and print its decision.

    A decision is an answer, so the exit status is 0 whatever its outcome. With --exit-code it is 0 only for an approval, 10 if the
    proposal is rejected, and 11 if it needs human review.
    """
    from gavel.v1.decision_pb2 import OUTCOME_NEEDS_HUMAN_REVIEW

    from gavel_server.cli import documents
    from gavel_server.cli.rendering import output
    from gavel_server.cli.rendering.decision import exit_status, print_decision

    envelope = documents.read_envelope(file)
    with connect(server, bus) as client:
        response = _submit(client, envelope, wait_seconds)
    envelope = response.decision
    decision = envelope.decision
    if as_json:
        output.print_json(response)
    else:
        rows = [("decision", f"{decision.decision_id} (event {envelope.sequence_number})")]
        if decision.outcome == OUTCOME_NEEDS_HUMAN_REVIEW:
            rows.append(("waits for", "a person; gavel reviews lists it"))
        print_decision(decision, rows)
    if exit_code:
        raise typer.Exit(exit_status(decision))


def _submit(client: SyncGavelClient, envelope: Envelope, wait_seconds: float) -> SubmitProposalResponse:
    """Submit the proposal under an event_id that the message can name if no decision comes in time."""
    import grpc
    from gavel_client import GavelError, new_event_id

    envelope.event_id = envelope.event_id or new_event_id()
    try:
        return client.submit_proposal(envelope, timeout_ms=int(wait_seconds * 1000))
    except GavelError as error:
        if error.code is not grpc.StatusCode.DEADLINE_EXCEEDED:
            raise
        raise CommandError(
            f"no decision within {wait_seconds:g} s; a proposal in a contest is decided when the contest closes: submit it again "
            f"with event_id {envelope.event_id} and a longer --wait, or look at `gavel status`"
        ) from error
