"""A test suite of a rule set, `*_test.yaml`: its cases, each merged with its defaults (docs/rule-tests.md)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final, NamedTuple

from gavel_rules.authoring.suites.models import CasePart
from gavel_rules.language.document.diagnostics import Path
from gavel_rules.language.document.source import Source

SUITE_KEYS: Final = ("gavel", "tests", "description", "defaults", "cases", "tables")
TABLE_KEYS: Final = ("name", "columns", "rows")
SUITE_SUFFIXES: Final = ("_test.yaml", "_test.yml", "_test.json")


class SuiteCase(NamedTuple):
    """A case with everything that it inherits, and the places of its parts in the document."""

    name: str
    part: CasePart
    path: Path  # of the case or row in the document
    origins: Mapping[Path, Path]  # the place in the document of every part of the merged case

    @property
    def now_ms(self) -> int:
        """The time of the decision, in milliseconds since the epoch. Raises ValueError for an invalid date."""
        return parse_time_ms(self.part.now)

    def origin(self, path: Path) -> Path:
        """Return the place of a part of the case in the document; of a part that is not written, where it would stand."""
        within: Path = ()  # the rest of a path into a list, which is not merged
        while path and path not in self.origins:
            path, within = path[:-1], (path[-1], *within)
        return (*self.origins.get(path, self.path), *within)

    def sets(self, path: Path) -> bool:
        """Return whether the case sets a part itself and does not only inherit it."""
        return any(merged[: len(path)] == path and origin[: len(self.path)] == self.path for merged, origin in self.origins.items())


class Suite(NamedTuple):
    """A suite as read."""

    tests: str  # the rule set's file, relative to the suite's
    other_files: tuple[str, ...]  # files of rule sets that are in force too
    description: str
    cases: tuple[SuiteCase, ...]
    source: Source


def parse_time_ms(text: str) -> int:
    """Return an RFC 3339 time in UTC as milliseconds since the epoch. Raises ValueError for an invalid date."""
    return round(datetime.fromisoformat(text).astimezone(UTC).timestamp() * 1000)
