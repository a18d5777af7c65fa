"""The checkpoint of acknowledged events."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from gavel_server.bus.checkpoint import LINE_BYTES, Checkpoint, CheckpointError
from gavel_server.log import Head


def head(number: int) -> Head:
    """A head."""
    return Head(number, bytes([number]) * 32)


async def test_a_checkpoint_survives_a_restart(tmp_path: Path) -> None:
    """The next process loads the latest saved head of each bus."""
    path = tmp_path / "checkpoint.json"
    first = Checkpoint(path)
    assert None is first.head_of("a")
    await first.save({"a": head(1)})
    await first.save({"b": head(7)})
    await first.save({"a": head(2)})
    second = Checkpoint(path)
    assert [head(2), head(7), None] == [second.head_of(bus) for bus in ("a", "b", "c")]


async def test_a_note_survives_without_a_sync(tmp_path: Path) -> None:
    """A noted head is in the file at once, before any sync, as one line for each bus; an unchanged head is not written again."""
    path = tmp_path / "checkpoint.json"
    checkpoint = Checkpoint(path)
    buses = ["a", "b", "long-" * 11]
    for number in range(1, 4):
        for bus in buses:
            checkpoint.note(bus, head(number))
            assert head(number) == Checkpoint(path).head_of(bus)
    assert ["checkpoint.json"] == os.listdir(tmp_path)
    assert [[bus, 3, head(3).chain_hash.hex()] for bus in buses] == [json.loads(line) for line in path.read_text().splitlines()]
    assert len(buses) * LINE_BYTES == path.stat().st_size
    status = path.stat()
    await checkpoint.save(dict.fromkeys(buses, head(3)))
    checkpoint.note("a", head(3))
    assert status == path.stat()


def test_a_note_is_one_small_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A note of an open checkpoint makes one system call, which writes one line."""
    checkpoint = Checkpoint(tmp_path / "checkpoint.json")
    checkpoint.note("a", head(1))
    written: list[int] = []
    pwrite = os.pwrite

    def count(descriptor: int, content: bytes, offset: int) -> int:
        written.append(len(content))
        return pwrite(descriptor, content, offset)

    monkeypatch.setattr(os, "pwrite", count)
    for name in ("open", "write", "fsync", "fdatasync", "rename", "replace", "stat"):
        monkeypatch.delattr(os, name)
    checkpoint.note("a", head(2))
    monkeypatch.undo()
    assert [LINE_BYTES] == written
    assert head(2) == Checkpoint(tmp_path / "checkpoint.json").head_of("a")


async def test_a_file_that_was_removed_is_written_again(tmp_path: Path) -> None:
    """A checkpoint that somebody removes or replaces under a running server is whole again after the next save."""
    path = tmp_path / "checkpoint.json"
    checkpoint = Checkpoint(path)
    await checkpoint.save({"a": head(1), "b": head(7)})
    path.unlink()
    await checkpoint.save({"a": head(2)})
    path.rename(tmp_path / "elsewhere")
    path.write_text("{}")
    await checkpoint.save({"a": head(3)})
    assert [head(3), head(7)] == [Checkpoint(path).head_of(bus) for bus in ("a", "b")]


def test_the_form_of_earlier_builds_is_read(tmp_path: Path) -> None:
    """A checkpoint that an earlier build wrote is read, and keeps its buses when it is written again."""
    path = tmp_path / "checkpoint.json"
    path.write_text(json.dumps({"a": [1, head(1).chain_hash.hex()], "b": [7, head(7).chain_hash.hex()]}))
    checkpoint = Checkpoint(path)
    assert [head(1), head(7)] == [checkpoint.head_of(bus) for bus in ("a", "b")]
    checkpoint.note("a", head(2))
    assert [head(2), head(7)] == [Checkpoint(path).head_of(bus) for bus in ("a", "b")]


@pytest.mark.parametrize("tail", [b"[", b'["c", 1', b"\0" * LINE_BYTES, b"\0" * (LINE_BYTES - 1) + b"\n"])
def test_a_line_that_a_power_cut_left_unfinished(tmp_path: Path, tail: bytes) -> None:
    """The line of a new bus that never reached the disk does not hide the lines before it."""
    path = tmp_path / "checkpoint.json"
    Checkpoint(path).note("a", head(1))
    with path.open("ab") as file:
        file.write(tail)
    checkpoint = Checkpoint(path)
    assert head(1) == checkpoint.head_of("a")
    checkpoint.note("b", head(7))
    assert [head(1), head(7)] == [Checkpoint(path).head_of(bus) for bus in ("a", "b")]


def test_a_line_edited_by_hand(tmp_path: Path) -> None:
    """Lines that an operator shortened or removed are read, and written again in full."""
    path = tmp_path / "checkpoint.json"
    checkpoint = Checkpoint(path)
    for bus in ("a", "b", "c"):
        checkpoint.note(bus, head(1))
    lines = [line.rstrip() for line in path.read_text().splitlines()]
    path.write_text(f"{lines[0]}\n{lines[2]}\n")
    edited = Checkpoint(path)
    assert [head(1), None, head(1)] == [edited.head_of(bus) for bus in ("a", "b", "c")]
    edited.note("c", head(2))
    assert [head(1), None, head(2)] == [Checkpoint(path).head_of(bus) for bus in ("a", "b", "c")]


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "[]\n", '["a", 1]\n', '["a", 1, "xy"]\n', "7", '{"a": 1}', '{"a": [1, "xy"]}', '{"a": ["one", ""]}', '{"a": [1]}'],
)
def test_a_broken_checkpoint_is_an_error(tmp_path: Path, content: str) -> None:
    """A file that is not a checkpoint stops the server with instructions; it never counts as "nothing acknowledged"."""
    path = tmp_path / "checkpoint.json"
    path.write_text(content)
    with pytest.raises(CheckpointError, match="restore it, or remove it"):
        Checkpoint(path)
