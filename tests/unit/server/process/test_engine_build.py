"""How durable-rules was compiled: a build without the required flags is reported."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from gavel_server.process.engine_build import engine_build_problem, engine_build_remedy


@pytest.fixture
def plain_build(tmp_path: Path) -> Path:
    """A directory with the engine as a plain `pip install` leaves it: the library works, and no -fwrapv is recorded."""
    specification = find_spec("durable_rules_engine")
    assert specification is not None
    assert specification.origin is not None
    library = Path(specification.origin)
    (tmp_path / library.name).write_bytes(library.read_bytes().replace(b"-fwrapv", b"-fxxxxx"))
    return tmp_path


def environment(directory: Path) -> dict[str, str]:
    """Return the environment of a program that imports from a directory first."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(directory), os.environ.get("PYTHONPATH", "")])}


def test_the_installed_engine_has_its_flags() -> None:
    """The engine that the lock file's installation compiled needs no remedy."""
    assert "" == engine_build_problem()


def test_build_without_the_flags_is_reported(plain_build: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A library without -fwrapv among its recorded flags is named, with what to do."""
    monkeypatch.delitem(sys.modules, "durable_rules_engine", raising=False)
    monkeypatch.syspath_prepend(plain_build)
    assert f"{plain_build}/" in engine_build_problem()
    assert "compiled without -O2 -fwrapv" in engine_build_problem()
    assert engine_build_remedy().startswith('CPPFLAGS="-O2 -fwrapv -frecord-gcc-switches" pip install ')
    assert engine_build_remedy().endswith(" --no-binary durable-rules durable-rules==2.0.28")


def test_version_warns_of_a_build_without_the_flags(plain_build: Path) -> None:
    """`gavel --version` prints the version as always, and the warning on standard error."""
    command = [sys.executable, "-m", "gavel_server.cli", "--version"]
    process = subprocess.run(command, env=environment(plain_build), capture_output=True, text=True, timeout=60, check=True)
    assert process.stdout.startswith("gavel ")
    assert "gavel: warning: " in process.stderr
    assert "compiled without -O2 -fwrapv" in process.stderr
    assert engine_build_remedy() in process.stderr


def test_server_warns_of_a_build_without_the_flags(plain_build: Path, tmp_path: Path) -> None:
    """`gavel serve` logs a warning with the remedy as soon as it starts."""
    command = [sys.executable, "-m", "gavel_server.cli", "serve", "--data", str(tmp_path / "data"), "--redis", "redis://127.0.0.1:9"]
    with subprocess.Popen(command, env=environment(plain_build), stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        lines = iter(process.stderr.readline, "")
        line = next(line for line in lines if "engine.build" in line)
        process.terminate()  # it would wait for Redis
        process.stderr.read()
    assert "warning" in line
    assert "CPPFLAGS=" in line
