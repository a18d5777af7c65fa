"""The rule sets that ship with Gavel, as text: the demo and the benchmark deploy them like anybody's.

In the tree they lie in rules/sets; a wheel carries them as gavel_rules/sets (pyproject.toml). Nothing that decides reads them:
what is not in the log does not exist.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Final

_SUFFIX: Final = ".yaml"
_TESTS: Final = "_test.yaml"


def shipped_rule_set(name: str) -> str:
    """The document of the shipped rule set `name`, e.g. "refunds"; LookupError, which names those there are, for any other."""
    package = files("gavel_rules")
    installed = package.joinpath("sets")
    # An editable install imports gavel_rules from the tree, where the sets are its neighbours.
    directory = installed if installed.is_dir() else package.joinpath("..", "sets")
    documents = {
        entry.name.removesuffix(_SUFFIX): entry
        for entry in directory.iterdir()
        if entry.name.endswith(_SUFFIX) and not entry.name.endswith(_TESTS)
    }
    if name not in documents:
        raise LookupError(f"no rule set {name!r} ships with Gavel; there are: {', '.join(sorted(documents)) or 'none'}")
    return documents[name].read_text(encoding="utf-8")
