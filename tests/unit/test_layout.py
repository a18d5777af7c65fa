"""The layout of the tree: a folder holds one concept, in few modules."""

from __future__ import annotations

from collections import Counter

from tests.support.paths import ROOT

MODULES_MAX = 16
FOLDERS = ("rules/gavel_rules", "server/gavel_server", "server/front", "client/python", "tests")


def test_no_folder_holds_too_many_modules() -> None:
    """A folder directly holds about 15 modules at most; beyond that, its concepts get folders of their own."""
    modules = [path for folder in FOLDERS for pattern in ("*.py", "*.go") for path in (ROOT / folder).rglob(pattern)]
    counted = [path for path in modules if path.name != "__init__.py" and not path.name.endswith("_test.go")]
    counts = Counter(str(path.parent.relative_to(ROOT)) for path in counted)
    assert {folder: count for folder, count in counts.items() if count > MODULES_MAX} == {}
