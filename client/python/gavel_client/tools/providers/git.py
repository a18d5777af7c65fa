"""Files that belong to Git, whose configuration names programs that git runs.

Git takes any directory with the shape of a repository for one, whatever its name, and reads its configuration. So an agent that may write
files, and run a listed command such as `git status` in a directory of its choice, must not make or change such a directory.
"""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

# The second one is the short name of .git on file systems of Windows. The others make a directory a repository, or configure one.
_NAMES: Final = frozenset({".git", "git~1"})
_LAST_NAMES: Final = frozenset({"head", "commondir", "config.worktree"})
# Of characters that have no width: format characters and marks.
_IGNORED: Final = frozenset({"Cf", "Mn", "Me"})
_COUNT: Final = "GIT_CONFIG_COUNT"


def is_git_path(path: str) -> bool:
    """Return whether a path lies under .git, or names a file that turns its directory into a repository.

    File systems may ignore case, trailing dots and spaces, and characters without a width.
    """
    *_, last = names = [_plain(name) for name in path.split("/")]
    return not _NAMES.isdisjoint(names) or last in _LAST_NAMES


def is_git_directory(directory: int) -> bool:
    """Return whether git may take an open directory for a repository."""
    return _has(directory, "HEAD") and any(_has(directory, name) for name in ("objects", "refs", "commondir"))


def explicit_repositories(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment in which git takes no directory for a repository because of its content. Raises ValueError.

    The setting is added to those that the environment has, and is the one that counts. Git has it since version 2.38.
    """
    count = environment.get(_COUNT) or "0"
    if not count.isdecimal():
        raise ValueError(f"the environment has an unusable {_COUNT}: it must be a number")
    return {
        **environment,
        _COUNT: str(int(count) + 1),
        f"GIT_CONFIG_KEY_{int(count)}": "safe.bareRepository",
        f"GIT_CONFIG_VALUE_{int(count)}": "explicit",
    }


def _plain(name: str) -> str:
    visible = "".join(one for one in unicodedata.normalize("NFKC", name) if unicodedata.category(one) not in _IGNORED)
    # After a colon, Windows has the name of a stream of the file.
    return visible.casefold().partition(":")[0].rstrip(". ")


def _has(directory: int, name: str) -> bool:
    with suppress(FileNotFoundError):
        os.stat(name, dir_fd=directory, follow_symlinks=False)
        return True
    return False
