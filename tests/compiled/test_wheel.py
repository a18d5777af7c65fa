"""The wheels of `make wheels` contain the compiled libraries, and an installation from them runs them."""

from __future__ import annotations

import runpy
import subprocess
import sys
import zipfile
from pathlib import Path, PurePosixPath

import pytest
from gavel_server.front.programs import native_program

from tests.support.fronts import FRONTS
from tests.support.paths import ROOT


@pytest.mark.parametrize(("distribution", "package"), [("gavel_rules", "gavel_rules"), ("gavel_arbiter", "gavel_server")])
def test_the_libraries_are_in_the_wheel(wheels: dict[str, Path], distribution: str, package: str) -> None:
    """A wheel has every compiled module and the library of its package besides the source, and is named for its platform."""
    wheel = wheels[distribution]
    names = set(zipfile.ZipFile(wheel).namelist())
    libraries = {path.as_posix() for path in runpy.run_path(str(ROOT / "server/hatch_build.py"))["library_paths"](Path())}
    expected = {name for name in libraries if name.startswith(f"{package}/")}
    assert len(expected) > 20
    assert expected == {name for name in names if name.endswith(".so") and "durable_rules_engine" not in name}
    top_level = {PurePosixPath(name).parts[0] for name in names}
    assert [package] == [name for name in top_level if PurePosixPath(name).suffix not in (".dist-info", ".data")]
    assert f"-cp{sys.version_info.major}{sys.version_info.minor}-" in wheel.name
    assert not wheel.name.endswith("-any.whl")


def test_the_native_front_is_in_the_wheel(wheels: dict[str, Path]) -> None:
    """The native front, if it was built, is the only program that the wheels install besides `gavel`."""
    wheel = wheels["gavel_arbiter"]
    scripts = {name: info for info in zipfile.ZipFile(wheel).infolist() if ".data/" in (name := info.filename)}
    expected = ["gavel-front"] if FRONTS else []
    assert expected == [PurePosixPath(name).name for name in scripts]
    for name, info in scripts.items():
        assert "scripts" == PurePosixPath(name).parts[1]
        assert native_program().read_bytes() == zipfile.ZipFile(wheel).read(info)
        assert info.external_attr >> 16 & 0o111, "it could not be run"


def test_installed_wheels_run_compiled(wheels: dict[str, Path], tmp_path: Path) -> None:
    """Unpacked wheels report the compiled build, and their core works."""
    for wheel in wheels.values():
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


def test_libraries_of_another_build_are_refused(wheels: dict[str, Path], tmp_path: Path) -> None:
    """A compiled server does not start with rules of another build, whose C functions may differ."""
    for wheel in wheels.values():
        zipfile.ZipFile(wheel).extractall(tmp_path)
    (tmp_path / "gavel_rules/compiled-from").write_text("another build")
    command = [sys.executable, "-c", "import gavel_server"]
    process = subprocess.run(
        command, cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, timeout=60, check=False
    )
    assert 0 != process.returncode
    assert "gavel-arbiter and gavel-rules are of different builds; install both" in process.stderr
