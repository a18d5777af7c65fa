"""Gavel's hot path as machine code: what mypyc compiles, and how a tree or a wheel of it is built.

The source is ordinary Python and stays so: whatever runs compiled also runs interpreted, with the same events and the same bytes, and
the tests run on both (`make test-compiled`). What is compiled is the path of a command through the core and the planner; what compiles
rule sets, serves, reads and prints is not, for nothing waits for it. A module that mypyc cannot take as it is written is left out,
never bent.

Two users: `make compiled` (this file run as a program) builds an importable tree beside the source, and hatchling, which finds the
hook below by pyproject.toml, puts the same libraries into a wheel when HATCH_BUILD_HOOK_ENABLE_CUSTOM is set, as `make wheels` does.
Nothing is ever put into the source tree, where an old library would hide newer source.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Sequence
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT: Final = Path(__file__).resolve().parents[1]
PACKAGES: Final = ("proto/gen/python/gavel", "rules/gavel_rules", "server/gavel_server", "client/python/gavel_client")
# Left out of these packages' hot path: `reasons`, which reads its own names; `limits`, which holds constants alone.
MODULES: Final = {
    "rules/gavel_rules": (
        "arbitration",
        "authoring/impact",
        "budget",
        "chain",
        "commands",
        "contest",
        "decider",
        "derivation",
        "emission",
        "endings",
        "errors",
        "events",
        "evidence",
        "execution",
        "fingerprint",
        "first_decisions",
        "governed",
        "grounds",
        "journal",
        "made",
        "language/case",
        "language/declarations",
        "language/feasibility",
        "language/lowering",
        "language/network",
        "language/reference",
        "language/ruleset",
        "language/schema",
        "language/subjects",
        "language/vocabulary",
        "outcomes",
        "pins",
        "projected_decisions",
        "projected_evidence",
        "projection",
        "proposed",
        "publication",
        "records",
        "replay",
        "serialized",
        "shadow",
        "stages",
        "tables",
        "values",
    ),
    "server/gavel_server": (
        "admission",
        "authority",
        "bus/gathering",
        "bus/idempotency",
        "bus/lookup",
        "bus/planning",
        "bus/preparation",
        "bus/queue",
        "framing",
        "identifiers",
        "log/entries",
        "log/packing",
        "services/answering",
    ),
}
# One library for each package, `machine_code__mypyc`; calls within it are C calls.
LIBRARY: Final = "machine_code"
# -O3 was measured to be no faster, and takes longer to build.
OPTIMIZATION: Final = "2"
STAMP: Final = "compiled-from"
# gavel_server/front/programs.py looks for it there.
NATIVE_FRONT: Final = Path(sysconfig.get_path("scripts")) / "gavel-front"


def module_names() -> list[str]:
    """The dotted names of what is compiled."""
    return [f"{Path(package).name}.{module.replace('/', '.')}" for package, modules in MODULES.items() for module in modules]


def library_paths(directory: Path) -> set[Path]:
    """Where the libraries of a whole build lie below a directory."""
    names = [*module_names(), *(f"{Path(package).name}.{LIBRARY}__mypyc" for package in MODULES)]
    return {directory / (name.replace(".", "/") + EXTENSION_SUFFIXES[0]) for name in names}


def digest() -> str:
    """Return a SHA-256 over everything that a compiled tree is made of: sources, this file, the interpreter and the compiler."""
    content = hashlib.sha256(f"{sys.version}\n{version('mypy')}\n".encode())
    for path in sorted([Path(__file__), ROOT / "pyproject.toml", *(file for package in PACKAGES for file in _files(ROOT / package))]):
        content.update(f"{path.relative_to(ROOT)}\n{path.stat().st_size}\n".encode() + path.read_bytes())
    return content.hexdigest()


def is_current(tree: Path) -> bool:
    """Return whether a compiled tree was built from the source as it is now."""
    stamp = tree / STAMP
    return stamp.is_file() and digest() == stamp.read_text()


class CompileError(Exception):
    """mypyc or the C compiler refused; the message is what they said."""


def build_libraries(work: Path) -> Path:
    """Compile the modules and return the directory of the libraries, laid out as packages. What `work` holds already is used again.

    Raises CompileError.
    """
    # In a process of its own: setuptools changes the state of the whole interpreter.
    compiled = subprocess.run(  # noqa: S603  # this very file
        [sys.executable, __file__, "--libraries", str(work)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if compiled.returncode:
        raise CompileError(f"the hot path cannot be compiled:\n{compiled.stdout}")
    return work / "libraries"


def build_tree(tree: Path, work: Path) -> None:
    """Build an importable tree: the packages, with the libraries beside the source. It is in place as a whole or not at all."""
    stamp = digest()
    libraries = build_libraries(work)
    fresh = tree.with_name(f"{tree.name}.new")
    shutil.rmtree(fresh, ignore_errors=True)
    for package in PACKAGES:
        shutil.copytree(ROOT / package, fresh / Path(package).name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(libraries, fresh, dirs_exist_ok=True)
    (fresh / STAMP).write_text(stamp)
    shutil.rmtree(tree, ignore_errors=True)
    fresh.rename(tree)


class CompiledBuildHook(BuildHookInterface[Any]):
    """Puts the libraries into a wheel, and the native front, where `make front` has made it. An editable install stays interpreted."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called by hatchling before it gathers the files; `version` says which kind of wheel."""
        if version != "standard":
            return
        libraries = build_libraries(ROOT / "build/compiling")
        for path in _files(libraries):
            build_data["force_include"][str(path)] = path.relative_to(libraries).as_posix()
        if NATIVE_FRONT.is_file():
            build_data["shared_scripts"][str(NATIVE_FRONT)] = NATIVE_FRONT.name
        build_data["pure_python"] = False
        build_data["infer_tag"] = True


