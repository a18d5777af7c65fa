"""Rule sets as files, for the commands that read them."""

from __future__ import annotations

from pathlib import Path

import pytest
from gavel_rules.authoring.shipped_rule_sets import shipped_rule_set


@pytest.fixture
def versions(tmp_path: Path) -> tuple[str, str]:
    """Two files: the shipped rule set of refunds, and the same with another threshold."""
    text = shipped_rule_set("refunds")
    old, new = tmp_path / "old.yaml", tmp_path / "new.yaml"
    old.write_text(text, encoding="utf-8")
    new.write_text(text.replace("params.amount > 500", "params.amount > 750"), encoding="utf-8")
    return str(old), str(new)
