"""The three distributions: the wheels' contents, their rule sets, the floors of its dependencies and the build of durable-rules."""

from __future__ import annotations

import importlib.metadata
import re
import runpy
import subprocess
import sys
import tomllib
import zipfile
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from gavel_rules.authoring.shipped_rule_sets import shipped_names, shipped_rule_set
from gavel_rules.language.engines.durable_rules import REMEDY
from gavel_server.process.build import VERSION
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.support.paths import ROOT

# Each distribution's folder, and the import names that it installs.
# The extras that exclude others. Their packages are pinned in a file of their own.
APART = {"crewai"}
DISTRIBUTIONS = {
    "gavel_client": ("client/python", {"gavel", "gavel_client"}),
    "gavel_rules": ("rules", {"gavel_rules"}),
    "gavel_arbiter": ("server", {"gavel_server"}),
}


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Gavel's wheels by distribution, built with the installed hatchling: no isolation, no network."""
    directory = tmp_path_factory.mktemp("wheels")
    for folder, _ in DISTRIBUTIONS.values():
        subprocess.run(
            [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(directory)],
            cwd=ROOT / folder,
            check=True,
            capture_output=True,
            timeout=60,
        )
    return {wheel.name.split("-")[0]: wheel for wheel in directory.glob("*.whl")}


def names_in(wheel: Path) -> set[str]:
    """Return the paths of the files in a wheel."""
    return set(zipfile.ZipFile(wheel).namelist())


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_top_level_names(wheels: dict[str, Path], distribution: str) -> None:
    """Each wheel installs its own import names only: nothing called server, rules, client or google."""
    top_level = {PurePosixPath(name).parts[0] for name in names_in(wheels[distribution])}
    (metadata,) = {name for name in top_level if name.endswith(".dist-info")}
    assert {*DISTRIBUTIONS[distribution][1], metadata} == top_level


def test_data_files(wheels: dict[str, Path]) -> None:
    """The wheels hold every file of the source packages, data files like append.lua included, every shipped rule set and the licence."""
    for distribution, (folder, packages) in DISTRIBUTIONS.items():
        names = names_in(wheels[distribution])
        expected = {
            path.relative_to(ROOT / folder).as_posix()
            for package in packages
            for path in (ROOT / folder / package).rglob("*")
            if path.is_file() and "__pycache__" not in path.parts
        }
        assert len(expected) > 20
        assert set() == expected - names
        assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)
    assert {f"gavel_rules/sets/{path.name}" for path in (ROOT / "rules/sets").iterdir()} <= names_in(wheels["gavel_rules"])
    assert {"gavel/v1/decision_pb2.py", "gavel/py.typed"} <= names_in(wheels["gavel_client"])
    assert {"gavel_server/log/redis/append.lua", "gavel_server/log/postgresql/schema.sql"} <= names_in(wheels["gavel_arbiter"])


def test_only_the_rules_are_for_one_platform(wheels: dict[str, Path]) -> None:
    """The client is pure Python and for every version of it; the wheel of the rules is for one platform, because it has the engine."""
    assert wheels["gavel_client"].name.endswith("-py3-none-any.whl")
    assert not wheels["gavel_rules"].name.endswith("-any.whl")


def test_the_engine_is_in_the_wheel(wheels: dict[str, Path], tmp_path: Path) -> None:
    """An unpacked wheel uses the engine that it brings, even if another one is installed."""
    for wheel in wheels.values():
        zipfile.ZipFile(wheel).extractall(tmp_path)
    program = "from gavel_rules.language.engines.durable_rules import library; print(library.__file__)"
    output = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path)},
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    ).stdout
    assert tmp_path / "gavel_rules/language/engines" == Path(output.strip()).parent
    assert (tmp_path / "gavel_rules/language/engines/durable_rules_engine.LICENSE").read_text(encoding="utf-8").strip()


def test_shipped_rule_sets_of_the_tree() -> None:
    """In the tree, a shipped rule set is the document in rules/sets; the error for an unknown name lists the known ones."""
    assert ("data-access", "infrastructure-change", "outbound-communication", "payments", "refund-budgets", "refunds") == shipped_names()
    for name in shipped_names():
        assert (ROOT / f"rules/sets/{name}.yaml").read_text(encoding="utf-8") == shipped_rule_set(name)
    with pytest.raises(LookupError, match="refunds"):
        shipped_rule_set("absent")


def test_shipped_rule_sets_of_the_wheel(wheels: dict[str, Path], tmp_path: Path) -> None:
    """In an unpacked wheel, a shipped rule set is the same document as in the tree."""
    zipfile.ZipFile(wheels["gavel_rules"]).extractall(tmp_path)
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


def test_folders_of_compiled_folders_are_compiled() -> None:
    """A module that becomes a folder stays compiled: below a compiled folder, every folder of modules is named in the list."""
    builder = runpy.run_path(str(ROOT / "server/hatch_build.py"))
    for package, patterns in builder["COMPILED"].items():
        whole = {Path(pattern).parent for pattern in patterns if pattern.endswith("/*")}
        below = {path.parent.relative_to(ROOT / package) for folder in whole for path in (ROOT / package / folder).glob("*/*.py")}
        missing = below - {Path(pattern).parent for pattern in patterns}
        assert set() == missing, f"name {sorted(map(str, missing))} in COMPILED of server/hatch_build.py"


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


