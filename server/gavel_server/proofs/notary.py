"""The notary: reads a log, proves what is new, and signs a checkpoint of all of it with a key that no server has.

Its directory holds the newest checkpoint that it signed and the tree of the log, in the layout of C2SP tlog-tiles. A checkpoint is written
there before its signature leaves the process, so a notary that is killed never signs two trees of one size. A new process reads the whole
log once. It signs nothing before it has checked that the log still begins with the events that were signed before.

It reads only events that a server has confirmed as durably as it promises. A failover may lose later ones, and the log would not be the
one that was signed. The server can delay a signature. It cannot change what is signed, because both must have the same root.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from fcntl import LOCK_EX, LOCK_NB, flock
from pathlib import Path
from typing import Final, NamedTuple

import structlog
from gavel_rules.events.hash_chain import chain
from gavel_rules.replay import DamagedError, DivergedError, Integrity, Recomputation, VersionNotImplementedError

from gavel_server.compile.precompiler import Precompiler
from gavel_server.errors import GavelServerError
from gavel_server.log import Record
from gavel_server.process.private_files import PUBLIC_DIRECTORY_MODE, make_directory, open_public, sync_directory
from gavel_server.proofs import tree
from gavel_server.proofs.keys import NotaryKey
from gavel_server.proofs.log_tree import LogSource, read_on
from gavel_server.proofs.tiles import DamagedTilesError, LocalTiles, Tiles
from gavel_server.proofs.tree import CompactRange
from gavel_server.proofs.verifier import (
    ED25519,
    ORIGIN_PREFIX,
    Checkpoint,
    Key,
    NotVerifiedError,
    UnreadableError,
    entry_of,
    is_signed,
    leaf_hash,
    parse_checkpoint,
)
from gavel_server.proofs.witnesses import OtherHistoryError, Witness, WitnessError, request_cosignature

# Events whose entries are added to the tiles at once.
APPENDED_EVENTS_MAX: Final = 2048

_LOG: Final = structlog.get_logger(__name__)


class NotaryError(GavelServerError):
    """Nothing is signed; the message says why and what to do."""


class ForkError(GavelServerError):
    """The log is not a continuation of what was signed before; nothing more may be signed."""


class QuorumError(GavelServerError):
    """Too few witnesses cosigned, so that the checkpoint must not be published; a later attempt may succeed."""


class LaggingServerError(GavelServerError):
    """A server confirms fewer events than are signed already; a later attempt may succeed."""


class ConfirmedTree(NamedTuple):
    """The tree of a log's first `size` events, all of which a server has confirmed, and its root."""

    size: int
    root: bytes


