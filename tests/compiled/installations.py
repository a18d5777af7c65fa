"""Fresh virtual environments, into which pip installs Gavel's wheels and the packages that they require, and nothing else."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.paths import ROOT

DISTRIBUTIONS: Final = ("client/python", "rules", "server")
READY: Final = "gavel: ready on "
# A slow network takes this long; only a hanging one takes longer.
INSTALL_SECONDS_MAX: Final = 400.0
RUN_SECONDS_MAX: Final = 200.0


@dataclass(frozen=True)
class Installation:
    """A virtual environment with packages of its own, and none of the tests'."""

    directory: Path

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.directory / "bin/python"

    def environment(self) -> dict[str, str]:
        """The variables of its programs: no compiler, and no packages but its own."""
        variables = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV", "GAVEL_", "OTEL_"))}
        return {**variables, "PATH": str(self.directory / "bin"), "CC": "/bin/false"}

    def install(self, requirements: Sequence[str], constraints: Sequence[str], *further: str) -> None:
        """Install from wheels alone. `constraints` are "name==version"."""
        file = self.directory / "constraints.txt"
        file.write_text("\n".join(constraints))
        # The pip of the tests, which spares the environment one of its own.
        pip = [
            sys.executable,
            "-m",
            "pip",
            "--python",
            str(self.python),
            "--quiet",
            "--disable-pip-version-check",
            "install",
            "--no-compile",
        ]
        installed = subprocess.run(
            [*pip, "--only-binary", ":all:", "--constraint", str(file), *further, *requirements],
            env=self.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=INSTALL_SECONDS_MAX,
            check=False,
        )
        assert 0 == installed.returncode, installed.stdout
        assert "yanked" not in installed.stdout, installed.stdout

    def packages(self) -> dict[str, str]:
        """The versions of the installed packages, by name."""
        program = (
            "import importlib.metadata as m, json; print(json.dumps({one.metadata['Name']: one.version for one in m.distributions()}))"
        )
        versions: dict[str, str] = json.loads(self.run(str(self.python), "-c", program))
        return {canonicalize_name(name): version for name, version in versions.items()}

    def gavel(self, *arguments: str | Path) -> str:
        """Run its command `gavel` and return what it prints."""
        return self.run(str(self.directory / "bin/gavel"), *map(str, arguments))

    def run(self, *command: str) -> str:
        """Run a program in it and return what it prints."""
        done = subprocess.run(
            command, cwd=self.directory, env=self.environment(), capture_output=True, text=True, timeout=RUN_SECONDS_MAX, check=False
        )
        assert 0 == done.returncode, done.stdout + done.stderr
        return done.stdout

    @contextmanager
    def serve(self, data: Path, variables: Mapping[str, str] | None = None) -> Iterator[str]:
        """Run its server on an embedded Redis, with further variables of its environment; yield the address."""
        with (data.parent / "server.log").open("w") as log:
            command = [str(self.directory / "bin/gavel"), "serve", "--listen", "127.0.0.1:0", "--data", str(data)]
            environment = {**self.environment(), **(variables or {})}
            with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=log, text=True) as server:
                try:
                    assert server.stdout is not None
                    address = next((line.removeprefix(READY).strip() for line in server.stdout if line.startswith(READY)), "")
                    assert address, (data.parent / "server.log").read_text()
                    yield address
                finally:
                    server.terminate()


def new_installation(directory: Path, interpreter: Path) -> Installation:
    """Create an empty environment of an interpreter."""
    subprocess.run([interpreter, "-m", "venv", "--without-pip", directory], check=True, timeout=RUN_SECONDS_MAX)
    return Installation(directory)


def interpreter(version: str) -> Path | None:
    """Return an interpreter of a version like "3.10" from PATH or pyenv, None if the machine has none."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    candidates = [shutil.which(f"python{version}"), *map(str, sorted(pyenv.glob(f"versions/{version}.*/bin/python")))]
    program = "import ensurepip, venv, sys; print('%d.%d' % sys.version_info[:2])"
    for candidate in filter(None, candidates):
        # A shim of pyenv is on PATH, and fails, if its version is not enabled.
        answer = subprocess.run([candidate, "-c", program], capture_output=True, text=True, timeout=RUN_SECONDS_MAX, check=False)
        if version == answer.stdout.strip():
            return Path(candidate)
    return None


def locked_versions() -> list[str]:
    """Return the pins of requirements.lock, "name==version"."""
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    return re.findall(r"^[a-z0-9.-]+==[^\s;]+", lock, re.MULTILINE)


# The extras whose floors are tested. The floors of the others are the versions with which the tests run.
EXTRAS = ("telemetry", "yaml")


def floors(*folders: str) -> list[str]:
    """Return the least versions that these distributions and their EXTRAS admit, "name==version"."""
    least: dict[str, str] = {}
    for folder in folders:
        project = tomllib.loads((ROOT / folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        extras = [line for name, lines in project.get("optional-dependencies", {}).items() if name in EXTRAS for line in lines]
        for requirement in map(Requirement, [*project["dependencies"], *extras]):
            if requirement.name.startswith("gavel-"):
                continue
            (version,) = [one.version for one in requirement.specifier if one.operator in (">=", "==")]
            name = canonicalize_name(requirement.name)
            # Of several floors of a package, all must hold.
            least[name] = max(least.get(name, version), version, key=lambda one: [int(part) for part in one.split(".")])
    return [f"{name}=={version}" for name, version in least.items()]
