"""`gavel notary`: how it ends."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from gavel.v1.proof_service_pb2 import GetConsistencyProofResponse
from gavel_server.cli.commands.proofs.notary import _sign_until
from gavel_server.cli.errors import EXIT_INTERRUPTED, CommandError
from gavel_server.proofs.notary import ConfirmedTree, LaggingServerError
from gavel_server.proofs.verifier import Checkpoint


async def test_interrupted_before_the_first_checkpoint() -> None:
    """With --once a notary that a signal ends before it has signed fails; one that keeps running just ends."""
    unused: Any = None
    stop = asyncio.Event()
    stop.set()
    await _sign_until(stop, unused, unused, interval=1, once=False)
    with pytest.raises(CommandError, match="nothing is published") as error_info:
        await _sign_until(stop, unused, unused, interval=1, once=True)
    assert EXIT_INTERRUPTED == error_info.value.exit_status


class Server:
    """A server that confirms few events at first; it sets `stop` once a checkpoint is published."""

    def __init__(self, stop: asyncio.Event) -> None:
        self._sizes = [2, 6]
        self._stop = stop
        self.published: list[str] = []

    async def get_consistency_proof(self, _: int) -> GetConsistencyProofResponse:
        """Return the next size."""
        return GetConsistencyProofResponse(to_size=self._sizes.pop(0), to_root_hash=b"r" * 32)

    async def publish_checkpoint(self, checkpoint: str) -> None:
        """Publish a checkpoint."""
        self.published.append(checkpoint)
        self._stop.set()


class Signer:
    """A notary that has signed six events."""

    async def notarize(self, confirmed: ConfirmedTree) -> Checkpoint:
        """Sign the tree, unless it is smaller."""
        if confirmed.size < 6:
            raise LaggingServerError("the server confirms 2 events")
        return Checkpoint("gavel/default", confirmed.size, confirmed.root)

    async def examine(self) -> None:
        """Find no damage."""


async def test_a_server_that_is_behind(capsys: pytest.CaptureFixture[str]) -> None:
    """A server that confirms less than was signed is reported and asked again; with --once the notary fails."""
    stop = asyncio.Event()
    signer: Any = Signer()
    server: Any = Server(stop)
    await _sign_until(stop, signer, server, interval=0, once=False)
    assert [str(Checkpoint("gavel/default", 6, b"r" * 32))] == server.published
    assert "nothing is published, it is tried again in 0 s: the server confirms 2 events" in capsys.readouterr().err
    behind: Any = Server(stop)
    stop.clear()
    with pytest.raises(LaggingServerError):
        await _sign_until(stop, signer, behind, interval=0, once=True)
