"""Memory over many deployments; `make soak` does the same for longer."""

from __future__ import annotations

import subprocess
import sys

import pytest

CYCLES = 160


@pytest.mark.long
def test_redeployments_release_their_memory() -> None:
    """Versions that are deployed, shadowed, activated and replaced take no more memory than their texts."""
    process = subprocess.run(
        [sys.executable, "-m", "tests.load.redeployments", "--cycles", str(CYCLES)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert 0 == process.returncode, process.stdout + process.stderr
