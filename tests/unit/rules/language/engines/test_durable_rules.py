"""How durable-rules was compiled: a library without the required flags is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from gavel_rules.language.engines.durable_rules import REMEDY, load


@pytest.fixture
def plain_build(tmp_path: Path) -> Path:
    """A directory with the engine as a plain `pip install` leaves it: the library works, and no -fwrapv is recorded."""
    specification = find_spec("durable_rules_engine")
    assert specification is not None
    assert specification.origin is not None
    library = Path(specification.origin)
    (tmp_path / library.name).write_bytes(library.read_bytes().replace(b"-fwrapv", b"-fxxxxx"))
    return tmp_path


def run(arguments: list[str], directory: Path) -> subprocess.CompletedProcess[str]:
    """Run Python with a directory before the installed packages."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(directory), os.environ.get("PYTHONPATH", "")])}
    return subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True, timeout=60, check=False)


def test_the_installed_engine_is_accepted() -> None:
    """The engine that the lock file's installation compiled is used."""
    assert load().create_ruleset


def test_build_without_the_flags_is_refused(plain_build: Path) -> None:
    """The core cannot be imported with such a library, and the error has the command that mends it."""
    process = run(["-c", "import gavel_rules.language.rule_set"], plain_build)
    assert 1 == process.returncode
    assert f"EngineBuildError: {plain_build}/" in process.stderr
    assert "was compiled without -O2 -fwrapv" in process.stderr
    assert REMEDY in process.stderr


def test_commands_refuse_such_a_build_in_one_line(plain_build: Path, tmp_path: Path) -> None:
    """`gavel serve` exits with the command that mends the build, without a traceback."""
    process = run(["-m", "gavel_server.cli", "serve", "--data", str(tmp_path / "data")], plain_build)
    assert 1 == process.returncode
    assert process.stderr.startswith("gavel: ")
    assert 1 == len(process.stderr.splitlines())
    assert REMEDY in process.stderr
