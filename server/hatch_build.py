"""The compiled build: which modules mypyc compiles, and how an importable tree or a wheel of them is built.

The source stays ordinary Python: every compiled module also runs interpreted, with the same events and the same bytes, and the tests run on
both (`make test-compiled`). Compiled are the modules that a command passes through on its way into the log, and those that a replay calls
for every event. A module that mypyc cannot compile without a rewrite stays interpreted (docs/decisions/0019-compiled-core.md,
docs/performance.md).

There are two users. `make compiled` runs this file as a program and gets an importable tree. hatchling finds the hook below by
rules/pyproject.toml and server/pyproject.toml. It puts the same libraries into the wheels if GAVEL_COMPILE is "true", as in `make wheels`.
Neither writes into the source tree, where an old library would hide newer source.

The hook also puts the Rete engine into the wheel of the rules, always: durable-rules ships as source, and a plain `pip install` would
build it without the flags on which its hashes rely (gavel_rules/language/engines/durable_rules.py).
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from collections.abc import Iterable, Sequence
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path
from typing import Any, Final

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT: Final = Path(__file__).resolve().parents[1]
PACKAGES: Final = ("proto/gen/python/gavel", "rules/gavel_rules", "server/gavel_server", "client/python/gavel_client")
# The compiled modules of each package, as globs.
COMPILED: Final = {
    "rules/gavel_rules": (
        "*",
        "arbitration/*",
        "authoring/simulate",
        "codec/*",
        "events/*",
        "execution/*",
        "identity/*",
        "language/*",
        "language/cel/vocabulary",
        "language/counters/counter",
        "language/counters/retry_after",
        "language/document/params_schema",
        "language/engines/*",
        "replay/*",
        "state/*",
        "state/snapshot/*",
        "state/transitions/*",
    ),
    "server/gavel_server": (
        "bus/*",
        "bus/answers/*",
        "bus/batch/*",
        "bus/idempotency/*",
        "intake/*",
        "compile/precompiler",
        "history/snapshot_comparison",
        "history/verification",
        "log/entries",
        "log/tail",
        "log/redis/resp",
        "fairness/callers",
        "fairness/fair_queue",
        "fairness/quotas",
        "front/authentication",
        "front/backend",
        "front/frames",
        "front/link",
        "identity/handles",
        "process/clock",
        "process/time_slice",
        "rpc/call_context",
        "rpc/decoding",
        "rpc/framing",
        "rpc/callback_methods",
        "rpc/identity/access",
        "rpc/wire",
        "services/arbitration",
        "services/batches/answers",
        "services/preflight",
    ),
}
# Modules that the globs match and that stay interpreted.
INTERPRETED: Final = {
    "rules/gavel_rules": {
        # Constants alone.
        "limits",
        # Texts of messages, off the hot path.
        "text",
        # The shape of documents of grants.
        "identity/models",
        # These compile or check rule sets; no command waits for them.
        "language/action_checker",
        "language/shared_action_settings",
        "language/compensation",
        "language/document_warnings",
        "language/explanation",
        "language/expression_checker",
        "language/rule_set_cache",
        # Loads a library when it is imported.
        "language/engines/durable_rules",
    },
    "server/gavel_server": {
        # These wait for the log, the clock or other tasks, and compute little.
        "bus/answers/confirmed_answers",
        "bus/answers/contest_waiters",
        "bus/batch/pending_append",
        "bus/checkpoint",
        "bus/counter_filling",
        "bus/registry",
        "bus/snapshot_writer",
        "bus/snapshots",
        "bus/idempotency/repeated_requests",
        "bus/watcher",
        # Only if something is measured.
        "bus/batch/observation",
        # Requests of people, which are rare.
        "intake/human_commands",
    },
}
# One library for each package, `machine_code__mypyc`; calls within it are C calls.
LIBRARY: Final = "machine_code"
# -O3 was measured to be no faster, and takes longer to build.
OPTIMIZATION: Final = "2"
# Names the build in a compiled tree, and in the packages of a compiled wheel: libraries of different builds must not be mixed.
STAMP: Final = "compiled-from"
COMPILE: Final = "GAVEL_COMPILE"
# The package whose compiled modules and data a distribution's wheel gets.
PACKAGE_OF: Final = {"gavel-rules": "gavel_rules", "gavel-arbiter": "gavel_server"}
# The Rete engine, and the command that builds it. Its sha256 is the one in requirements.lock.
ENGINE: Final = "durable_rules_engine"
ENGINE_REQUIREMENT: Final = "durable-rules==2.0.28"
ENGINE_SHA256: Final = "053b26f5e48d312d4fa27995243f954671be6eece477f150c059c364eb4d7d61"
ENGINE_FLAGS: Final = "-O2 -fwrapv -frecord-gcc-switches"
ENGINE_FOLDER: Final = "gavel_rules/language/engines"
# gavel_server/front/programs.py looks for the front there.
NATIVE_FRONT: Final = Path(sysconfig.get_path("scripts")) / "gavel-front"


class CompileError(Exception):
    """The modules cannot be compiled; the message says why."""


def _modules(package: str) -> list[str]:
    """Return a package's compiled modules, as sorted paths without a suffix. Raises CompileError for a stale glob or name."""
    matched: set[str] = set()
    for pattern in COMPILED[package]:
        matches = {path.relative_to(ROOT / package).with_suffix("").as_posix() for path in (ROOT / package).glob(f"{pattern}.py")}
        if not matches:
            raise CompileError(f"no module of {package} matches {pattern}; correct COMPILED in {Path(__file__).name}")
        matched |= matches
    stale = INTERPRETED[package] - matched
    if stale:
        raise CompileError(f"{package} has no module {', '.join(sorted(stale))}; correct INTERPRETED in {Path(__file__).name}")
    return sorted(module for module in matched - INTERPRETED[package] if not module.endswith("__init__"))


