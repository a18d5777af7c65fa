"""What is installed: the wheel's contents, the rule sets that ship in it, and how durable-rules was built."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path, PurePosixPath

import pytest
from gavel_rules.authoring.shipped import shipped_names, shipped_rule_set

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Gavel's wheel, built with the installed hatchling: no isolation, no network."""
    directory = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(directory)],
        cwd=ROOT,
        check=True,
        capture_output=True,
        timeout=60,
    )
    (built,) = directory.glob("gavel-*.whl")
    return built


@pytest.fixture(scope="module")
def names(wheel: Path) -> set[str]:
    """Paths of the files in the wheel."""
    return set(zipfile.ZipFile(wheel).namelist())


def test_top_level_names(names: set[str]) -> None:
    """The wheel brings exactly our four import names: nothing called server, rules, client or google."""
    top_level = {PurePosixPath(name).parts[0] for name in names}
    (metadata,) = {name for name in top_level if name.endswith(".dist-info")}
    assert {"gavel", "gavel_rules", "gavel_server", "gavel_client", metadata} == top_level


def test_data_files(names: set[str]) -> None:
    """Every file of the source packages and every shipped rule set is in the wheel, data files like append.lua included."""
    packages = [
        ROOT / "proto/gen/python/gavel",
        ROOT / "rules/gavel_rules",
        ROOT / "server/gavel_server",
        ROOT / "client/python/gavel_client",
    ]
    expected = {
        path.relative_to(package.parent).as_posix()
        for package in packages
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    expected |= {f"gavel_rules/sets/{path.name}" for path in (ROOT / "rules/sets").iterdir()}
    assert set() == expected - names
    assert {"gavel_rules/py.typed", "gavel_server/log/append.lua", "gavel_rules/sets/refunds.yaml"} <= names


def test_shipped_rule_sets_of_the_tree() -> None:
    """From the tree, a shipped rule set is the document in rules/sets; an unknown name says which there are."""
    assert ("data-access", "infrastructure-change", "outbound-communication", "payments", "refunds") == shipped_names()
    for name in shipped_names():
        assert (ROOT / f"rules/sets/{name}.yaml").read_text(encoding="utf-8") == shipped_rule_set(name)
    with pytest.raises(LookupError, match="refunds"):
        shipped_rule_set("absent")


def test_shipped_rule_sets_of_the_wheel(wheel: Path, tmp_path: Path) -> None:
    """From an unpacked wheel, away from the tree, a shipped rule set is the same document."""
    zipfile.ZipFile(wheel).extractall(tmp_path)
    read = subprocess.run(
        [
            sys.executable,
            "-c",
            "from gavel_rules.authoring import shipped; print(shipped.__file__); print(shipped.shipped_rule_set('refunds'), end='')",
        ],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path)},
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    ).stdout
    where, _, document = read.partition("\n")
    assert str(tmp_path / "gavel_rules/authoring/shipped.py") == where
    assert (ROOT / "rules/sets/refunds.yaml").read_text(encoding="utf-8") == document


def test_durable_rules_build_flags() -> None:
    """The Rete engine was compiled with optimisation and with defined signed overflow, as the Makefile orders."""
    specification = find_spec("durable_rules_engine")
    assert specification is not None
    assert specification.origin is not None
    library = Path(specification.origin).read_bytes()
    assert {b"-O2": True, b"-fwrapv": True} == {flag: flag in library for flag in (b"-O2", b"-fwrapv")}, "rebuild with make setup"