class Notary:
    """Signs checkpoints of one log. One task uses it; see `open_notary`."""

    def __init__(
        self,
        log: LogSource,
        keys: Sequence[NotaryKey],
        directory: Path,
        *,
        replays: bool,
        old_keys: Sequence[Key] = (),
        witnesses: Sequence[Witness] = (),
        quorum: int = 0,
    ) -> None:
        """`replays`: recompute the decisions. `quorum` witnesses must cosign before a checkpoint is published.

        `old_keys` may have signed the checkpoint in the directory. They sign nothing.
        """
        self.log: Final = log
        self.origin: Final = f"{ORIGIN_PREFIX}{log.bus}"
        self._keys: Final = keys
        self._old_keys: Final = old_keys
        self._file: Final = directory / "checkpoint"
        self._witnesses: Final = witnesses
        self._quorum: Final = quorum
        self._tiles: Final = Tiles(LocalTiles(directory))
        self._range: Final = CompactRange()
        self._entries: Final[list[bytes]] = []  # of events in the range that the tiles lack yet
        self._integrity: Final = Integrity(log.bus)
        self._precompiler: Final = Precompiler(documents=True)
        self._recomputation: Final = Recomputation(log.bus, compile_document=self._precompiler.compile_document) if replays else None
        self._cosigned_sizes: dict[str, int] = {}
        self.checkpoint: Checkpoint | None = self._read_checkpoint()

    async def notarize(self, confirmed: ConfirmedTree) -> Checkpoint:
        """Read the confirmed events that are new, prove them, and return a checkpoint, signed and cosigned by the quorum.

        The checkpoint is written to the directory. Raises ForkError if the log does not begin with what was signed before, or if witnesses
        say so and too few others are left for the quorum, NotaryError if the log is not proved, LaggingServerError if the server confirms
        less than was signed, QuorumError if too few witnesses cosign, and the errors of EventLog.read.
        """
        signed = self.checkpoint
        known = max(self._range.size, 0 if signed is None else signed.size)
        events = (await self.log.head()).sequence_number
        if events < known:
            raise ForkError(f"{self.origin} has {events} events, but {known} were signed or confirmed: events are lost")
        if confirmed.size < known:
            raise LaggingServerError(
                f"the server confirms {confirmed.size} events of {self.origin}, and {known} were signed or confirmed before: it is behind, "
                "or has another log"
            )
        if not confirmed.size:
            raise NotaryError(f"{self.origin} has no events")
        await self._read_to(confirmed.size)
        if self._range.root() != confirmed.root:
            raise NotaryError(
                f"the first {confirmed.size} events of {self.origin} are not those of the server, so nothing is signed: one was changed, "
                "or the server has another log"
            )
        self._sign()
        return await self._cosign()

    async def examine(self) -> None:
        """Check the chain of the events after those that are proved, also of events that no server has confirmed. Nothing is signed.

        Raises NotaryError if the chain is broken, and the errors of EventLog.read.
        """
        # A failover between two reads may mix the events of two logs: only what is found twice is in one of them.
        broken = [await self._first_broken() for _ in range(2)]
        if broken[0] and broken[0] == broken[1]:
            raise NotaryError(
                f"{self.origin} is not proved, so nothing is signed: the chain breaks at event {broken[0]}; examine it with gavel replay"
            )

    async def _first_broken(self) -> int:
        """Return the number of the first event at which the chain breaks after the proved events, or 0."""
        number, chain_hash = self._integrity.events, self._integrity.chain_hash
        last = (await self.log.head()).sequence_number
        while number < last:
            for record in await read_on(self.log, number + 1, last):
                chain_hash = chain(chain_hash, record.envelope)
                if chain_hash != record.chain_hash:
                    return record.sequence_number
                number = record.sequence_number
            await asyncio.sleep(0)  # signals are handled
        return 0

    async def _read_to(self, last: int) -> None:
        """Read, check and add the events up to `last`."""
        while self._range.size < last:
            for record in await read_on(self.log, self._range.size + 1, last):
                await self._prove(record)
                entry = entry_of(record.envelope)
                self._range.append(leaf_hash(entry))
                self._check_against_signed()
                if self._range.size > self._tiles.size + len(self._entries):
                    self._entries.append(entry)
            if self._entries and (len(self._entries) >= APPENDED_EVENTS_MAX or self._range.size == last):
                try:
                    await asyncio.to_thread(self._tiles.append, self._entries, self._integrity.chain_hash)
                except DamagedTilesError as error:
                    raise self._damaged() from error
                self._entries.clear()
            await asyncio.sleep(0)  # signals are handled
        if self._recomputation is not None:
            try:
                self._recomputation.finish(at_head=True)
            except DivergedError as error:
                raise self._proof_error(error) from error
        try:
            is_of_log = tree.root(self._tiles, self._range.size) == self._range.root()
        except ValueError:  # damaged, or too small
            is_of_log = False
        if not is_of_log:
            raise self._damaged()

    def _damaged(self) -> NotaryError:
        self._tiles.clear()
        return NotaryError(f"the tiles in {self._file.parent} were damaged or of another log, and are deleted; start the notary again")

    async def _prove(self, record: Record) -> None:
        number, envelope = record.sequence_number, record.envelope
        try:
            self._integrity.feed(number, envelope, record.chain_hash)
            if self._recomputation is not None:
                compilation = self._precompiler.before(self._recomputation.state, envelope)
                if compilation is not None:
                    await compilation
                self._recomputation.feed(number, envelope)
        except (DamagedError, DivergedError, VersionNotImplementedError) as error:
            raise self._proof_error(error) from error

    def _proof_error(self, error: Exception) -> NotaryError:
        return NotaryError(f"{self.origin} is not proved, so nothing is signed: {error}")

    def _check_against_signed(self) -> None:
        signed = self.checkpoint
        if signed is not None and self._range.size == signed.size and self._range.root() != signed.root:
            raise ForkError(f"{self.origin} was rewritten: its first {signed.size} events are not those that were signed")

    def _sign(self) -> None:
        """Replace the checkpoint by one of all events if there are new ones, and sign it with the keys that have not signed it yet."""
        signed = checkpoint = self.checkpoint
        if checkpoint is None or checkpoint.size < self._range.size:
            checkpoint = Checkpoint(self.origin, self._range.size, self._range.root())
        for key in self._keys:
            if not is_signed(checkpoint, key.public):
                checkpoint = key.sign(checkpoint)
        if checkpoint != signed:
            self._write(checkpoint)

    async def _cosign(self) -> Checkpoint:
        """Return the checkpoint with the cosignatures of the witnesses that it lacks. Raises ForkError, QuorumError."""
        checkpoint = self.checkpoint
        assert checkpoint is not None  # noqa: S101  # `notarize` has just written it
        problems, other_histories = [], 0
        for witness in self._witnesses:
            if is_signed(checkpoint, witness.key):
                continue
            from_size = self._cosigned_sizes.get(witness.url, 0)
            try:
                signature = await asyncio.to_thread(request_cosignature, witness, checkpoint, from_size, self._proof_between)
            except WitnessError as error:
                problems.append(str(error))
                if isinstance(error, OtherHistoryError):
                    other_histories += 1
                    _LOG.error("notary.witness_has_other_history", origin=self.origin, size=checkpoint.size, problem=str(error))
                else:
                    _LOG.warning("notary.not_cosigned", origin=self.origin, size=checkpoint.size, problem=str(error))
                continue
            self._cosigned_sizes[witness.url] = checkpoint.size
            checkpoint = checkpoint._replace(signatures=(*checkpoint.signatures, signature))
            self._write(checkpoint)
        cosigned = sum(is_signed(checkpoint, witness.key) for witness in self._witnesses)
        if cosigned < self._quorum:
            message = f"{cosigned} of {self._quorum} witnesses cosigned {checkpoint.size} events: {'; '.join(problems)}"
            quorum_is_possible = len(self._witnesses) - other_histories >= self._quorum
            raise QuorumError(message) if quorum_is_possible else ForkError(message)
        return checkpoint

    def _proof_between(self, from_size: int, to_size: int) -> list[bytes]:
        return tree.consistency_proof(self._tiles, from_size, to_size)

    def _read_checkpoint(self) -> Checkpoint | None:
        """Return the newest checkpoint that this notary signed. Raises NotaryError if the file is not one of its keys, or the old ones."""
        keys = [*(key.public for key in self._keys), *self._old_keys]
        try:
            checkpoint = parse_checkpoint(self._file.read_text(encoding="utf-8"))
            signers = [key for key in (*keys, *(witness.key for witness in self._witnesses)) if is_signed(checkpoint, key)]
        except FileNotFoundError:
            return None
        except (UnreadableError, NotVerifiedError, ValueError) as error:
            raise NotaryError(f"{self._file} is damaged; restore it from a backup or from GetCheckpoint: {error}") from error
        if checkpoint.origin != self.origin:
            raise NotaryError(f"{self._file} is of {checkpoint.origin}, not of {self.origin}; each log needs a directory of its own")
        if not any(key in signers for key in keys):
            raise NotaryError(
                f"{self._file} is not signed by any of the given keys; give the old key too while keys change, or only its public key with "
                "--old-key if it is stolen or lost (docs/proofs.md)"
            )
        return checkpoint

    def _write(self, checkpoint: Checkpoint) -> None:
        """Replace the newest checkpoint, on disk first."""
        temporary = self._file.with_name("checkpoint.new")
        with open(temporary, "w", encoding="utf-8", opener=open_public) as file:
            file.write(str(checkpoint))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, self._file)
        sync_directory(self._file.parent)
        self.checkpoint = checkpoint