def module_names() -> list[str]:
    """Return the dotted names of the compiled modules."""
    return [f"{Path(package).name}.{module.replace('/', '.')}" for package in COMPILED for module in _modules(package)]


def library_paths(directory: Path) -> set[Path]:
    """Return the paths that the libraries of a complete build have below a directory."""
    names = [*module_names(), *(f"{Path(package).name}.{LIBRARY}__mypyc" for package in COMPILED)]
    return {directory / (name.replace(".", "/") + EXTENSION_SUFFIXES[0]) for name in names}


def digest() -> str:
    """Return the SHA-256 of a compiled tree's inputs: sources, this file, the interpreter and the compiler."""
    content = hashlib.sha256(f"{sys.version}\n{version('mypy')}\n".encode())
    for path in sorted([Path(__file__), ROOT / "pyproject.toml", *(file for package in PACKAGES for file in _files(ROOT / package))]):
        content.update(f"{path.relative_to(ROOT)}\n{path.stat().st_size}\n".encode() + path.read_bytes())
    return content.hexdigest()


def is_current(tree: Path) -> bool:
    """Return whether a compiled tree was built from the present source."""
    stamp = tree / STAMP
    return stamp.is_file() and digest() == stamp.read_text()


def build_libraries(work: Path) -> Path:
    """Compile the modules and return the directory of the libraries, laid out as packages. Raises CompileError.

    Results that `work` holds from an earlier build are used again: all of them if no source has changed.
    """
    stamp = work / "libraries-of"
    current = digest()
    if stamp.is_file() and stamp.read_text() == current:
        return work / "libraries"
    stamp.unlink(missing_ok=True)
    # In a process of its own, since setuptools changes the state of the whole interpreter.
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
    stamp.write_text(current)
    return work / "libraries"


def build_tree(tree: Path, work: Path) -> None:
    """Build an importable tree: the packages, with the libraries beside the source. It replaces `tree` as a whole or not at all."""
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


