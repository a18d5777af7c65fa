"""Builds the programs in other languages, with stubs that are generated from `proto/` now: the contract, and nothing else of Gavel.

The generators and libraries are pinned beside each program: `go.sum`, `package-lock.json`, `pom.xml`. protoc is the one of grpcio-tools,
and in Java the one that Maven fetches. Builds stand in `build/languages`, and the caches of each tool make the second one short.

A machine without a tool, or that cannot fetch what is pinned, skips the tests of that language, or fails them (`tests/support/missing.py`).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from tests.support.missing import report_missing
from tests.support.paths import ROOT

# Each process of the tests builds for itself.
BUILD: Final = ROOT / "build/languages" / os.environ.get("PYTEST_XDIST_WORKER", "main")
SOURCES: Final = Path(__file__).parent
# Only a hanging tool takes longer, on a machine with other load.
BUILD_SECONDS_MAX: Final = 600
Build = Callable[[], list[str]]
"""Builds a program and returns the command that runs it."""
# The prefix of the Go package that the contract names; the stubs become a part of the module of the tests' programs.
_GO_MODULE: Final = "github.com/gavel-dev/gavel"
# A short run gains nothing from the optimizing compiler of the JVM, which takes most of its time.
_JAVA_OPTIONS: Final = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
_MISSING_ARTIFACTS: Final = ("Could not transfer artifact", "Unknown host", "in offline mode", "Connection refused", "Connect timed out")


def build_go() -> Path:
    """Return the folder with the Go programs."""
    folder = _copy_sources("go")
    tool = str(ROOT / "server/front/tool")
    # The script that builds the native front finds or fetches Go for this too.
    available = _run([tool, "go", "mod", "download"], folder, {"REQUIRED": "1"})
    if available.returncode:
        report_missing("Go or its modules cannot be had", available.stdout)
    programs = folder / "bin"
    generators = ("google.golang.org/protobuf/cmd/protoc-gen-go", "google.golang.org/grpc/cmd/protoc-gen-go-grpc")
    _check(_run([tool, "go", "build", "-o", f"{programs}/", *generators], folder))
    for plugin in ("go", "go-grpc"):
        program = programs / f"protoc-gen-{plugin}"
        _generate(f"--plugin={program.name}={program}", f"--{plugin}_out={folder}", f"--{plugin}_opt=module={_GO_MODULE}")
    _check(_run([tool, "go", "vet", "./..."], folder))
    _check(_run([tool, "go", "build", "-o", f"{programs}/", "./executor", "./status"], folder))
    return programs


def build_go_module(sources: Path) -> Path:
    """Return the folder with the programs of a Go module that needs nothing of the contract; each is a folder of `sources`."""
    folder = _copy_sources(sources.parent.name, sources=sources)
    tool = str(ROOT / "server/front/tool")
    available = _run([tool, "go", "mod", "download"], folder, {"REQUIRED": "1"})
    if available.returncode:
        report_missing("Go or its modules cannot be had", available.stdout)
    _check(_run([tool, "go", "vet", "./..."], folder))
    _check(_run([tool, "go", "build", "-o", f"{folder / 'bin'}/", "./..."], folder))
    return folder / "bin"


def build_typescript() -> list[str]:
    """Return the command of the TypeScript program."""
    folder = _copy_sources("typescript", keep="node_modules")
    install_npm_packages(folder)
    (folder / "generated").mkdir()
    plugin = folder / "node_modules/.bin/protoc-gen-es"
    options = (f"--plugin={plugin.name}={plugin}", f"--es_out={folder / 'generated'}", "--es_opt=target=ts,import_extension=js")
    _generate(*options, with_google=True)
    _check(_run([str(folder / "node_modules/.bin/tsc")], folder))
    return ["node", str(folder / "out/status.js")]


def install_npm_packages(folder: Path) -> None:
    """Install what the package-lock.json of a folder pins, unless it is installed."""
    _need("node", "Node.js")
    _need("npm", "npm")
    lock, installed = folder / "package-lock.json", folder / "node_modules/.gavel-lock"
    if not installed.is_file() or installed.read_bytes() != lock.read_bytes():
        available = _run(["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts"], folder)
        if available.returncode:
            report_missing("the packages of package-lock.json cannot be had", available.stdout)
        installed.write_bytes(lock.read_bytes())


def build_java() -> list[str]:
    """Return the command of the Java program."""
    folder = _build_with_maven("java", f"-Dcontract={ROOT / 'proto'}")
    path = f"{folder / 'target/classes'}{os.pathsep}{(folder / 'target/classpath').read_text().strip()}"
    return ["java", *_JAVA_OPTIONS, "-cp", path, "dev.gavel.status.Main"]


def build_temporal_server() -> list[str]:
    """Return the command of Temporal's test server, without the port, its argument."""
    folder = _build_with_maven("temporal")
    return ["java", *_JAVA_OPTIONS, "-cp", (folder / "target/classpath").read_text().strip(), "io.temporal.testserver.TestServer"]


def _build_with_maven(name: str, *options: str) -> Path:
    """Compile the project in the folder `name`; return the folder with the result."""
    _need("javac", "a JDK")
    _need("mvn", "Maven")
    folder = _copy_sources(name)
    built = _run(["mvn", "-q", "-B", *options, "compile"], folder, {"MAVEN_OPTS": " ".join(_JAVA_OPTIONS)})
    if built.returncode and any(problem in built.stdout for problem in _MISSING_ARTIFACTS):
        report_missing("the artifacts of pom.xml cannot be had", built.stdout)
    _check(built)
    return folder


def _copy_sources(language: str, keep: str = "", sources: Path | None = None) -> Path:
    """Return a folder with nothing but the sources of a language, and what `keep` names from the build before."""
    folder = BUILD / language
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.iterdir():
        if path.name != keep:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    shutil.copytree(sources or SOURCES / language, folder, dirs_exist_ok=True)
    return folder


def _generate(*options: str, with_google: bool = False) -> None:
    """Run protoc on the contract; `with_google` includes the files of google.rpc, which have no package in the language."""
    files = sorted((ROOT / "proto/gavel/v1").glob("*.proto"))
    files += sorted((ROOT / "proto/google/rpc").glob("*.proto")) if with_google else []
    _check(_run([sys.executable, "-m", "grpc_tools.protoc", "-Iproto", *options, *(str(file.relative_to(ROOT)) for file in files)], ROOT))


def _run(command: list[str], folder: Path, environment: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **(environment or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=BUILD_SECONDS_MAX,
    )


def _check(finished: subprocess.CompletedProcess[str]) -> None:
    assert 0 == finished.returncode, f"{' '.join(finished.args)}\n{finished.stdout}"


def _need(program: str, name: str) -> None:
    if shutil.which(program) is None:
        report_missing(f"{name} is not installed: {program} is not on PATH")
