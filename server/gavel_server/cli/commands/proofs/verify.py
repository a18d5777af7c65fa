"""`gavel verify`: verifies a proof file offline, or that a server's log was not rewritten since a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gavel_server.cli.connection import connect
from gavel_server.cli.documents import write_document
from gavel_server.cli.errors import InvalidInputError
from gavel_server.cli.options import BUS_DEFAULT, SERVER_DEFAULT, Bus, Debug, Server

if TYPE_CHECKING:
    from gavel_server.proofs.verifier import Checkpoint, Key

Keys = Annotated[list[str], typer.Option("--key", metavar="VKEY", help="The notary's public key, or a file with it; repeatable.")]
WitnessKeys = Annotated[
    list[str] | None, typer.Option("--witness-key", metavar="VKEY", help="A witness's public key, or a file with it; repeatable.")
]
Quorum = Annotated[
    int | None, typer.Option("--witnesses", min=0, metavar="N", help="How many of the witnesses must have signed. Default: all.")
]


def verify(
    key: Keys,
    file: Annotated[str | None, typer.Argument(metavar="FILE", help="A file of gavel proof; - is standard input.")] = None,
    witness_key: WitnessKeys = None,
    witnesses: Quorum = None,
    log: Annotated[bool, typer.Option("--log", help="Verify a server's log instead of a file.")] = False,
    since: Annotated[Path | None, typer.Option(metavar="CHECKPOINT", help="With --log: an earlier checkpoint.")] = None,
    save: Annotated[Path | None, typer.Option(metavar="CHECKPOINT", help="With --log: where the newest checkpoint is written.")] = None,
    server: Server = SERVER_DEFAULT,
    bus: Bus = BUS_DEFAULT,
    debug: Debug = False,
) -> None:
    """Verify a proof of a decision offline; with --log, that a log was only appended to.

    gavel verify FILE reads nothing but the file and the keys. gavel verify --log asks the server for its newest checkpoint and for a
    proof that the log begins with the events of the earlier one.

    Exit status: 0 verified, 3 not verified, 2 unreadable.
    """
    from gavel_server.cli.rendering import output
    from gavel_server.proofs import verifier

    if log == (file is not None):
        raise InvalidInputError("give a FILE of gavel proof, or --log to verify a server's log")
    if not log and (since is not None or save is not None):
        raise InvalidInputError("--since and --save belong to --log; a FILE holds the only checkpoint that it is verified with")
    if log:
        status, lines = _verify_log(key, witness_key or [], witnesses, since, save, server, bus)
    else:
        status, lines = verifier.verify_file(file or "", key, witness_key or [], witnesses)
    text = "\n".join(map(verifier.escape, lines))
    if status:
        output.print_note(text)
    else:
        output.print_line(text)
    raise typer.Exit(status)


def _verify_log(
    keys: list[str], witness_keys: list[str], quorum: int | None, since: Path | None, save: Path | None, server: str, bus: str
) -> tuple[int, list[str]]:
    """Return the exit status and the lines to print."""
    from gavel_server.proofs import verifier

    try:
        trusted = [verifier.read_key(text) for text in keys]
        witnesses = [verifier.read_key(text) for text in witness_keys]
        earlier = None if since is None else _read_checkpoint(since, trusted)
        with connect(server, bus) as client:
            newest = verifier.parse_checkpoint(client.get_checkpoint().checkpoint)
            verifier.check_signatures(newest, trusted, witnesses, quorum)
            if earlier is not None and earlier.origin != newest.origin:
                raise verifier.NotVerifiedError(f"the saved checkpoint is of log {earlier.origin}, the server's of log {newest.origin}")
            if earlier is not None:
                hashes = []
                if 0 < earlier.size < newest.size:
                    hashes = list(client.get_consistency_proof(earlier.size, newest.size).hashes)
                verifier.check_consistency(earlier.size, earlier.root, newest.size, newest.root, hashes)
    except OSError as error:
        return verifier.EXIT_UNREADABLE, [f"unreadable: {error.filename}: {error.strerror}"]
    except verifier.UnreadableError as error:
        return verifier.EXIT_UNREADABLE, [f"unreadable: {error}"]
    except verifier.NotVerifiedError as error:
        return verifier.EXIT_NOT_VERIFIED, [f"not verified: {error}"]
    if save is not None:
        write_document(save, str(newest))
    begins = "" if earlier is None else f"; it begins with the {earlier.size} events of {since}"
    return verifier.EXIT_VERIFIED, [f"verified: the notary signed {newest.size} events of {newest.origin}{begins}"]


def _read_checkpoint(path: Path, keys: list[Key]) -> Checkpoint:
    from gavel_server.proofs import verifier

    checkpoint = verifier.parse_checkpoint(path.read_text(encoding="utf-8", errors="replace"))
    verifier.check_signatures(checkpoint, keys)
    return checkpoint