def project_of(distribution: str) -> dict[str, Any]:
    """Return the project table of a distribution's pyproject.toml."""
    project: dict[str, Any] = tomllib.loads((ROOT / DISTRIBUTIONS[distribution][0] / "pyproject.toml").read_text(encoding="utf-8"))[
        "project"
    ]
    return project


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_dependency_floors(distribution: str) -> None:
    """No distribution admits a version of grpcio, its companions or protobuf that is too old for the generated code."""
    floors = {
        requirement.name: Version(specifier.version)
        for requirement in map(Requirement, project_of(distribution)["dependencies"])
        for specifier in requirement.specifier
        if specifier.operator == ">="
    }
    required = required_by_generated_code()
    companions = ("grpcio-health-checking", "grpcio-reflection", "grpcio-status")
    expected = {**required, **dict.fromkeys(companions, required["grpcio"])}
    assert {} == {name: f"{floors[name]} < {version}" for name, version in expected.items() if name in floors and floors[name] < version}


def test_client_floors() -> None:
    """The client's floors of grpcio and protobuf are exactly what the generated code needs, so that it fits into old environments."""
    requirements = {requirement.name: requirement for requirement in map(Requirement, project_of("gavel_client")["dependencies"])}
    required = required_by_generated_code()
    assert {name: SpecifierSet(f">={version}") for name, version in required.items()} == {
        name: requirements[name].specifier for name in required
    }


def test_one_version() -> None:
    """The three distributions have the version that the server reports, and require each other in exactly this version."""
    for distribution in DISTRIBUTIONS:
        project = project_of(distribution)
        assert VERSION == project["version"]
        own = [requirement for requirement in map(Requirement, project["dependencies"]) if requirement.name.startswith("gavel")]
        assert {f"=={VERSION}"} | {str(requirement.specifier) for requirement in own} == {f"=={VERSION}"}


def declared() -> list[Requirement]:
    """Return every requirement of the distributions, of their extras except APART, and of developers; none between the distributions."""
    lines = list(tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["dependency-groups"]["dev"])
    for distribution in DISTRIBUTIONS:
        project = project_of(distribution)
        lines += project["dependencies"]
        lines += [line for extra, of_extra in project.get("optional-dependencies", {}).items() for line in of_extra if extra not in APART]
    return [one for one in map(Requirement, lines) if not one.name.startswith("gavel")]


def pins_in(path: str) -> list[Requirement]:
    """Return the pins in a file of locked requirements, with their markers."""
    lines = (ROOT / path).read_text(encoding="utf-8").splitlines()
    return [Requirement(line.removesuffix("\\").strip()) for line in lines if re.match(r"[a-z0-9]", line)]


def pins() -> dict[str, Requirement]:
    """Return the pins of requirements.lock by name, with their markers."""
    requirements = pins_in("requirements.lock")
    assert len(requirements) == len({one.name for one in requirements})
    return {one.name: one for one in requirements}


def pinned_version(name: str) -> Version:
    """Return the version at which requirements.lock pins a package."""
    (specifier,) = pins()[canonicalize_name(name)].specifier
    assert "==" == specifier.operator
    return Version(specifier.version)


def test_lock_satisfies_the_floors() -> None:
    """Every requirement of the distributions, their extras and developers admits the version that requirements.lock pins."""
    requirements = [one for one in declared() if one.name != "async-timeout"]  # for Python 3.10, which is not developed on
    assert len(requirements) > 50
    assert [] == [str(one) for one in requirements if pinned_version(one.name) not in one.specifier]


def test_lock_of_crewai_satisfies_the_floors() -> None:
    """The packages with which the adapter of CrewAI is tested are what the client with its extra requires."""
    project = project_of("gavel_client")
    required = [Requirement(line) for line in (*project["dependencies"], *project["optional-dependencies"]["crewai"])]
    versions = {one.name: str(one.specifier).removeprefix("==") for one in pins_in("tests/e2e/adapters/crewai/requirements.txt")}
    here = [one for one in required if one.marker is None or one.marker.evaluate()]
    assert [] == [str(one) for one in here if versions[one.name] not in one.specifier]


def test_lock_is_complete() -> None:
    """The lock file pins all that the requirements lead to at the versions that are installed, and nothing else."""
    needed: dict[str, Version] = {}
    waiting = [(one.name, "") for one in declared() if one.marker is None or one.marker.evaluate()]
    waiting += [(one.name, extra) for one in declared() for extra in one.extras]
    visited = set(waiting)
    while waiting:
        name, extra = waiting.pop()
        package = importlib.metadata.distribution(name)
        needed[canonicalize_name(name)] = Version(package.version)
        for required in map(Requirement, package.requires or ()):
            if required.marker is None or required.marker.evaluate({"extra": extra}):
                further = {(required.name, one) for one in ("", *required.extras)} - visited
                visited |= further
                waiting += further
    here = {name for name, one in pins().items() if one.marker is None or one.marker.evaluate()}
    assert {*needed} == here, "run make lock, and then make setup"
    assert {} == {name: version for name, version in needed.items() if pinned_version(name) != version}


def test_engine_of_the_wheels_is_the_locked_one() -> None:
    """Wheels built outside of the locked environment get the engine of the same version and hash."""
    builder = runpy.run_path(str(ROOT / "server/hatch_build.py"))
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    assert f"{builder['ENGINE_REQUIREMENT']} \\\n    --hash=sha256:{builder['ENGINE_SHA256']}\n" in lock
    assert builder["ENGINE_REQUIREMENT"] in REMEDY
    assert builder["ENGINE_FLAGS"] in REMEDY
