"""`gavel grants deploy` and `gavel whoami`: nobody loses the way back by accident."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.e2e.identity.granted import ADMIN, GRANTS, GrantedServer
from tests.e2e.runs import run_gavel


def test_deployments_that_lock_out(tmp_path: Path) -> None:
    """Grants that take the right grant from their deployer are refused, and the present ones stay, unless the deployer resigns."""
    server = GrantedServer(tmp_path, "none")
    for name in (ADMIN, "may-grant", "nobody"):
        (tmp_path / name).write_text(server.tokens[name])
    document = tmp_path / "grants.yaml"

    def gavel(*arguments: str, by: str) -> subprocess.CompletedProcess[str]:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("GAVEL_")}
        return run_gavel((*arguments, "--server", server.server.address, "--token-file", str(tmp_path / by)), clean)

    with server.running():
        for grants in (GRANTS.replace(f"to: [{ADMIN}]", "to: [another]"), GRANTS.replace("may: [grant]", "may: [grant], buses: [other]")):
            document.write_text(grants.replace("version: 1", "version: 2"))
            by = ADMIN if "another" in grants else "may-grant"
            refused = gavel("grants", "deploy", str(document), by=by)
            assert (1, True) == (refused.returncode, f"give the right grant to '{by}'" in refused.stderr), refused.stderr
        assert "version 1" in gavel("grants", "get", by=ADMIN).stdout.replace(": ", " ")
        assert "not shown to callers without rights" in gavel("whoami", by="nobody").stdout
        assert 0 == gavel("grants", "deploy", str(document), "--resign", by="may-grant").returncode
        assert "may not grant" in gavel("grants", "deploy", str(document), "--resign", by="may-grant").stderr
