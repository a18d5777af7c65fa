"""`gavel notary`: how it ends."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from gavel_server.cli.commands.proofs.notary import _sign_until
from gavel_server.cli.errors import EXIT_INTERRUPTED, CommandError


async def test_interrupted_before_the_first_checkpoint() -> None:
    """With --once a notary that a signal ends before it has signed fails; one that keeps running just ends."""
    unused: Any = None
    stop = asyncio.Event()
    stop.set()
    await _sign_until(stop, unused, unused, interval=1, once=False)
    with pytest.raises(CommandError, match="nothing is published") as error_info:
        await _sign_until(stop, unused, unused, interval=1, once=True)
    assert EXIT_INTERRUPTED == error_info.value.exit_status
