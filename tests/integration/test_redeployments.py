"""Memory over many deployments; `make soak` does the same for longer."""

from __future__ import annotations

import subprocess
import sys

CYCLES = 160


def test_redeployments_give_their_memory_back() -> None:
    """Versions that are deployed, watch, decide and are replaced take no more memory than their texts."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.load.redeployments", "--cycles", str(CYCLES)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert 0 == done.returncode, done.stdout + done.stderr