def _files(directory: Path) -> Iterable[Path]:
    """All files below, symbolic links followed, without what the interpreter leaves behind."""
    for parent, directories, names in os.walk(directory, followlinks=True):
        directories[:] = [name for name in directories if name != "__pycache__"]
        yield from (Path(parent, name) for name in names)


def _compile(work: Path) -> None:
    """Run mypyc and the C compiler, in this process."""
    from mypyc.build import mypycify
    from setuptools import setup

    groups: list[tuple[list[str], str | None]] = [
        ([f"{package}/{module}.py" for module in modules], f"{Path(package).name}.{LIBRARY}") for package, modules in MODULES.items()
    ]
    options = ["--config-file", "pyproject.toml", "--cache-dir", str(work / "types")]
    extensions = mypycify(
        [*options, *(path for paths, _ in groups for path in paths)],
        separate=groups,
        opt_level=OPTIMIZATION,
        debug_level="0",
        target_dir=str(work / "c"),
    )
    directories = ["--build-lib", str(work / "libraries"), "--build-temp", str(work / "objects")]
    setup(
        name="gavel-machine-code",
        packages=[],
        ext_modules=extensions,
        script_args=["--quiet", "build_ext", "--parallel", str(os.cpu_count() or 1), *directories],
    )
    for path in set(_files(work / "libraries")) - library_paths(work / "libraries"):
        path.unlink()  # of a module that is not compiled any more


def main(arguments: Sequence[str] | None = None) -> int:
    """Build the compiled tree unless it is there and current; 0, or 1 when the compilers refuse."""
    parser = argparse.ArgumentParser(description="Build Gavel with its hot path compiled.")
    parser.add_argument("--libraries", type=Path, metavar="WORK", help=argparse.SUPPRESS)
    parser.add_argument("--tree", type=Path, default=ROOT / "build/compiled", help="where to build the tree (default: build/compiled)")
    parser.add_argument("--check", action="store_true", help="build nothing; fail unless the tree is there and current")
    given = parser.parse_args(arguments)
    if given.libraries is not None:
        _compile(given.libraries.resolve())
        return 0
    if is_current(given.tree):
        return 0
    if given.check:
        print(f"gavel: {given.tree} is not built from this source; run make compiled", file=sys.stderr)
        return 1
    print("gavel: compiling the hot path; this takes about a minute", file=sys.stderr)
    try:
        build_tree(given.tree.resolve(), ROOT / "build/compiling")
    except CompileError as error:
        print(f"gavel: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
