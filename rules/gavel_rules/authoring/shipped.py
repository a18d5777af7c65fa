"""The rule sets that ship with Gavel, as text: the demo and the benchmark deploy them like anybody's.

They lie in rules/sets. `gavel_rules/sets` is a symbolic link to it, and so a wheel carries them as package data and a source tree
is read where it stands. Nothing that decides reads them: what is not in the log does not exist.
"""

from __future__ import annotations

from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Final

_SUFFIX: Final = ".yaml"
_TESTS: Final = "_test.yaml"


def shipped_names() -> tuple[str, ...]:
    """The names of the shipped rule sets, e.g. "refunds", sorted."""
    return tuple(sorted(_documents()))


def shipped_rule_set(name: str) -> str:
    """The document of the shipped rule set `name`; LookupError, which names those there are, for any other."""
    documents = _documents()
    if name not in documents:
        raise LookupError(f"no rule set {name!r} ships with Gavel; there are: {', '.join(sorted(documents)) or 'none'}")
    return documents[name].read_text(encoding="utf-8")


def _documents() -> dict[str, Traversable]:
    return {
        entry.name.removesuffix(_SUFFIX): entry
        for entry in files("gavel_rules").joinpath("sets").iterdir()
        if entry.name.endswith(_SUFFIX) and not entry.name.endswith(_TESTS)
    }
