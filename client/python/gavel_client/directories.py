"""Directories of this user alone, whatever the umask.

The server has its own function for it (`process/private_files.py`): its small processes do not load the client.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

_MODE: Final = 0o700


def make_directory(path: Path) -> None:
    """Create a directory and its missing parents, all with mode 0700; `Path.mkdir` leaves that of the parents to the umask. Raises OSError.

    A user who may write in a directory can replace the private files in it.
    """
    try:
        path.mkdir(_MODE, exist_ok=True)
    except FileNotFoundError:
        make_directory(path.parent)
        path.mkdir(_MODE, exist_ok=True)