@asynccontextmanager
async def open_notary(
    log: LogSource,
    keys: Sequence[NotaryKey],
    directory: Path,
    *,
    replays: bool,
    old_keys: Sequence[Key] = (),
    witnesses: Sequence[Witness] = (),
    quorum: int = 0,
) -> AsyncIterator[Notary]:
    """Yield a notary that alone uses its directory; see `Notary`. Raises NotaryError."""
    origin = f"{ORIGIN_PREFIX}{log.bus}"
    wrong = [key.public.name for key in keys if key.public.name != origin]
    if wrong:
        raise NotaryError(f"the key {wrong[0]} signs no log of bus {log.bus}; make one with gavel notary keygen --bus {log.bus}")
    wrong = [key.name for key in old_keys if (key.name, key.algorithm) != (origin, ED25519)]
    if wrong:
        raise NotaryError(f"the old key {wrong[0]} is not the key of a notary of bus {log.bus}")
    descriptor = _lock(directory)
    try:
        yield Notary(log, keys, directory, replays=replays, old_keys=old_keys, witnesses=witnesses, quorum=quorum)
    finally:
        os.close(descriptor)


def _lock(directory: Path) -> int:
    """Return a descriptor that holds the directory's lock. Raises NotaryError, OSError."""
    make_directory(directory, PUBLIC_DIRECTORY_MODE)
    descriptor = os.open(directory / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        flock(descriptor, LOCK_EX | LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise NotaryError(f"another notary uses {directory}; two would sign for one log") from error
    return descriptor
