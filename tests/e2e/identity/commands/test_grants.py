"""`gavel grants deploy` and `gavel whoami`: nobody loses the way back by accident, and mismatches with the rules are told."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.identity.granted import ADMIN, GRANTS, GrantedServer
from tests.e2e.runs import run_gavel
from tests.e2e.world import rule_set
from tests.support.fronts import TRANSPORTS

Gavel = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(params=TRANSPORTS)
def gavel(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Gavel]:
    """A server with GRANTS on each transport, and a function that runs a command on it; `by` names the caller."""
    server = GrantedServer(tmp_path, request.param)
    for name, token in server.tokens.items():
        (tmp_path / f"{name}.token").write_text(token)

    def run(*arguments: str, by: str) -> subprocess.CompletedProcess[str]:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("GAVEL_")}
        return run_gavel((*arguments, "--server", server.server.address, "--token-file", str(tmp_path / f"{by}.token")), clean)

    with server.running():
        yield run


def test_deployments_that_lock_out(gavel: Gavel, tmp_path: Path) -> None:
    """Grants that take the right grant from their deployer are refused, and the present ones stay, unless the deployer resigns."""
    document = tmp_path / "grants.yaml"
    for grants in (GRANTS.replace(f"to: [{ADMIN}]", "to: [another]"), GRANTS.replace("may: [grant]", "may: [grant], buses: [other]")):
        document.write_text(grants.replace("version: 1", "version: 2"))
        by = ADMIN if "another" in grants else "may-grant"
        refused = gavel("grants", "deploy", str(document), by=by)
        assert (1, True) == (refused.returncode, f"give the right grant to '{by}'" in refused.stderr), refused.stderr
    assert "version 1" in gavel("grants", "get", by=ADMIN).stdout.replace(": ", " ")
    assert "not shown to callers without rights" in gavel("whoami", by="nobody").stdout
    assert 0 == gavel("grants", "deploy", str(document), "--resign", by="may-grant").returncode
    assert "may not grant" in gavel("grants", "deploy", str(document), "--resign", by="may-grant").stderr


def test_warnings_about_the_rule_sets_in_force(gavel: Gavel, tmp_path: Path) -> None:
    """A deployment of grants, and an activation, warn of actions in force that nobody has a right for, and succeed."""
    rules, document = tmp_path / "parcels.yaml", tmp_path / "grants.yaml"
    rules.write_text(rule_set())
    assert 0 == gavel("rules", "deploy", str(rules), "--activate", by=ADMIN).returncode
    for version, actions, missing in ((2, "parcel.*", False), (3, "parcle.*", True)):
        grants = f"""
gavel: v1
name: parcels
version: {version}
grants:
  - {{to: [{ADMIN}], may: [grant, read, activate]}}
  - {{to: [may-propose], may: [propose, execute], produce: {{types: [agent, executor]}}, actions: ["{actions}"]}}
"""
        document.write_text(grants)
        deployed = gavel("grants", "deploy", str(document), by=ADMIN)
        assert (0, True) == (deployed.returncode, deployed.stdout.startswith(f"parcels version {version} is in force")), deployed.stderr
        warning = "action-without-grant: no grant lets anybody propose or execute parcel.send, an action of rule set parcels version 1"
        assert missing == (warning in deployed.stderr), deployed.stderr
        activated = gavel("rules", "activate", "parcels", "1", by=ADMIN)
        assert (0, missing) == (activated.returncode, warning in activated.stderr), activated.stderr
