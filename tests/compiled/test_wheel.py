"""The wheel of `make wheels` contains the compiled libraries, and an installation from it runs them."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
import zipfile
from pathlib import Path, PurePosixPath

import pytest
from gavel_server.front.programs import native_program

from tests.support.fronts import FRONTS
from tests.support.paths import ROOT


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built as the Makefile builds it."""
    directory = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(directory)],
        cwd=ROOT,
        env={**os.environ, "HATCH_BUILD_HOOK_ENABLE_CUSTOM": "true"},
        check=True,
        capture_output=True,
        timeout=900,  # a minute on a quiet machine
    )
    (built,) = directory.glob("gavel-*.whl")
    return built


def test_the_libraries_are_in_the_wheel(wheel: Path) -> None:
    """The wheel has every compiled module and the library of its package besides the source, and is named for its platform."""
    names = set(zipfile.ZipFile(wheel).namelist())
    libraries = {path.as_posix() for path in runpy.run_path(str(ROOT / "server/hatch_build.py"))["library_paths"](Path())}
    assert len(libraries) > 20
    assert libraries == {name for name in names if name.endswith(".so")}
    assert {"gavel_rules/decider.py", "gavel_server/log/redis/append.lua", "gavel_rules/sets/refunds.yaml"} <= names
    top_level = {PurePosixPath(name).parts[0] for name in names}
    packages = {name for name in top_level if PurePosixPath(name).suffix not in (".dist-info", ".data")}
    assert {"gavel", "gavel_rules", "gavel_server", "gavel_client"} == packages
    assert f"-cp{sys.version_info.major}{sys.version_info.minor}-" in wheel.name
    assert not wheel.name.endswith("-any.whl")


def test_the_native_front_is_in_the_wheel(wheel: Path) -> None:
    """The native front, if it was built, is the only program that the wheel installs besides `gavel`."""
    scripts = {name: info for info in zipfile.ZipFile(wheel).infolist() if ".data/" in (name := info.filename)}
    expected = ["gavel-front"] if FRONTS else []
    assert expected == [PurePosixPath(name).name for name in scripts]
    for name, info in scripts.items():
        assert "scripts" == PurePosixPath(name).parts[1]
        assert native_program().read_bytes() == zipfile.ZipFile(wheel).read(info)
        assert info.external_attr >> 16 & 0o111, "it could not be run"


def test_installed_wheel_runs_compiled(wheel: Path, tmp_path: Path) -> None:
    """An unpacked wheel reports the compiled build, and its core works."""
    zipfile.ZipFile(wheel).extractall(tmp_path)
    program = [
        "from gavel_server.process.build import build",
        "from gavel_rules import decider",
        "from gavel_rules.authoring import shipped_rule_sets",
        "from gavel_rules.language import rule_set",
        "print(decider.__file__, build(), rule_set.compile_rule_set(shipped_rule_sets.shipped_rule_set('refunds')).policy_id)",
    ]
    command = [sys.executable, "-c", "\n".join(program)]
    output = subprocess.run(
        command, cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)}, check=True, capture_output=True, text=True, timeout=60
    ).stdout
    where, *rest = output.split()
    assert Path(where).parent == tmp_path / "gavel_rules"
    assert ["compiled", "refunds"] == rest
