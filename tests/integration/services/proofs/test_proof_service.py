"""ProofService over real gRPC."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import pytest
from gavel.v1.proof_service_pb2 import (
    GetCheckpointRequest,
    GetConsistencyProofRequest,
    GetInclusionProofRequest,
    PublishCheckpointRequest,
)
from gavel_server.log import Head, Record, chain, genesis_hash
from gavel_server.proofs.keys import generate_key
from gavel_server.proofs.log_tree import LogTree
from gavel_server.proofs.tree import CompactRange
from gavel_server.proofs.verifier import Checkpoint, check_consistency, check_inclusion, entry_of, leaf_hash
from structlog.testing import capture_logs

from tests.integration.services.world import World, refusal

KEY = generate_key("gavel/default")


async def records_of(world: World) -> list[Record]:
    """Return the log of the default bus."""
    return await (await world.buses.open("")).log.read(1, 1000)


async def checkpoint_of(world: World, size: int) -> Checkpoint:
    """Return a checkpoint of the log's first events, signed by KEY."""
    compact = CompactRange()
    for record in (await records_of(world))[:size]:
        compact.append(leaf_hash(entry_of(record.envelope)))
    return KEY.sign(Checkpoint("gavel/default", size, compact.root()))


async def rewrite(world: World, number: int) -> None:
    """Change an event and chain the log anew, as who controls the store could."""
    log = (await world.buses.open("")).log
    records: list[Record] = log._records  # type: ignore[attr-defined]  # what an attacker with access to the store would do
    stored = records[number - 1].envelope
    chain_hash = genesis_hash("default")
    for index, record in enumerate(records):
        envelope = stored.replace(b"orders-db", b"orders-xx") if index == number - 1 else record.envelope
        chain_hash = chain(chain_hash, envelope)
        records[index] = Record(record.sequence_number, envelope, chain_hash)


async def test_inclusion_of_every_event(world_with_rules: World) -> None:
    """Every event, by number or id, is proved in the tree of each later size, with its bytes as logged."""
    decision = await world_with_rules.approve()
    records = await records_of(world_with_rules)
    for size in (len(records) - 1, 0):
        root = (await checkpoint_of(world_with_rules, size or len(records))).root
        for record in records[: size or None]:
            request = GetInclusionProofRequest(sequence_number=record.sequence_number, tree_size=size)
            answer = await world_with_rules.proofs.GetInclusionProof(request)
            expected = (record.sequence_number, record.envelope, size or len(records), root)
            assert expected == (answer.sequence_number, answer.envelope, answer.tree_size, answer.root_hash)
            check_inclusion(
                leaf_hash(entry_of(answer.envelope)), answer.sequence_number - 1, answer.tree_size, answer.hashes, answer.root_hash
            )
    answer = await world_with_rules.proofs.GetInclusionProof(GetInclusionProofRequest(event_id=decision.event_id))
    assert decision.event_id.encode() in answer.envelope


async def test_consistency_of_every_size(world_with_rules: World) -> None:
    """The tree of the head begins with the tree of each earlier size."""
    await world_with_rules.approve()
    head = await world_with_rules.head()
    for size in range(1, head + 1):
        answer = await world_with_rules.proofs.GetConsistencyProof(GetConsistencyProofRequest(from_size=size))
        assert (size, head) == (answer.from_size, answer.to_size)
        assert (await checkpoint_of(world_with_rules, size)).root == answer.from_root_hash
        check_consistency(answer.from_size, answer.from_root_hash, answer.to_size, answer.to_root_hash, answer.hashes)


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (GetInclusionProofRequest(), "key"),
        (GetInclusionProofRequest(sequence_number=0), "sequence_number"),
        (GetInclusionProofRequest(event_id="7"), "event_id"),
        (GetInclusionProofRequest(sequence_number=1, tree_size=-1), "tree_size"),
        (GetInclusionProofRequest(sequence_number=1, tree_size=1000), "tree_size"),
        (GetConsistencyProofRequest(from_size=0), "from_size"),
        (GetConsistencyProofRequest(from_size=1000), "from_size"),
        (GetConsistencyProofRequest(from_size=2, to_size=1), "to_size"),
        (GetConsistencyProofRequest(from_size=1, to_size=1000), "to_size"),
        (PublishCheckpointRequest(checkpoint="gavel/default\n1\n"), "checkpoint"),
        (PublishCheckpointRequest(checkpoint="x" * 40_000), "checkpoint"),
        (PublishCheckpointRequest(checkpoint=str(KEY.sign(Checkpoint("gavel/other", 1, b"r" * 32)))), "checkpoint"),
    ],
)
async def test_invalid_requests(world_with_rules: World, request_: object, field: str) -> None:
    """An invalid request names its field."""
    name = type(request_).__name__.removesuffix("Request")
    problem = await refusal(getattr(world_with_rules.proofs, name)(request_))
    assert (grpc.StatusCode.INVALID_ARGUMENT, [field]) == (problem.code, problem.fields)


async def test_event_after_the_tree(world_with_rules: World) -> None:
    """An event that the tree does not cover is not found."""
    problem = await refusal(world_with_rules.proofs.GetInclusionProof(GetInclusionProofRequest(sequence_number=3, tree_size=2)))
    assert "EVENT_NOT_FOUND" == problem.reason


