"""Errors as the client logs them."""

from __future__ import annotations

import grpc
import grpc.aio
import pytest
from gavel_client import GavelError
from gavel_client.rpc.errors import describe_error

CODES = {
    "RIGHT_LACKING": grpc.StatusCode.PERMISSION_DENIED,
    "UNAUTHENTICATED": grpc.StatusCode.UNAUTHENTICATED,
    "PAYLOAD_INVALID": grpc.StatusCode.INVALID_ARGUMENT,
}


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("RIGHT_LACKING", "PERMISSION_DENIED RIGHT_LACKING: text"),
        ("UNAUTHENTICATED", "UNAUTHENTICATED UNAUTHENTICATED: text"),
        ("PAYLOAD_INVALID", "INVALID_ARGUMENT PAYLOAD_INVALID"),
    ],
)
def test_errors_of_the_server(reason: str, expected: str) -> None:
    """A refusal of access is described with its message; a message that may quote a request is left out."""
    assert expected == describe_error(GavelError(CODES[reason], reason, "text"))


def test_lost_status_is_unavailable() -> None:
    """A stream whose status gRPC has lost is reported as UNAVAILABLE, with advice; other internal errors stay what they are."""
    no_metadata = grpc.aio.Metadata()
    lost = grpc.aio.AioRpcError(grpc.StatusCode.INTERNAL, no_metadata, no_metadata, details="Internal error from Core")
    assert grpc.StatusCode.UNAVAILABLE is GavelError.from_rpc_error(lost).code
    assert "try again" in GavelError.from_rpc_error(lost).message
    other = grpc.aio.AioRpcError(grpc.StatusCode.INTERNAL, no_metadata, no_metadata, details="broken")
    assert grpc.StatusCode.INTERNAL is GavelError.from_rpc_error(other).code
