"""How calls end with an error."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from gavel.v1 import error_pb2
from gavel_server.errors import ServiceError, abort


class GoneConnection:
    """The context of a call whose connection has broken, as grpc.aio behaves."""

    async def abort(self, *_: Any) -> None:
        """Fail to send the status."""
        raise grpc.aio.InternalError("the connection is gone")


async def test_the_connection_is_gone() -> None:
    """A call that cannot be told its error ends as cancelled: it is no bug of the server, and nothing is logged."""
    context: Any = GoneConnection()
    with pytest.raises(asyncio.CancelledError):
        await abort(context, ServiceError(error_pb2.ERROR_REASON_INVALID_REQUEST, "no"))
