"""Addresses that a server binds."""

from __future__ import annotations

from pathlib import Path

import pytest
from gavel_server.rpc.transport import bind, make_server


@pytest.mark.parametrize("form", ["unix:{}", "unix://{}"])
async def test_unix_socket_in_use_is_refused(tmp_path: Path, form: str) -> None:
    """A path on which another server listens is refused, and stays that server's; one that a killed server left is taken."""
    listen = form.format(tmp_path / "gavel.sock")
    first = make_server()
    assert listen == bind(first, listen)
    await first.start()
    with pytest.raises(OSError, match=f"cannot listen on {listen}: another server may be running there"):
        bind(make_server(), listen)
    left_over = tmp_path / "left-over.sock"
    (tmp_path / "gavel.sock").rename(left_over)  # when it stops, the first removes its own path only
    await first.stop(None)
    second = make_server()
    assert f"unix:{left_over}" == bind(second, f"unix:{left_over}")
    await second.start()
    await second.stop(None)
