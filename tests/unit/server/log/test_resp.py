"""Commands reach Redis as its own client library would send them."""

from __future__ import annotations

from typing import Any, cast

import hiredis
from gavel_server.log.redis.resp import Argument, pack
from hypothesis import given
from hypothesis import strategies as st

arguments = st.one_of(st.binary(max_size=300), st.text(max_size=100), st.integers())


@given(st.lists(arguments, min_size=1, max_size=20))
def test_commands_are_packed_as_the_library_packs_them(command: list[Argument]) -> None:
    """Bytes, texts and numbers, short and long, are packed as hiredis packs them."""
    assert hiredis.pack_command(cast(Any, tuple(command))) == pack(tuple(command))
