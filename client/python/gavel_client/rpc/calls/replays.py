"""The calls of ReplayService: replays of the log."""

from __future__ import annotations

from gavel.v1 import replay_service_pb2 as replays
from gavel.v1.decision_pb2 import ENGINE_UNSPECIFIED, Engine
from gavel.v1.replay_service_pb2_grpc import ReplayServiceStub

from gavel_client.rpc.calls.call import StreamCall, stream_call


def verify_replay(
    *,
    from_sequence_number: int = 0,
    to_sequence_number: int = 0,
    engine: Engine.ValueType = ENGINE_UNSPECIFIED,
    bus: str = "",
    timeout_ms: int | None = None,
) -> StreamCall[replays.VerifyReplayResponse]:
    """Recompute the log's decisions and derived facts; stream progress, then a verdict."""
    request = replays.VerifyReplayRequest(
        bus=bus, from_sequence_number=from_sequence_number, to_sequence_number=to_sequence_number, engine=engine
    )
    return stream_call(ReplayServiceStub, lambda stub: stub.VerifyReplay, request, timeout_ms)
