"""Commands that succeed in part."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.e2e.cli.programs import gavel
from tests.e2e.runs import RUN_SECONDS_MAX
from tests.e2e.world import GAVEL, Server, rule_set


def test_deployed_and_not_in_force(shop: Server, bus: str, tmp_path: Path) -> None:
    """A failed activation after a deployment reports both; exit status 1."""
    file = tmp_path / "rules.yaml"
    file.write_text(rule_set())
    assert 0 == gavel("rules", "deploy", file, "--activate", "--bus", bus, server=shop).returncode
    file.write_text(
        rule_set()
        .replace("rule_set: parcels", "rule_set: others")
        .replace("decision_ttl_ms:", "conflict_key: subject.type\n    decision_ttl_ms:")
    )
    result = gavel("rules", "deploy", file, "--activate", "--bus", bus, server=shop)
    assert (1, True) == (result.returncode, result.stdout.startswith("others version 1 is deployed at event 4, sha256:"))
    assert 1 == len(result.stdout.splitlines())
    assert "RULE_SETS_DISAGREE" in result.stderr


def test_full_disk(shop: Server) -> None:
    """A command whose output meets a full disk exits with 1 and the operating system's message."""
    command = f"'{GAVEL}' status --server {shop.address} > /dev/full"
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=RUN_SECONDS_MAX, check=False)
    assert (1, "gavel: cannot write the output: No space left on device\n") == (result.returncode, result.stderr)
