"""A case merged from layers: the suite's defaults, a table, and the case or row, each a JSON Merge Patch (RFC 7386).

It remembers the place of each part in the document, so that a mistake is reported where its author wrote it.
"""

from __future__ import annotations

from typing import Any

from gavel_rules.authoring.suites.models import EarlierCase
from gavel_rules.language.document.diagnostics import Path


class MergedCase:
    """The data of a case so far. `origins` holds the place in the document of every part of it."""

    def __init__(self, data: dict[str, Any] | None = None, origins: dict[Path, Path] | None = None) -> None:
        self.data: dict[str, Any] = data if data is not None else {}
        self.origins: dict[Path, Path] = origins if origins is not None else {}

    def copy(self) -> MergedCase:
        """Return a copy that later layers can patch."""
        return MergedCase(_copy_mappings(self.data), dict(self.origins))

    def patch(self, path: tuple[str, ...], item: object, origin: Path) -> None:
        """Patch the part at `path` with the data at the place `origin` of the document."""
        if len(path) == 2 and path[0] == "facts" and item is not None and not isinstance(item, dict):
            path = (*path, "value")  # a bare value replaces the value of the fact and keeps its other keys
        data = self.data
        for depth, step in enumerate(path[:-1]):
            if not isinstance(data.get(step), dict):
                data[step] = {}
                self.origins[path[: depth + 1]] = origin
            data = data[step]
        last = path[-1]
        if item is None:
            data.pop(last, None)
            return
        self.origins[path] = origin
        if not isinstance(item, dict):
            data[last] = item
            return
        if not isinstance(data.get(last), dict):
            data[last] = {}
        for name, inner in item.items():
            self.patch((*path, name), inner, (*origin, name))

    def with_full_earlier(self) -> MergedCase:
        """Return the case with its earlier proposals in full: each is a patch of the case itself."""
        patches = self.data.get("earlier")
        if not isinstance(patches, list):
            return self
        # The case's execution and expectation are about its own proposal, so they are not inherited.
        shared = {name: self.data[name] for name in EarlierCase.model_fields if name in self.data and name not in ("execution", "expect")}
        origins = dict(self.origins)
        full: list[object] = []
        for index, patch in enumerate(patches):
            if not isinstance(patch, dict):
                full.append(patch)
                continue
            earlier = MergedCase(_copy_mappings(shared))
            for name, item in patch.items():
                earlier.patch((name,), item, (*self.origins["earlier",], index, name))
            origins.update({("earlier", index, *path): origin for path, origin in earlier.origins.items()})
            full.append(earlier.data)
        return MergedCase({**self.data, "earlier": full}, origins)


def _copy_mappings(data: dict[str, Any]) -> dict[str, Any]:
    return {name: _copy_mappings(item) if isinstance(item, dict) else item for name, item in data.items()}
