"""Open calls: equal calls share a turn until one has its final answer."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from gavel_client.mcp.open_calls import OPEN_CALLS_MAX, OpenCalls

CALL = ("coding-agent", "git.git_commit", {"message": "m"})


def test_turns(tmp_path: Path) -> None:
    """An equal call gets the turn and the task of the open one, also after a restart; another call, or a later one, gets its own."""
    calls = OpenCalls(tmp_path / "calls")
    first = calls.open(*CALL, task="a")

    assert first == OpenCalls(tmp_path / "calls").open(*CALL, task="b")
    others = [calls.open("other", *CALL[1:], task="a"), calls.open(*CALL[:2], {"message": "n"}, task="a")]
    calls.close(*CALL, first)
    later = calls.open(*CALL, task="b")

    assert 4 == len({first, later, *others})
    assert "b" == later.task


def test_closing_an_older_turn(tmp_path: Path) -> None:
    """Closing a call that has been closed and opened again leaves the new one open."""
    calls = OpenCalls(tmp_path)
    first = calls.open(*CALL, task="a")
    calls.close(*CALL, first)
    second = calls.open(*CALL, task="a")
    calls.close(*CALL, first)

    assert second == calls.open(*CALL, task="a")


def test_opening_at_once(tmp_path: Path) -> None:
    """Equal calls that open at the same time share one turn, and no other file is left."""
    with ThreadPoolExecutor(8) as threads:
        turns = set(threads.map(lambda _: OpenCalls(tmp_path).open(*CALL, task="a"), range(64)))

    assert (1, 1) == (len(turns), len([path for path in tmp_path.rglob("*") if path.is_file()]))


@pytest.mark.long
def test_an_agent_with_too_many_open_calls(tmp_path: Path) -> None:
    """An agent with OPEN_CALLS_MAX open calls opens no further one until one is closed; its open calls and other agents go on."""
    calls = OpenCalls(tmp_path)
    first = calls.open(*CALL, task="a")
    (folder,) = tmp_path.iterdir()
    for number in range(OPEN_CALLS_MAX - 1):
        (folder / f"{number}.json").touch()
    other = (*CALL[:2], {"message": "other"})

    with pytest.raises(OSError, match="open calls"):
        calls.open(*other, task="a")
    assert first == calls.open(*CALL, task="a")
    assert "b" == calls.open("another-agent", *other[1:], task="b").task
    calls.close(*CALL, first)
    assert "c" == calls.open(*other, task="c").task
