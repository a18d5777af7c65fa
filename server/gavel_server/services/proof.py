"""ProofService: proofs that an event is in a log, and that the log was never rewritten (docs/proofs.md).

The tree of each bus stands in a directory of this server. A call brings it up to the size that it needs, which reads each event of the
log once in the tree's life. The work is done in slices, one bus at a time, and occupies a slot of scans.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import structlog
from gavel.v1 import error_pb2
from gavel.v1.proof_service_pb2 import (
    GetCheckpointRequest,
    GetCheckpointResponse,
    GetConsistencyProofRequest,
    GetConsistencyProofResponse,
    GetInclusionProofRequest,
    GetInclusionProofResponse,
    PublishCheckpointRequest,
    PublishCheckpointResponse,
)
from gavel_rules.events.ids import is_uuid

from gavel_server.bus.registry import BusRegistry
from gavel_server.bus.sequencer import Sequencer
from gavel_server.errors import ServiceError, invalid
from gavel_server.fairness.work_slots import Slots
from gavel_server.proofs.log_tree import LogTree
from gavel_server.proofs.verifier import ORIGIN_PREFIX, Checkpoint, UnreadableError, parse_checkpoint
from gavel_server.rpc.call_context import CallContext
from gavel_server.services.reads.event_numbers import number_of
from gavel_server.services.reads.log_reader import missing_event, range_violations

CHECKPOINT_BYTES_MAX: Final = 32 * 1024

_LOG: Final = structlog.get_logger(__name__)


class ProofServicer:
    """Serves ProofService on the buses of this server."""

    def __init__(self, buses: BusRegistry, slots: Slots, directory: Path | None = None) -> None:
        """`directory` holds the trees, one folder a bus; None: a temporary one."""
        self._buses = buses
        self._slots = slots
        self._temporary: Final = TemporaryDirectory(prefix="gavel-proofs-") if directory is None else None
        self._directory: Final = Path(self._temporary.name) if self._temporary is not None else directory or Path()
        self._trees: dict[str, LogTree] = {}

    async def GetCheckpoint(self, request: GetCheckpointRequest, context: CallContext) -> GetCheckpointResponse:
        """Return the newest published checkpoint."""
        sequencer = await self._buses.existing(request.bus, context.bus_incarnation)
        _, checkpoint = await _read_published(sequencer)
        if checkpoint is None:
            message = f"no notary has published a checkpoint of bus {sequencer.bus}; run gavel notary"
            raise ServiceError(error_pb2.ERROR_REASON_CHECKPOINT_NOT_FOUND, message)
        return GetCheckpointResponse(checkpoint=str(checkpoint), tree_size=checkpoint.size, root_hash=checkpoint.root)

    async def GetInclusionProof(self, request: GetInclusionProofRequest, context: CallContext) -> GetInclusionProofResponse:
        """Prove that an event is in the tree of a size."""
        key = request.WhichOneof("key")
        violations = range_violations(tree_size=request.tree_size)
        if key is None:
            violations.append(("key", "is required: event_id or sequence_number"))
        if key == "event_id" and not is_uuid(request.event_id):
            violations.append(("event_id", "is not a UUID in canonical form"))
        if key == "sequence_number" and request.sequence_number < 1:
            violations.append(("sequence_number", "is not 1 or more"))
        if violations:
            raise invalid(violations)
        sequencer = await self._buses.existing(request.bus, context.bus_incarnation)
        number = request.sequence_number if key == "sequence_number" else await number_of(sequencer, request.event_id)
        head = await _head(sequencer, tree_size=request.tree_size)
        size = request.tree_size or head
        await sequencer.confirm(size)
        if number > size:
            message = f"event {number} is not in the tree of the first {size} events of bus {sequencer.bus}"
            raise ServiceError(error_pb2.ERROR_REASON_EVENT_NOT_FOUND, message)
        record = (await sequencer.log.read_many([number])).get(number)
        if record is None:
            raise await missing_event(sequencer.log, number)
        async with self._slots.occupy(context.address):
            proof = await self._tree(sequencer.bus).inclusion_proof(sequencer.log, record, size, context.caller)
        return GetInclusionProofResponse(
            sequence_number=number, envelope=record.envelope, tree_size=size, root_hash=proof.root, hashes=proof.hashes
        )

    async def GetConsistencyProof(self, request: GetConsistencyProofRequest, context: CallContext) -> GetConsistencyProofResponse:
        """Prove that the tree of a size begins with an earlier tree."""
        violations = range_violations(to_size=request.to_size)
        if request.from_size < 1:
            violations.append(("from_size", "is not 1 or more"))
        if 0 < request.to_size < request.from_size:
            violations.append(("to_size", "is less than from_size"))
        if violations:
            raise invalid(violations)
        sequencer = await self._buses.existing(request.bus, context.bus_incarnation)
        # One head for both sizes: the log may grow, or lose events, meanwhile.
        head = await _head(sequencer, from_size=request.from_size, to_size=request.to_size)
        from_size, to_size = request.from_size, request.to_size or head
        await sequencer.confirm(to_size)
        async with self._slots.occupy(context.address):
            proof = await self._tree(sequencer.bus).consistency_proof(sequencer.log, from_size, to_size, context.caller)
        return GetConsistencyProofResponse(
            from_size=from_size, from_root_hash=proof.from_root, to_size=to_size, to_root_hash=proof.to_root, hashes=proof.hashes
        )

    async def PublishCheckpoint(self, request: PublishCheckpointRequest, context: CallContext) -> PublishCheckpointResponse:
        """Publish a checkpoint whose root is that of the log."""
        if len(request.checkpoint.encode()) > CHECKPOINT_BYTES_MAX:
            raise invalid([("checkpoint", f"has more than {CHECKPOINT_BYTES_MAX} bytes")])
        try:
            checkpoint = parse_checkpoint(request.checkpoint)
        except UnreadableError as error:
            raise invalid([("checkpoint", str(error))]) from error
        sequencer = await self._buses.existing(request.bus, context.bus_incarnation)
        if checkpoint.origin != f"{ORIGIN_PREFIX}{sequencer.bus}":
            raise invalid([("checkpoint", f"is of {checkpoint.origin}, not of {ORIGIN_PREFIX}{sequencer.bus}")])
        head = (await sequencer.log.head()).sequence_number
        if checkpoint.size > head:
            raise _refusal(f"it has {checkpoint.size} events, but bus {sequencer.bus} has {head}: events are lost, or it is another log")
        await sequencer.confirm(head)
        if not await self._is_of_log(checkpoint, sequencer, context):
            raise _refusal(f"its root is not that of the first {checkpoint.size} events of bus {sequencer.bus}: one of them was changed")
        is_published = False
        while not is_published:  # others may publish meanwhile
            note, published = await _read_published(sequencer)
            if published is not None and checkpoint.size < published.size:
                if await self._is_of_log(published, sequencer, context):
                    raise _refusal(f"the published checkpoint has {published.size} events, this one {checkpoint.size}")
                _LOG.warning(
                    "proofs.checkpoint_replaced",
                    bus=sequencer.bus,
                    size=checkpoint.size,
                    replaced_size=published.size,
                    note="the log does not begin with the events of the published checkpoint; events were lost, or the log was restored",
                )
            is_published = await sequencer.log.publish_checkpoint(str(checkpoint).encode(), note)
        return PublishCheckpointResponse()

    async def _is_of_log(self, checkpoint: Checkpoint, sequencer: Sequencer, context: CallContext) -> bool:
        """Return whether the log of a bus begins with the events of a checkpoint."""
        if checkpoint.size > (await sequencer.log.head()).sequence_number:
            return False
        async with self._slots.occupy(context.address):
            root = await self._tree(sequencer.bus).root(sequencer.log, checkpoint.size, context.caller)
        return root == checkpoint.root

    def _tree(self, bus: str) -> LogTree:
        if bus not in self._trees:
            self._trees[bus] = LogTree(self._directory / bus)
        return self._trees[bus]


async def _read_published(sequencer: Sequencer) -> tuple[bytes | None, Checkpoint | None]:
    """Return the note of the published checkpoint and what it says."""
    note = await sequencer.log.published_checkpoint()
    return note, None if note is None else parse_checkpoint(note.decode())


async def _head(sequencer: Sequencer, **sizes: int) -> int:
    """Return the log's head. Raises ServiceError INVALID_ARGUMENT that names the sizes of trees that are larger."""
    head = (await sequencer.log.head()).sequence_number
    violations = [(field, f"is more than the {head} events of bus {sequencer.bus}") for field, size in sizes.items() if size > head]
    if violations:
        raise invalid(violations)
    return head


def _refusal(problem: str) -> ServiceError:
    return ServiceError(error_pb2.ERROR_REASON_CHECKPOINT_REFUSED, f"the checkpoint is not published: {problem}")
