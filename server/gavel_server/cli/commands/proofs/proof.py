"""`gavel proof`: prints a file that proves a decision to a reader who trusts only the notary's public key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from gavel_server.cli.connection import connect
from gavel_server.cli.errors import CommandError
from gavel_server.cli.event_names import find_decision_id
from gavel_server.cli.options import BUS_DEFAULT, SERVER_DEFAULT, Bus, Debug, Server

if TYPE_CHECKING:
    from gavel_client import SyncGavelClient

    from gavel_server.proofs.verifier import ProvedEvent


def proof(
    decision: Annotated[str, typer.Argument(metavar="ID_OR_NUMBER", help="The decision's id or sequence number.")],
    server: Server = SERVER_DEFAULT,
    bus: Bus = BUS_DEFAULT,
    debug: Debug = False,
) -> None:
    """Print a proof that a decision is in the log, for gavel verify.

    The proof is one file: the decision, its proposal and the facts that it rests on, as logged, and the notary's newest checkpoint,
    which must cover them. gavel verify checks it offline.
    """
    from gavel.v1.envelope_pb2 import Envelope

    from gavel_server.cli.rendering import output
    from gavel_server.proofs.verifier import NotVerifiedError, Proof, UnreadableError, check_events, parse_checkpoint

    try:
        with connect(server, bus) as client:
            decision_id = find_decision_id(client, decision)
            answer = client.get_checkpoint()
            checkpoint = parse_checkpoint(answer.checkpoint)
            decided = _prove_decision(client, checkpoint.size, decision_id)
            envelope = Envelope.FromString(decided.envelope)
            if not envelope.HasField("decision"):
                raise CommandError(f"event {decision_id} is not a decision; gavel log search --category decision lists the decisions")
            events = [decided, _prove(client, checkpoint.size, event_id=envelope.decision.proposal_id)]
            facts = sorted({fact.sequence_number for fact in envelope.decision.pinned_facts})
            events += (_prove(client, checkpoint.size, sequence_number=number) for number in facts)
        document = Proof(decision_id, tuple(events), checkpoint)
        check_events(document)
    except (NotVerifiedError, UnreadableError) as error:
        raise CommandError(f"the server's answers do not prove the decision: {error}; examine its log with gavel replay") from error
    output.print_line(str(document).removesuffix("\n"))


def _prove_decision(client: SyncGavelClient, size: int, decision_id: str) -> ProvedEvent:
    """Return the decision with its proof in the tree of a checkpoint. Raises CommandError if the checkpoint does not cover it yet."""
    from gavel_client import GavelError

    try:
        return _prove(client, size, event_id=decision_id)
    except GavelError as error:
        if error.reason != "EVENT_NOT_FOUND":
            raise
        later = client.get_inclusion_proof(event_id=decision_id)
        raise CommandError(
            f"the newest checkpoint covers {size} events, and the decision is event {later.sequence_number}; "
            "try again once the notary has signed a newer one (gavel notary)"
        ) from error


def _prove(client: SyncGavelClient, size: int, *, event_id: str = "", sequence_number: int = 0) -> ProvedEvent:
    from gavel_server.proofs.verifier import ProvedEvent

    answer = client.get_inclusion_proof(event_id=event_id, sequence_number=sequence_number, tree_size=size)
    return ProvedEvent(answer.sequence_number, answer.envelope, tuple(answer.hashes))
