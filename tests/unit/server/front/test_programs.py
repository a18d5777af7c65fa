"""Which transport the setting `front` selects on this machine."""

from __future__ import annotations

import os
import re
import sysconfig
from pathlib import Path

import pytest
from gavel_server.front import programs
from gavel_server.front.frames import METHODS, PROTOCOL
from gavel_server.front.programs import command, select_program

from tests.support.paths import ROOT

SOURCES = ROOT / "server/front"


@pytest.fixture(params=[True, False], ids=["built", "not-built"])
def is_built(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the native front exists: a directory of programs with or without it."""
    monkeypatch.setattr(sysconfig, "get_path", lambda _: str(tmp_path))
    if request.param:
        (tmp_path / "gavel-front").touch()
    return bool(request.param)


def test_auto_chooses_the_native_front_if_it_is_built(is_built: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """`auto` takes the native front where it is built and there are several processors, and no front elsewhere."""
    for count in (1, 2, 64):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, count=count: set(range(count)))
        expected = programs.native_program() if count > 1 and is_built else None
        assert expected == select_program("auto")


def test_none_chooses_no_front(is_built: bool) -> None:
    """`none` takes no front, whether one is built or not."""
    assert select_program("none") is None


def test_native_refuses_a_missing_program(is_built: bool) -> None:
    """`native` needs the program; the error names its place and what to do."""
    if is_built:
        assert programs.native_program() == select_program("native")
        return
    with pytest.raises(OSError, match=r"no native front at .*/gavel-front: .*make front.*--front none"):
        select_program("native")


def test_command_line(is_built: bool) -> None:
    """The front gets the protocol, its descriptor, the public and the private address."""
    arguments = ["7", "127.0.0.1:0", "unix:/inner.sock"]
    program = programs.native_program()
    assert [str(program), str(PROTOCOL), *arguments] == command(program, 7, arguments[1], arguments[2])


def test_the_native_front_is_of_the_same_protocol() -> None:
    """The sources of the native front have the protocol's number and the methods as the server has them."""
    assert [str(PROTOCOL)] == re.findall(r'linkProtocol = "(\d+)"', (SOURCES / "main.go").read_text())
    (unary,) = re.findall(r"unaryMethods = \[\]string\{(.*)\}", (SOURCES / "front.go").read_text())
    (stream,) = re.findall(r"streamMethod = (.*)", (SOURCES / "front.go").read_text())
    assert list(METHODS) == [name.strip().strip('"') for name in [*unary.split(","), stream]]
