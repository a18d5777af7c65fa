"""The notary signs what a server has confirmed and it has read itself, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from gavel_server.log import LogUnavailableError, Record
from gavel_server.log.memory import MemoryLog
from gavel_server.proofs import log_tree
from gavel_server.proofs import notary as notary_module
from gavel_server.proofs.keys import NotaryKey, generate_key
from gavel_server.proofs.notary import ConfirmedTree, ForkError, LaggingServerError, NotaryError, QuorumError, open_notary
from gavel_server.proofs.tiles import LocalTiles, Tiles
from gavel_server.proofs.tree import CompactRange, root
from gavel_server.proofs.verifier import (
    ED25519_COSIGNATURE,
    Checkpoint,
    Key,
    Signature,
    entry_of,
    is_signed,
    leaf_hash,
    new_key,
    parse_checkpoint,
)
from gavel_server.proofs.witnesses import OtherHistoryError, Witness, WitnessError
from structlog.testing import capture_logs

from tests.support.driver import BUS
from tests.support.simulation.servers import Servers, record_event

KEY: NotaryKey = generate_key(f"gavel/{BUS}")


async def log_with(facts: int) -> MemoryLog:
    """Return a log with its first event and some facts."""
    servers = Servers()
    sequencer, _ = await servers.start()
    for number in range(facts):
        await record_event(sequencer, servers.fact(number))
    return servers.log


async def tree_of(log: MemoryLog, size: int) -> ConfirmedTree:
    """Return the tree of a log's first events."""
    compact = CompactRange()
    for record in await log.read(1, size):
        compact.append(leaf_hash(entry_of(record.envelope)))
    return ConfirmedTree(size, compact.root())


async def sign(
    log: MemoryLog, directory: Path, *trees: ConfirmedTree, keys: Sequence[NotaryKey] = (KEY,), old_keys: Sequence[Key] = ()
) -> list[tuple[int, bytes]]:
    """Let one notary sign once for each of the trees; return the size and root of each checkpoint."""
    async with open_notary(log, keys, directory, replays=False, old_keys=old_keys) as notary:
        return [(one.size, one.root) for one in [await notary.notarize(tree) for tree in trees]]


def signed_size(directory: Path) -> int:
    """Return the size of the newest checkpoint in a directory; 0 without one."""
    path = directory / "checkpoint"
    return int(path.read_text(encoding="utf-8").splitlines()[1]) if path.exists() else 0


def test_only_confirmed_events_are_signed(tmp_path: Path) -> None:
    """A log with later events is signed up to the confirmed ones, and further once more of them are confirmed."""

    async def main() -> None:
        log = await log_with(5)
        first, same, last = [await tree_of(log, size) for size in (4, 4, 6)]
        assert [tuple(first), tuple(same), tuple(last)] == await sign(log, tmp_path, first, same, last)

    asyncio.run(main())


def test_events_that_are_not_the_servers(tmp_path: Path) -> None:
    """If a server confirms other events than the notary reads, nothing is signed."""

    async def main() -> None:
        log = await log_with(5)
        await sign(log, tmp_path, await tree_of(log, 2))
        foreign = ConfirmedTree(4, (await tree_of(log, 5)).root)
        with pytest.raises(NotaryError, match="the first 4 events of gavel/default are not those of the server, so nothing is signed"):
            await sign(log, tmp_path, foreign)

    asyncio.run(main())
    assert 2 == signed_size(tmp_path)


def test_lost_events(tmp_path: Path) -> None:
    """A log that ends before what was signed is refused, whatever the server confirms."""

    async def main() -> None:
        log = await log_with(5)
        await sign(log, tmp_path, await tree_of(log, 6))
        shorter = await log_with(1)
        for size in (2, 6):
            with pytest.raises(ForkError, match="gavel/default has 2 events, but 6 were signed or confirmed: events are lost"):
                await sign(shorter, tmp_path, await tree_of(log, size))

    asyncio.run(main())


def test_a_server_that_is_behind(tmp_path: Path) -> None:
    """A server that confirms less than was signed makes nothing of the notary's own log a fork; once it is up to date, signing goes on."""

    async def main() -> None:
        log = await log_with(5)
        await sign(log, tmp_path, await tree_of(log, 6))
        behind, current = await tree_of(log, 2), await tree_of(log, 6)
        async with open_notary(log, [KEY], tmp_path, replays=False) as notary:
            for tree in (behind, ConfirmedTree(0, b"")):
                with pytest.raises(LaggingServerError, match=f"the server confirms {tree.size} events of gavel/default, and 6 were signed"):
                    await notary.notarize(tree)
            assert 6 == (await notary.notarize(current)).size

    asyncio.run(main())


def test_an_empty_log(tmp_path: Path) -> None:
    """A log without events is not signed."""

    async def main() -> None:
        log = MemoryLog(BUS, clock=lambda: 0)
        with pytest.raises(NotaryError, match="gavel/default has no events"):
            await sign(log, tmp_path, await tree_of(log, 0))

    asyncio.run(main())
    assert 0 == signed_size(tmp_path)


