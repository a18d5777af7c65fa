"""A virtual environment that has CrewAI, made once in build/crewai.

CrewAI cannot be installed beside the other frameworks: it pins older versions of mcp, openai and pydantic. requirements.txt has what the
client's extra `crewai` needs; `make lock` writes it.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.support.paths import ROOT

# The longest time that a slow machine takes to install the packages.
INSTALL_SECONDS_MAX: Final = 900
_REQUIREMENTS = Path(__file__).with_name("requirements.txt")
_FOLDER = ROOT / "build/crewai"
# CrewAI reports its use and its traces to its vendor unless it is told not to.
_NO_TELEMETRY = {
    "CREWAI_DISABLE_TELEMETRY": "true",
    "CREWAI_DISABLE_TRACKING": "true",
    "CREWAI_DISABLE_VERSION_CHECK": "true",
    "CREWAI_TRACING_ENABLED": "false",
    "OTEL_SDK_DISABLED": "true",
}


def crewai_python() -> str:
    """Return the path of the Python that has CrewAI. The processes of the tests share it."""
    _FOLDER.mkdir(parents=True, exist_ok=True)
    python, installed = _FOLDER / "venv/bin/python", _FOLDER / "requirements.txt"
    with (_FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not installed.exists() or installed.read_text() != _REQUIREMENTS.read_text():
            installed.unlink(missing_ok=True)
            subprocess.run([sys.executable, "-m", "venv", "--clear", _FOLDER / "venv"], check=True)
            pip = [str(python), "-m", "pip", "--quiet", "--disable-pip-version-check", "install", "--no-compile"]
            packages = ["--require-hashes", "--no-deps", "--only-binary", ":all:", "--requirement", str(_REQUIREMENTS)]
            subprocess.run([*pip, *packages], check=True)
            installed.write_text(_REQUIREMENTS.read_text())
    return str(python)


def crewai_environment(home: Path) -> dict[str, str]:
    """Return the environment of a process with CrewAI, which writes its files below `home`."""
    paths = [ROOT, ROOT / "client/python", ROOT / "proto/gen/python"]
    return {
        **{name: value for name, value in os.environ.items() if name == "PATH" or name.startswith("LC_")},
        **_NO_TELEMETRY,
        "HOME": str(home),
        "CREWAI_STORAGE_DIR": str(home),
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
    }