async def test_published_checkpoint(world_with_rules: World) -> None:
    """The published checkpoint is returned as it was signed; before there is one, the answer says what to run."""
    problem = await refusal(world_with_rules.proofs.GetCheckpoint(GetCheckpointRequest()))
    assert ("CHECKPOINT_NOT_FOUND", True) == (problem.reason, "run gavel notary" in problem.message)
    for size in (2, 3, 3):
        checkpoint = await checkpoint_of(world_with_rules, size)
        await world_with_rules.proofs.PublishCheckpoint(PublishCheckpointRequest(checkpoint=str(checkpoint)))
        answer = await world_with_rules.proofs.GetCheckpoint(GetCheckpointRequest())
        assert (str(checkpoint), size, checkpoint.root) == (answer.checkpoint, answer.tree_size, answer.root_hash)


async def test_refused_checkpoints(world_with_rules: World) -> None:
    """A checkpoint that is older than the published one, or not of this log, is not published."""
    good = await checkpoint_of(world_with_rules, 3)
    await world_with_rules.proofs.PublishCheckpoint(PublishCheckpointRequest(checkpoint=str(good)))
    wrong = {
        "the published checkpoint has 3 events": await checkpoint_of(world_with_rules, 2),
        "events are lost": KEY.sign(Checkpoint("gavel/default", 1000, good.root)),
        "one of them was changed": KEY.sign(Checkpoint("gavel/default", 3, b"r" * 32)),
    }
    for reason, checkpoint in wrong.items():
        problem = await refusal(world_with_rules.proofs.PublishCheckpoint(PublishCheckpointRequest(checkpoint=str(checkpoint))))
        assert ("CHECKPOINT_REFUSED", True) == (problem.reason, reason in problem.message)
    assert str(good) == (await world_with_rules.proofs.GetCheckpoint(GetCheckpointRequest())).checkpoint


@pytest.mark.parametrize("size", [3, 1000])
async def test_the_checkpoint_of_a_lost_history_is_replaced(world_with_rules: World, size: int) -> None:
    """A published checkpoint of events that the log does not have any more, or has otherwise, is replaced by an older one of the log."""
    log = (await world_with_rules.buses.open("")).log
    await log.publish_checkpoint(str(KEY.sign(Checkpoint("gavel/default", size, b"r" * 32))).encode(), None)
    checkpoint = await checkpoint_of(world_with_rules, 2)

    with capture_logs() as logs:
        await world_with_rules.proofs.PublishCheckpoint(PublishCheckpointRequest(checkpoint=str(checkpoint)))

    assert str(checkpoint) == (await world_with_rules.proofs.GetCheckpoint(GetCheckpointRequest())).checkpoint
    replaced = [(one["bus"], one["size"], one["replaced_size"]) for one in logs if one["event"] == "proofs.checkpoint_replaced"]
    assert [("default", 2, size)] == replaced


async def test_a_head_that_moves(world_with_rules: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log that grows between two looks at its head gets one answer: the earlier tree is larger than the log was then."""
    log = (await world_with_rules.buses.open("")).log
    head, earlier = await log.head(), Head(2, b"")
    heads = [earlier]

    async def read_head() -> Head:
        return heads.pop() if heads else head

    monkeypatch.setattr(log, "head", read_head)
    problem = await refusal(world_with_rules.proofs.GetConsistencyProof(GetConsistencyProofRequest(from_size=3)))
    assert (grpc.StatusCode.INVALID_ARGUMENT, ["from_size"]) == (problem.code, problem.fields)


async def test_sizes_that_no_tree_has(world_with_rules: World, tmp_path: Path) -> None:
    """A proof of impossible sizes is an error of the caller: the tree is neither discarded nor computed again."""
    log = (await world_with_rules.buses.open("")).log
    tree = LogTree(tmp_path)
    await tree.root(log, 3, "caller")
    with capture_logs() as logs:
        with pytest.raises(ValueError, match="a tree of 2 events does not begin with one of 3"):
            await tree.consistency_proof(log, 3, 2, "caller")
        with pytest.raises(ValueError, match="event 3 is not in a tree of 2 events"):
            await tree.inclusion_proof(log, (await records_of(world_with_rules))[2], 2, "caller")
    assert [] == logs


async def test_a_newer_checkpoint_published_meanwhile_stays(world_with_rules: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint whose root is still being computed does not replace a newer one that is published meanwhile."""
    older, newer = [await checkpoint_of(world_with_rules, size) for size in (2, 3)]
    log = (await world_with_rules.buses.open("")).log
    root = LogTree.root

    async def slow_root(*arguments: Any) -> bytes:
        await log.publish_checkpoint(str(newer).encode(), await log.published_checkpoint())
        return await root(*arguments)

    monkeypatch.setattr(LogTree, "root", slow_root)
    problem = await refusal(world_with_rules.proofs.PublishCheckpoint(PublishCheckpointRequest(checkpoint=str(older))))
    assert ("CHECKPOINT_REFUSED", True) == (problem.reason, "has 3 events, this one 2" in problem.message)
    assert str(newer) == (await world_with_rules.proofs.GetCheckpoint(GetCheckpointRequest())).checkpoint


async def test_rewritten_log_refuses_its_old_checkpoint(world_with_rules: World) -> None:
    """After a consistent rewriting of the store the tree is that of the new log, and the old checkpoint is refused."""
    await world_with_rules.approve()
    head = await world_with_rules.head()
    old = await checkpoint_of(world_with_rules, head)
    await world_with_rules.proofs.PublishCheckpoint(PublishCheckpointRequest(checkpoint=str(old)))
    number = next(
        one.sequence_number for one in await records_of(world_with_rules) if b"orders-db" in one.envelope and b"fact" in one.envelope
    )

    await rewrite(world_with_rules, number)

    assert old.root != (await checkpoint_of(world_with_rules, head)).root
    problem = await refusal(world_with_rules.proofs.PublishCheckpoint(PublishCheckpointRequest(checkpoint=str(old))))
    assert ("CHECKPOINT_REFUSED", True) == (problem.reason, "one of them was changed" in problem.message)
