"""`gavel accept-clock` by an authenticated person."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from gavel_server.front.programs import FrontSetting

from tests.e2e.cli.programs import gavel
from tests.e2e.faults.test_clock import HOUR_MS, deployment, run_ahead
from tests.e2e.identity.granted import ADMIN, GrantedServer
from tests.e2e.ledger import Ledger
from tests.support.fronts import TRANSPORTS


@pytest.mark.parametrize("front", TRANSPORTS)
async def test_an_authenticated_operator_accepts_the_clock(tmp_path: Path, front: FrontSetting) -> None:
    """The event names the principal of the caller's token, not the login name; another name is refused."""
    granted = GrantedServer(tmp_path, front)
    token = tmp_path / "ada.token"
    token.write_text(granted.tokens[ADMIN])
    command = ("accept-clock", "--reason", "set by hand", "--bus", "ahead", "--token-file", token)
    with granted.running():
        async with run_ahead(granted.server.redis_url, "ahead", HOUR_MS) as ahead:
            await ahead.execute(deployment())
        refused = await asyncio.to_thread(gavel, *command, "--by", "rob", server=granted.server)
        assert (1, True) == (refused.returncode, "the authenticated caller is 'ada'" in refused.stderr), refused.stderr
        accepted = await asyncio.to_thread(gavel, *command, server=granted.server)
        assert (0, "") == (accepted.returncode, accepted.stderr)
        event = (await Ledger.read(granted.server.redis_url, "ahead")).events[-1]
        assert ADMIN == event.fact.clock_accepted.accepted_by
