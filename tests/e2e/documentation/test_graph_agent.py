"""The example of a whole agent: its processes, each with an identity of its own, as docs/clients.md starts them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.documentation.sessions import SESSION_TIMEOUT_SECONDS, assert_shown, blocks, free_address
from tests.support.paths import ROOT

PAGE = ROOT / "docs/clients.md"
SECTION = "### A whole agent"


@pytest.mark.timeout(SESSION_TIMEOUT_SECONDS + 20)
@pytest.mark.long
def test_the_graph_agent_is_governed_and_auditable(tmp_path: Path) -> None:
    """The agent's proposal is completed and approved, the log has each step and replays, and the agent cannot publish as orders-db."""
    script = "\n".join(blocks(PAGE, "sh", SECTION)).replace("$PWD/.venv/bin:", "")
    assert_shown(PAGE, script, tmp_path, free_address(), installed=False, section=SECTION)
