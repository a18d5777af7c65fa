"""The session of docs/tools.md, executed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.documentation.sessions import SESSION_TIMEOUT_SECONDS, assert_shown, blocks, free_address
from tests.support.paths import ROOT


@pytest.mark.timeout(SESSION_TIMEOUT_SECONDS + 20)
def test_the_first_call(tmp_path: Path) -> None:
    """The commands of the page call a tool, show its trace and verify its evidence, and print what the page shows."""
    page = ROOT / "docs/tools.md"
    assert_shown(page, "\n".join(blocks(page, "sh")), tmp_path, free_address(), installed=False)