def test_an_outage_in_the_middle_of_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the log was away between two reads, the same notary goes on, and its tree has every event."""
    monkeypatch.setattr(log_tree, "READ_EVENTS_MAX", 2)

    async def main() -> None:
        log = await log_with(6)
        tree = await tree_of(log, 7)
        read = log.read

        async def fail(first: int, last: int, limit: int) -> list[Record]:
            if first == 5:
                monkeypatch.setattr(log, "read", read)
                raise LogUnavailableError("cannot reach the log")
            return await read(first, last, limit)

        monkeypatch.setattr(log, "read", fail)
        async with open_notary(log, [KEY], tmp_path, replays=False) as notary:
            with pytest.raises(LogUnavailableError):
                await notary.notarize(tree)
            assert tree.root == (await notary.notarize(tree)).root
        assert tree.root == root(Tiles(LocalTiles(tmp_path)), tree.size)

    asyncio.run(main())


# Keys


def read_state(directory: Path) -> Checkpoint:
    """Return the checkpoint in a directory."""
    return parse_checkpoint((directory / "checkpoint").read_text(encoding="utf-8"))


def test_a_key_that_is_added_on_a_quiet_log(tmp_path: Path) -> None:
    """A key that has not signed the newest checkpoint signs it, though the log has no new event, and the others do not sign again."""
    new = generate_key(f"gavel/{BUS}")

    async def main() -> None:
        log = await log_with(5)
        tree = await tree_of(log, 6)
        await sign(log, tmp_path, tree)
        await sign(log, tmp_path, tree, keys=[new, KEY])
        checkpoint = read_state(tmp_path)
        assert ([KEY.public.key_id, new.public.key_id]) == [one.key_id for one in checkpoint.signatures]
        await sign(log, tmp_path, tree, keys=[new])
        assert checkpoint == read_state(tmp_path)

    asyncio.run(main())


def test_an_old_key_that_signs_no_more(tmp_path: Path) -> None:
    """The public half of a stolen key suffices to go on with a new key from what the old one signed."""
    new = generate_key(f"gavel/{BUS}")

    async def main() -> None:
        log = await log_with(5)
        await sign(log, tmp_path, await tree_of(log, 4))
        with pytest.raises(NotaryError, match=r"not signed by any of the given keys; .* only its public key with --old-key"):
            await sign(log, tmp_path, await tree_of(log, 6), keys=[new])
        for size in (4, 6):
            await sign(log, tmp_path, await tree_of(log, size), keys=[new], old_keys=[KEY.public])
            assert (size, True) == (signed_size(tmp_path), is_signed(read_state(tmp_path), new.public))
        assert not is_signed(read_state(tmp_path), KEY.public)
        await sign(log, tmp_path, await tree_of(log, 6), keys=[new])
        with pytest.raises(ForkError, match="events are lost"):
            await sign(await log_with(1), tmp_path, await tree_of(log, 6), keys=[new], old_keys=[KEY.public])

    asyncio.run(main())


def test_an_old_key_of_another_log(tmp_path: Path) -> None:
    """An old key must be that of a notary of the same bus."""

    async def main() -> None:
        log = await log_with(1)
        for key in (generate_key("gavel/other").public, WITNESSES[0].key):
            with pytest.raises(NotaryError, match=f"the old key {key.name} is not the key of a notary of bus {BUS}"):
                await sign(log, tmp_path, await tree_of(log, 2), old_keys=[key])

    asyncio.run(main())


def test_a_damaged_signature(tmp_path: Path) -> None:
    """A state whose signature has a flipped bit is refused with advice."""

    async def main() -> None:
        log = await log_with(5)
        tree = await tree_of(log, 6)
        await sign(log, tmp_path, tree)
        checkpoint = read_state(tmp_path)
        content = checkpoint.signatures[0].content
        flipped = checkpoint.signatures[0]._replace(content=bytes([content[0] ^ 1]) + content[1:])
        (tmp_path / "checkpoint").write_text(str(checkpoint._replace(signatures=(flipped,))), encoding="utf-8")
        with pytest.raises(NotaryError, match="is damaged; restore it from a backup or from GetCheckpoint: the signature of gavel/default"):
            await sign(log, tmp_path, tree)

    asyncio.run(main())


# Witnesses


WITNESS_KEYS = [Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32) for number in (1, 2)]
WITNESSES = [
    Witness(f"https://{number}.example", new_key(f"{number}.example", ED25519_COSIGNATURE, key.public_key().public_bytes_raw()))
    for number, key in enumerate(WITNESS_KEYS)
]


@pytest.mark.parametrize(
    ("quorum", "second", "error"),
    [
        (1, None, None),
        (0, WitnessError("away"), None),
        (2, None, ForkError),
        (1, WitnessError("away"), QuorumError),
        (1, OtherHistoryError("other"), ForkError),
    ],
)
def test_a_witness_of_another_history(
    quorum: int, second: WitnessError | None, error: type[Exception] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A witness that knows another history raises an alarm, and ends the notary only if the others are too few for the quorum."""

    def request(witness: Witness, checkpoint: Checkpoint, *_: object) -> Signature:
        if witness == WITNESSES[0]:
            raise OtherHistoryError("events are lost")
        if second is not None:
            raise second
        content = WITNESS_KEYS[1].sign(f"cosignature/v1\ntime 7\n{checkpoint.text}".encode())
        return Signature(witness.key.name, witness.key.key_id, (7).to_bytes(8, "big") + content)

    monkeypatch.setattr(notary_module, "request_cosignature", request)

    async def main() -> None:
        log = await log_with(1)
        tree = await tree_of(log, 2)
        async with open_notary(log, [KEY], tmp_path, replays=False, witnesses=WITNESSES, quorum=quorum) as notary:
            with capture_logs() as logs, nullcontext() if error is None else pytest.raises(error, match="events are lost"):
                checkpoint = await notary.notarize(tree)
                assert (second is None) == is_signed(checkpoint, WITNESSES[1].key)
        assert ("notary.witness_has_other_history", "error") == (logs[0]["event"], logs[0]["log_level"])

    asyncio.run(main())
