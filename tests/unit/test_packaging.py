"""The package: the wheel's contents, its rule sets, the floors of its dependencies and the build of durable-rules."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
import tomllib
import zipfile
from importlib.util import find_spec
from pathlib import Path, PurePosixPath

import pytest
from gavel_rules.authoring.shipped_rule_sets import shipped_names, shipped_rule_set
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.support.paths import ROOT


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
    """The wheel installs exactly four import names: nothing called server, rules, client or google."""
    top_level = {PurePosixPath(name).parts[0] for name in names}
    (metadata,) = {name for name in top_level if name.endswith(".dist-info")}
    assert {"gavel", "gavel_rules", "gavel_server", "gavel_client", metadata} == top_level


def test_data_files(names: set[str]) -> None:
    """The wheel holds every file of the source packages, data files like append.lua included, and every shipped rule set."""
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
    assert {"gavel_rules/py.typed", "gavel_server/log/redis/append.lua", "gavel_rules/sets/refunds.yaml"} <= names


def test_shipped_rule_sets_of_the_tree() -> None:
    """In the tree, a shipped rule set is the document in rules/sets; the error for an unknown name lists the known ones."""
    assert ("data-access", "infrastructure-change", "outbound-communication", "payments", "refunds") == shipped_names()
    for name in shipped_names():
        assert (ROOT / f"rules/sets/{name}.yaml").read_text(encoding="utf-8") == shipped_rule_set(name)
    with pytest.raises(LookupError, match="refunds"):
        shipped_rule_set("absent")


def test_shipped_rule_sets_of_the_wheel(wheel: Path, tmp_path: Path) -> None:
    """In an unpacked wheel, a shipped rule set is the same document as in the tree."""
    zipfile.ZipFile(wheel).extractall(tmp_path)
    read = subprocess.run(
        [
            sys.executable,
            "-c",
            "from gavel_rules.authoring import shipped_rule_sets as shipped\n"
            "print(shipped.__file__)\n"
            "print(shipped.shipped_rule_set('refunds'), end='')",
        ],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path)},
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    ).stdout
    where, _, document = read.partition("\n")
    assert str(tmp_path / "gavel_rules/authoring/shipped_rule_sets.py") == where
    assert (ROOT / "rules/sets/refunds.yaml").read_text(encoding="utf-8") == document


def test_the_list_of_compiled_modules() -> None:
    """Each glob and each exception of the compiled build names modules that exist, and the decider is compiled."""
    assert "gavel_rules.decider" in runpy.run_path(str(ROOT / "server/hatch_build.py"))["module_names"]()


def test_durable_rules_build_flags() -> None:
    """The Rete engine is compiled with optimisation and with defined signed overflow, as the Makefile sets."""
    specification = find_spec("durable_rules_engine")
    assert specification is not None
    assert specification.origin is not None
    library = Path(specification.origin).read_bytes()
    assert {b"-O2": True, b"-fwrapv": True} == {flag: flag in library for flag in (b"-O2", b"-fwrapv")}, "rebuild with make setup"


def required_by_generated_code() -> dict[str, Version]:
    """Return the versions that the newest of the generated modules demand when they are imported."""
    generated = ROOT / "proto/gen/python/gavel/v1"
    grpc = [
        Version(match[1])
        for path in generated.glob("*_pb2_grpc.py")
        for match in re.finditer(r"^GRPC_GENERATED_VERSION = '([\d.]+)'", path.read_text(encoding="utf-8"), re.MULTILINE)
    ]
    protobuf = [
        Version(".".join(match.groups()))
        for path in generated.glob("*_pb2.py")
        for match in re.finditer(
            r"ValidateProtobufRuntimeVersion\(\s*_runtime_version\.Domain\.PUBLIC,\s*(\d+),\s*(\d+),\s*(\d+),",
            path.read_text(encoding="utf-8"),
        )
    ]
    assert (len(list(generated.glob("*_pb2_grpc.py"))), len(list(generated.glob("*_pb2.py")))) == (len(grpc), len(protobuf))
    return {"grpcio": max(grpc), "protobuf": max(protobuf)}


def test_dependency_floors() -> None:
    """pyproject.toml admits no version of grpcio, its companions or protobuf that is too old for the generated code."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    requirements = [Requirement(line) for line in project["dependencies"]]
    floors = {
        requirement.name: Version(specifier.version)
        for requirement in requirements
        for specifier in requirement.specifier
        if specifier.operator == ">="
    }
    required = required_by_generated_code()
    companions = ("grpcio-health-checking", "grpcio-reflection", "grpcio-status")
    expected = {**required, **dict.fromkeys(companions, required["grpcio"])}
    assert {} == {name: f"{floors[name]} < {version}" for name, version in expected.items() if floors[name] < version}


def test_lock_satisfies_the_floors() -> None:
    """Every requirement of pyproject.toml admits the version that requirements.lock pins."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()
    pins = {match[1]: Version(match[2]) for line in lines if (match := re.match(r"([a-z0-9.-]+)==(\S+)", line))}
    requirements = [Requirement(line) for line in (*project["dependencies"], *project["optional-dependencies"]["dev"])]
    assert [] == [
        str(requirement) for requirement in requirements if pins[canonicalize_name(requirement.name)] not in requirement.specifier
    ]
