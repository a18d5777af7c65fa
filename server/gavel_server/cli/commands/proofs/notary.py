"""`gavel notary`: a process with a key of its own that proves a log and signs checkpoints of it; `gavel notary keygen` makes the key."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from gavel_server.cli.connection import TRIES_MAX, command_error, open_client
from gavel_server.cli.errors import EXIT_INTERRUPTED, CommandError, InvalidInputError
from gavel_server.cli.options import BUS_DEFAULT, SERVER_DEFAULT, WAIT_SECONDS_MAX, Bus, Debug, Log, Server, log_location

if TYPE_CHECKING:
    import asyncio

    from gavel_client import GavelClient

    from gavel_server.proofs.notary import Notary
    from gavel_server.proofs.verifier import Key
    from gavel_server.proofs.witnesses import Witness

# The log is not a continuation of what was signed, or it is not proved.
EXIT_REFUSED: Final = 3
INTERVAL_SECONDS_DEFAULT: Final = 60.0
_KEYGEN: Final = "keygen"

notary = typer.Typer(invoke_without_command=True)


@notary.command(_KEYGEN)
def keygen(
    key: Annotated[Path, typer.Option(metavar="FILE", help="The file of the new private key.")],
    bus: Bus = BUS_DEFAULT,
    debug: Debug = False,
) -> None:
    """Make the key of a notary; print its public key, which auditors need."""
    from gavel_server.cli.rendering import output
    from gavel_server.proofs.keys import KeyFileError, generate_key, write_key
    from gavel_server.proofs.verifier import ORIGIN_PREFIX

    notary_key = generate_key(f"{ORIGIN_PREFIX}{bus}")
    try:
        write_key(key, notary_key)
    except KeyFileError as error:
        raise CommandError(str(error)) from error
    output.print_line(str(notary_key.public))


@notary.callback()
def notarize(
    call: typer.Context,
    key: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="The notary's key, from gavel notary keygen; repeat it while keys change."),
    ] = None,
    old_key: Annotated[
        list[str] | None,
        typer.Option(metavar="VKEY", help="An old public key that signed the state, or a file with it; it signs nothing more. Repeatable."),
    ] = None,
    state: Annotated[Path, typer.Option(metavar="DIR", help="Directory of the newest checkpoint and the tree.")] = Path("notary"),
    data: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Read the log in the embedded Redis of this data directory. Default: GAVEL_DATA, else .gavel."),
    ] = None,
    log: Log = "",
    archive: Annotated[str, typer.Option(metavar="DIR|URL", help="The archive with the events that the log no longer has.")] = "",
    server: Server = SERVER_DEFAULT,
    bus: Bus = BUS_DEFAULT,
    replay: Annotated[bool, typer.Option("--replay/--no-replay", help="Recompute the decisions before signing.")] = True,
    witness: Annotated[list[str] | None, typer.Option(metavar="URL", help="A witness that must cosign; repeatable.")] = None,
    witness_key: Annotated[
        list[str] | None, typer.Option(metavar="VKEY", help="The key of each --witness, or a file with it, in the same order.")
    ] = None,
    witnesses: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="How many of the witnesses must cosign before publication. Default: all.")
    ] = None,
    interval: Annotated[
        float, typer.Option(min=0.1, max=WAIT_SECONDS_MAX, metavar="SECONDS", help="Pause between checkpoints.")
    ] = INTERVAL_SECONDS_DEFAULT,
    once: Annotated[bool, typer.Option("--once", help="Sign and publish one checkpoint, then end.")] = False,
    debug: Debug = False,
) -> None:
    """Prove a log, sign checkpoints of it, and publish them on the server.

    The notary reads the whole log once, checks that it still begins with what was signed before, recomputes the decisions, and signs. Run
    it where operators of the server have no access. The notary ends if the log was rewritten, is damaged, or is not proved.

    Exit status: 3 the log was rewritten, has lost events, is damaged, or is not proved.
    """
    if call.invoked_subcommand is not None:
        return
    if not key:
        raise InvalidInputError(f"give the notary's key with --key FILE; gavel notary {_KEYGEN} makes one")
    all_witnesses = _witnesses(witness or [], witness_key or [])
    quorum = len(all_witnesses) if witnesses is None else witnesses
    if quorum > len(all_witnesses):
        raise InvalidInputError(f"--witnesses {quorum} is more than the {len(all_witnesses)} witnesses that are given")
    old_keys = _public_keys(old_key or [])
    url = _log_url(data, log)

    async def run() -> None:
        import asyncio

        from gavel_server.cli.consumer import stop_on_signal
        from gavel_server.cli.offline_log import open_log
        from gavel_server.proofs.keys import read_key
        from gavel_server.proofs.notary import open_notary

        stop = asyncio.Event()
        stop_on_signal(stop.set)
        keys = [read_key(path) for path in key]
        async with (
            open_log(Path(), url, bus, archive) as opened,
            open_notary(opened, keys, state, replays=replay, old_keys=old_keys, witnesses=all_witnesses, quorum=quorum) as signer,
            open_client(server, bus, tries_max=TRIES_MAX) as client,
        ):
            await _sign_until(stop, signer, client, interval=interval, once=once)

    _run(run, server, bus)


async def _sign_until(stop: asyncio.Event, signer: Notary, client: GavelClient, *, interval: float, once: bool) -> None:
    """Sign and publish until `stop` is set. Failures that may pass are reported and tried again, unless `once`."""
    import asyncio
    from contextlib import suppress

    from gavel_client import GavelError

    from gavel_server.cli.rendering import output
    from gavel_server.log.protocol import LogUnavailableError
    from gavel_server.proofs.notary import ConfirmedTree, LaggingServerError, QuorumError

    published = ""
    while not stop.is_set():
        try:
            tree = await client.get_consistency_proof(1)  # of the head, once all events are confirmed
            checkpoint = await signer.notarize(ConfirmedTree(tree.to_size, tree.to_root_hash))
            if str(checkpoint) != published:
                await client.publish_checkpoint(str(checkpoint))
                published = str(checkpoint)
                output.print_line(f"signed and published {checkpoint.size} events of {checkpoint.origin}")
        except (LogUnavailableError, LaggingServerError, QuorumError, GavelError) as error:
            if getattr(error, "reason", "") == "CHECKPOINT_REFUSED":
                raise
            await _examine(signer)
            if once:
                raise
            output.print_note(f"gavel: nothing is published, it is tried again in {interval:g} s: {error}")
        if once:
            return
        with suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), interval)
    if once:
        raise CommandError("interrupted before a checkpoint was signed; nothing is published", EXIT_INTERRUPTED)


async def _examine(signer: Notary) -> None:
    """Look for damage of the log, which would be why a server does not confirm it. Raises NotaryError, LogCorruptError."""
    from contextlib import suppress

    from gavel_server.log.protocol import LogUnavailableError

    with suppress(LogUnavailableError):
        await signer.examine()


def _run(run: Callable[[], Coroutine[Any, Any, None]], server: str, bus: str) -> None:
    """Run the notary; raise CommandError for its failures."""
    import asyncio

    from gavel_client import GavelError

    from gavel_server.log.protocol import LogCorruptError, LogError
    from gavel_server.proofs.keys import KeyFileError
    from gavel_server.proofs.notary import ForkError, LaggingServerError, NotaryError, QuorumError

    try:
        asyncio.run(run())
    except (ForkError, NotaryError, LogCorruptError) as error:
        raise CommandError(str(error), EXIT_REFUSED) from error
    except GavelError as error:
        failure = command_error(error, server, bus)
        raise (CommandError(str(failure), EXIT_REFUSED) if error.reason == "CHECKPOINT_REFUSED" else failure) from error
    except (LaggingServerError, QuorumError, KeyFileError, LogError) as error:
        raise CommandError(str(error)) from error


def _log_url(data: Path | None, log: str) -> str:
    """Return the URL of the store that holds the log. Raises CommandError."""
    from gavel_server.log.redis.data_directory import last_url

    directory, url = log_location(data, log)
    url = url or last_url(directory) or ""
    if not url:
        raise CommandError(f"no server runs on {directory}; start it, or name the store that holds the log with --log URL")
    return url


def _public_keys(texts: list[str]) -> list[Key]:
    """Return the public keys that vkeys, or files with them, state. Raises InvalidInputError."""
    from gavel_server.proofs.verifier import UnreadableError, read_key

    try:
        return [read_key(text) for text in texts]
    except (UnreadableError, OSError) as error:
        raise InvalidInputError(str(error)) from error


def _witnesses(urls: list[str], keys: list[str]) -> list[Witness]:
    """Return the witnesses. Raises InvalidInputError."""
    from gavel_server.proofs.witnesses import parse_witness

    if len(urls) != len(keys):
        raise InvalidInputError(f"{len(urls)} --witness and {len(keys)} --witness-key; give each witness its key, in the same order")
    try:
        return [parse_witness(url, key) for url, key in zip(urls, _public_keys(keys), strict=True)]
    except ValueError as error:
        raise InvalidInputError(str(error)) from error
