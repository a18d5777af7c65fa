"""`gavel proof`: prints a file that proves a decision to a reader who trusts only the notary's public key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from gavel_server.cli.connection import connect
from gavel_server.cli.errors import CommandError
from gavel_server.cli.event_names import read_sequence_number
from gavel_server.cli.options import BUS_DEFAULT, SERVER_DEFAULT, Bus, Debug, Server

if TYPE_CHECKING:
    from gavel.v1.envelope_pb2 import Envelope
    from gavel_client import SyncGavelClient

    from gavel_server.proofs.verifier import Proof, ProvedEvent


def proof(
    decision: Annotated[str, typer.Argument(metavar="ID_OR_NUMBER", help="The decision's id or sequence number.")],
    server: Server = SERVER_DEFAULT,
    bus: Bus = BUS_DEFAULT,
    debug: Debug = False,
) -> None:
    """Print a proof that a decision is in the log, for gavel verify.

    The proof is one file: the decision, its proposal and the facts that it rests on, as logged, and the notary's newest checkpoint,
    which must cover them. gavel verify checks it offline. A decision older than the idempotency window needs its sequence number.
    """
    from gavel_server.cli.rendering import output

    with connect(server, bus) as client:
        document = prove(client, decision)
    output.print_line(str(document).removesuffix("\n"))


def prove(client: SyncGavelClient, decision: str) -> Proof:
    """Return the proof of a decision that is named by its id or sequence number. Raises CommandError, GavelError."""
    from gavel.v1.envelope_pb2 import Envelope

    from gavel_server.proofs.verifier import NotVerifiedError, Proof, UnreadableError, check_events, parse_checkpoint

    number = read_sequence_number(decision)
    event = EventName(sequence_number=number) if number else EventName(event_id=decision)
    try:
        checkpoint = parse_checkpoint(client.get_checkpoint().checkpoint)
        decided = _prove_decision(client, checkpoint.size, event)
        envelope = Envelope.FromString(decided.envelope)
        if not envelope.HasField("decision"):
            raise CommandError(f"event {decision} is not a decision; gavel log search --category decision lists the decisions")
        events = [decided, _prove_proposal(client, checkpoint.size, envelope)]
        facts = sorted({fact.sequence_number for fact in envelope.decision.pinned_facts})
        events += (_prove(client, checkpoint.size, EventName(sequence_number=fact)) for fact in facts)
        document = Proof(envelope.event_id, tuple(events), checkpoint)
        check_events(document)
    except (NotVerifiedError, UnreadableError) as error:
        raise CommandError(f"the server's answers do not prove the decision: {error}; examine its log with gavel replay") from error
    return document


class EventName(NamedTuple):
    """The name of an event: its id, which a bus remembers for its idempotency window, or its sequence number."""

    event_id: str = ""
    sequence_number: int = 0


def _prove_decision(client: SyncGavelClient, size: int, event: EventName) -> ProvedEvent:
    """Return the decision with its proof in the tree of a checkpoint. Raises CommandError if the checkpoint does not cover it yet."""
    from gavel_client import GavelError

    try:
        return _prove(client, size, event)
    except GavelError as error:
        if error.reason != "EVENT_NOT_FOUND":
            raise
        later = _find_later(client, event)
        raise CommandError(
            f"the newest checkpoint covers {size} events, and the decision is event {later}; "
            "try again once the notary has signed a newer one (gavel notary)"
        ) from error


def _find_later(client: SyncGavelClient, event: EventName) -> int:
    """Return the sequence number of an event that a checkpoint does not cover. Raises CommandError if the bus does not know its id."""
    from gavel_client import GavelError

    try:
        return client.get_inclusion_proof(event_id=event.event_id, sequence_number=event.sequence_number).sequence_number
    except GavelError as error:
        if error.reason != "EVENT_NOT_FOUND" or not event.event_id:
            raise
        advice = "name an older decision by its sequence number, which gavel log search --category decision shows"
        raise CommandError(f"{error.message} ({error.reason}); {advice}") from error


def _prove_proposal(client: SyncGavelClient, size: int, decision: Envelope) -> ProvedEvent:
    """Return the proposal of a decision with its proof. Raises CommandError if the log does not have it.

    The first decision on a proposal usually follows it directly. The proposal of a later decision, e.g. on a review, may be older than
    the idempotency window, and is then found in its trace.
    """
    from gavel.v1.envelope_pb2 import Envelope
    from gavel_client import GavelError

    proposal_id, previous = decision.decision.proposal_id, decision.decision.state_version
    if previous:
        event = _prove(client, size, EventName(sequence_number=previous))
        if Envelope.FromString(event.envelope).event_id == proposal_id:
            return event
    try:
        return _prove(client, size, EventName(event_id=proposal_id))
    except GavelError as error:
        if error.reason != "EVENT_NOT_FOUND":
            raise
    return _prove(client, size, EventName(sequence_number=_find_in_trace(client, proposal_id, decision)))


def _find_in_trace(client: SyncGavelClient, proposal_id: str, decision: Envelope) -> int:
    """Return the sequence number of a proposal in the trace of its decision. Raises CommandError."""
    from gavel.v1.common_pb2 import EVENT_CATEGORY_PROPOSAL_EVENT
    from gavel_client.rpc.paging import sync_pages

    for page in sync_pages(
        client.list_events,
        categories=[EVENT_CATEGORY_PROPOSAL_EVENT],
        trace_id=decision.trace_id,
        to_sequence_number=decision.sequence_number,
    ):
        for envelope in page.envelopes:
            if envelope.event_id == proposal_id:
                return envelope.sequence_number
    raise CommandError(f"the log has no proposal {proposal_id}, which the decision answers; examine it with gavel replay")


def _prove(client: SyncGavelClient, size: int, event: EventName) -> ProvedEvent:
    from gavel_server.proofs.verifier import ProvedEvent

    answer = client.get_inclusion_proof(event_id=event.event_id, sequence_number=event.sequence_number, tree_size=size)
    return ProvedEvent(answer.sequence_number, answer.envelope, tuple(answer.hashes))