class WheelHook(BuildHookInterface[Any]):
    """Puts the engine into the wheel of the rules; into compiled wheels the libraries, and the native front if `make front` has built it.

    An editable install stays interpreted, and uses the engine that `make setup` has installed.
    """

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build, and name the files for the wheel. hatchling calls this first; `version` is the kind of wheel."""
        if version != "standard":
            return
        package = PACKAGE_OF[self.metadata.core.name]
        included: dict[str, str] = build_data["force_include"]
        if package == "gavel_rules":
            included.update(_engine_files(Path(self.directory)))
            build_data.update(pure_python=False, infer_tag=True)
        if os.environ.get(COMPILE) != "true":
            return
        libraries = build_libraries(ROOT / "build/compiling")
        included.update({str(path): path.relative_to(libraries).as_posix() for path in _files(libraries / package)})
        if package == "gavel_server" and NATIVE_FRONT.is_file():
            build_data["shared_scripts"][str(NATIVE_FRONT)] = NATIVE_FRONT.name
        stamp = ROOT / "build/compiling" / STAMP
        stamp.write_text(digest())
        included[str(stamp)] = f"{package}/{STAMP}"
        build_data.update(pure_python=False, infer_tag=True)


def _engine_files(directory: Path) -> dict[str, str]:
    """Return the engine's library and licence, by their paths in the wheel.

    They are those of this environment, if its engine has the flags. An environment that pip made for the build has none: then the engine
    is built from its pinned source, below `directory`.
    """
    specification = importlib.util.find_spec(ENGINE)
    if specification is not None and specification.origin is not None and b"-fwrapv" in Path(specification.origin).read_bytes():
        try:
            licence = next(file for file in distribution("durable-rules").files or () if file.name.upper().startswith("LICENSE"))
        except (PackageNotFoundError, StopIteration):
            raise CompileError("the installed durable-rules has no licence file; install it again") from None
        return _engine_paths(Path(specification.origin), Path(str(licence.locate())))
    unpacked = directory / "durable-rules"
    with tempfile.TemporaryDirectory() as work:
        requirement = Path(work, "requirements.txt")
        requirement.write_text(f"{ENGINE_REQUIREMENT} --hash=sha256:{ENGINE_SHA256}\n")
        pip = [
            sys.executable,
            "-m",
            "pip",
            "--quiet",
            "--disable-pip-version-check",
            "wheel",
            "--no-deps",
            "--no-cache-dir",
            "--use-pep517",
        ]
        built = subprocess.run(  # noqa: S603  # pip itself, with arguments of this file
            [*pip, "--no-build-isolation", "--require-hashes", "--requirement", str(requirement), "--wheel-dir", work],
            env={**os.environ, "CPPFLAGS": ENGINE_FLAGS},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if built.returncode:
            raise CompileError(f"{ENGINE_REQUIREMENT} cannot be built:\n{built.stdout}")
        (wheel,) = Path(work).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(unpacked)
    (library,) = unpacked.glob(f"{ENGINE}*")
    (licence_file,) = unpacked.rglob("LICENSE*")
    return _engine_paths(library, licence_file)


def _engine_paths(library: Path, licence: Path) -> dict[str, str]:
    return {str(library): f"{ENGINE_FOLDER}/{library.name}", str(licence): f"{ENGINE_FOLDER}/{ENGINE}.LICENSE"}


def _files(directory: Path) -> Iterable[Path]:
    """Yield all files below a directory, through symbolic links, without the interpreter's caches."""
    for parent, directories, names in os.walk(directory, followlinks=True):
        directories[:] = [name for name in directories if name != "__pycache__"]
        yield from (Path(parent, name) for name in names)


def _compile(work: Path) -> None:
    """Run mypyc and the C compiler, in this process."""
    from mypyc.build import mypycify
    from setuptools import setup

    groups: list[tuple[list[str], str | None]] = [
        ([f"{package}/{module}.py" for module in _modules(package)], f"{Path(package).name}.{LIBRARY}") for package in COMPILED
    ]
    types = work / "types"
    # mypyc 2.4 cannot generate coroutines from the types that an earlier run has stored.
    shutil.rmtree(types, ignore_errors=True)
    options = ["--config-file", "pyproject.toml", "--cache-dir", str(types)]
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
        path.unlink()  # left from an earlier list of modules


def main(arguments: Sequence[str] | None = None) -> int:
    """Build the compiled tree unless it is current. Return 0, or 1 if it cannot be compiled."""
    parser = argparse.ArgumentParser(description="Build Gavel with its hot path compiled.")
    parser.add_argument("--libraries", type=Path, metavar="WORK", help=argparse.SUPPRESS)
    parser.add_argument("--tree", type=Path, default=ROOT / "build/compiled", help="where to build the tree (default: build/compiled)")
    parser.add_argument("--check", action="store_true", help="build nothing; fail unless the tree is current")
    options = parser.parse_args(arguments)
    if options.libraries is not None:
        _compile(options.libraries.resolve())
        return 0
    if is_current(options.tree):
        return 0
    if options.check:
        print(f"gavel: {options.tree} was not built from this source; run make compiled", file=sys.stderr)
        return 1
    print("gavel: compiling the hot path; this takes some minutes", file=sys.stderr)
    try:
        build_tree(options.tree.resolve(), ROOT / "build/compiling")
    except CompileError as error:
        print(f"gavel: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
