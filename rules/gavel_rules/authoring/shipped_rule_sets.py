"""The rule sets that ship with Gavel, as text. The demo and the benchmark deploy them like any other rule set.

They are in rules/sets. `gavel_rules/sets` is a symbolic link to it, so that wheels carry them as package data. Arbitration never
reads them: only a rule set in the log decides.
"""

from __future__ import annotations

from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Final

_SUFFIX: Final = ".yaml"
_TESTS: Final = "_test.yaml"


def shipped_names() -> tuple[str, ...]:
    """Return the names of the shipped rule sets, e.g. "refunds", sorted."""
    return tuple(sorted(_documents()))


def shipped_rule_set(name: str) -> str:
    """Return the document of a shipped rule set. Raises LookupError, with the known names, for any other name."""
    documents = _documents()
    if name not in documents:
        raise LookupError(f"no rule set {name!r} ships with Gavel; known: {', '.join(sorted(documents)) or 'none'}")
    return documents[name].read_text(encoding="utf-8")


def _documents() -> dict[str, Traversable]:
    return {
        entry.name.removesuffix(_SUFFIX): entry
        for entry in files("gavel_rules").joinpath("sets").iterdir()
        if entry.name.endswith(_SUFFIX) and not entry.name.endswith(_TESTS)
    }
