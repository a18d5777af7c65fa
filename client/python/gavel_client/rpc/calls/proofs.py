"""The calls of ProofService: proofs and signed checkpoints."""

from __future__ import annotations

from gavel.v1 import proof_service_pb2 as proofs
from gavel.v1.proof_service_pb2_grpc import ProofServiceStub

from gavel_client.rpc.calls.call import UnaryCall, unary_call
from gavel_client.rpc.deadlines import PROOF_TIMEOUT_MS, READ_TIMEOUT_MS


def get_checkpoint(*, bus: str = "", timeout_ms: int = READ_TIMEOUT_MS) -> UnaryCall[proofs.GetCheckpointResponse]:
    """Read the newest checkpoint that a notary has signed and published."""
    return unary_call(ProofServiceStub, lambda stub: stub.GetCheckpoint, proofs.GetCheckpointRequest(bus=bus), timeout_ms)


def get_inclusion_proof(
    *, event_id: str = "", sequence_number: int = 0, tree_size: int = 0, bus: str = "", timeout_ms: int = PROOF_TIMEOUT_MS
) -> UnaryCall[proofs.GetInclusionProofResponse]:
    """Prove that an event, by its UUID or by its sequence number, is in the tree of a size; 0: of the head."""
    if bool(event_id) == bool(sequence_number):
        raise ValueError("pass either event_id or sequence_number, not both or neither")
    if event_id:
        request = proofs.GetInclusionProofRequest(bus=bus, event_id=event_id, tree_size=tree_size)
    else:
        request = proofs.GetInclusionProofRequest(bus=bus, sequence_number=sequence_number, tree_size=tree_size)
    return unary_call(ProofServiceStub, lambda stub: stub.GetInclusionProof, request, timeout_ms)


def get_consistency_proof(
    from_size: int, to_size: int = 0, *, bus: str = "", timeout_ms: int = PROOF_TIMEOUT_MS
) -> UnaryCall[proofs.GetConsistencyProofResponse]:
    """Prove that the tree of `to_size` events, 0: of the head, begins with the tree of `from_size` events."""
    request = proofs.GetConsistencyProofRequest(bus=bus, from_size=from_size, to_size=to_size)
    return unary_call(ProofServiceStub, lambda stub: stub.GetConsistencyProof, request, timeout_ms)


def publish_checkpoint(
    checkpoint: str, *, bus: str = "", timeout_ms: int = PROOF_TIMEOUT_MS
) -> UnaryCall[proofs.PublishCheckpointResponse]:
    """Let the server return this signed checkpoint; it must be one of the server's log."""
    request = proofs.PublishCheckpointRequest(bus=bus, checkpoint=checkpoint)
    return unary_call(ProofServiceStub, lambda stub: stub.PublishCheckpoint, request, timeout_ms)
