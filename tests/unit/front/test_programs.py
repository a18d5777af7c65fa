"""Which front serves: what the setting asks for, or, with `auto`, the best that this machine has."""

from __future__ import annotations

import os
import re
import sys
import sysconfig
from pathlib import Path

import pytest
from gavel_server.front import programs
from gavel_server.front.link import METHODS, PROTOCOL
from gavel_server.front.programs import Choice, chosen, command

SOURCES = Path(__file__).parents[3] / "server/front"


@pytest.fixture(params=[True, False], ids=["built", "not-built"])
def built(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the native front is there: a directory of programs with or without it."""
    monkeypatch.setattr(sysconfig, "get_path", lambda _: str(tmp_path))
    if request.param:
        (tmp_path / "gavel-front").touch()
    return bool(request.param)


def test_auto_takes_the_best_that_is_there(built: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one processor there is no front; with more it is the native one, or Python's where the native one is not there."""
    for count in (1, 2, 64):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, count=count: set(range(count)))
        expected = None if count == 1 else "native" if built else "python"
        assert expected == chosen("auto")


@pytest.mark.parametrize("choice", ["python", "none"])
def test_what_is_named_is_taken(built: bool, choice: Choice) -> None:
    """Python's front and none can be had anywhere, whatever else is there."""
    assert (None if choice == "none" else choice) == chosen(choice)


def test_a_native_front_that_is_not_there(built: bool) -> None:
    """Asked for by name it has to be there; the error says where it was looked for and how to make it."""
    if built:
        assert "native" == chosen("native")
        return
    with pytest.raises(OSError, match=r"no native front at .*/gavel-front: .*make front.*--front python"):
        chosen("native")


def test_command_lines(built: bool) -> None:
    """Both fronts get the same three arguments, in the same order; the native one also hears in which protocol."""
    given = ["7", "127.0.0.1:0", "unix:/inner.sock"]
    assert [str(programs.native_program()), str(PROTOCOL), *given] == command("native", 7, given[1], given[2])
    assert [sys.executable, "-P", "-m", "gavel_server.front.process", *given] == command("python", 7, given[1], given[2])


def test_the_native_front_is_of_the_same_protocol() -> None:
    """The sources of the native front have the protocol's number and the methods as the server has them."""
    assert [str(PROTOCOL)] == re.findall(r'linkProtocol = "(\d+)"', (SOURCES / "main.go").read_text())
    (unary,) = re.findall(r"unaryMethods = \[\]string\{(.*)\}", (SOURCES / "front.go").read_text())
    (stream,) = re.findall(r"streamMethod = (.*)", (SOURCES / "front.go").read_text())
    assert list(METHODS) == [name.strip().strip('"') for name in [*unary.split(","), stream]]
