"""The rollout of a rule set: simulate, shadow, activate, roll back, on a real server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from gavel_client import SyncGavelClient, fact_envelope

from tests.e2e.cli.programs import as_text, gavel, send
from tests.e2e.world import DEPOT, Server, rule_set

STRICTER = rule_set(version=2).replace("<= 30", "<= 10")


def decide(server: Server, bus: str, name: str, weight: float) -> str:
    """Propose to send a parcel that is ready; return the reason code or rule of the decision."""
    with SyncGavelClient(server.address, bus=bus) as client:
        fact = client.publish_event(fact_envelope(f"parcel/{name}", DEPOT, key="parcel.status", value="ready")).envelope
        decision = client.submit_proposal(send(fact, weight)).decision.decision
        return decision.reason_code or decision.rule_id


@pytest.mark.long
def test_from_simulation_to_rollback(shop: Server, bus: str, tmp_path: Path) -> None:
    """A version is simulated, shadowed, activated and rolled back; each step prints what it did."""
    file = tmp_path / "rules.yaml"
    file.write_text(rule_set())
    assert 0 == gavel("rules", "deploy", file, "--activate", "--bus", bus, server=shop).returncode
    assert "light" == decide(shop, bus, "one", 20)

    file.write_text(STRICTER)
    result = gavel("rules", "simulate", file, "--bus", bus, server=shop)
    assert (1, "") == (result.returncode, result.stderr)
    assert ["parcels version 2 would change 1 of 1 decisions", "  APPROVED->REJECTED: 1"] == result.stdout.splitlines()[-2:]
    lines = [json.loads(line) for line in gavel("rules", "simulate", file, "--json=snake", "--bus", bus, server=shop).stdout.splitlines()]
    assert [("changed", "6"), ("summary", "1")] == [
        ("changed", line["changed"]["sequence_number"]) if "changed" in line else ("summary", line["summary"]["changed"])
        for line in lines
        if "progress" not in line
    ]
    by_replay = gavel("replay", "--server", shop.address, "--rules", file, "--bus", bus)
    assert result.stdout == by_replay.stdout

    assert 0 == gavel("rules", "deploy", file, "--bus", bus, server=shop).returncode
    result = gavel("rules", "shadow", "parcels", "2", "--bus", bus, server=shop)
    assert (0, "parcels version 2 is a shadow from event 8\n") == (result.returncode, result.stdout)
    assert "light" == decide(shop, bus, "two", 20)
    assert "light" == decide(shop, bus, "three", 5)
    result = gavel("rules", "shadow", "parcels", "--bus", bus, server=shop)
    assert "parcels version 2, a shadow since event 8, would have made 1 of 2 decisions differently" == result.stdout.splitlines()[-1]
    assert "NO_RULE_MATCHED" in result.stdout
    rows = [line.split() for line in gavel("rules", "list", "--bus", bus, server=shop).stdout.splitlines()]
    assert ["parcels", "2", "shadow", "#8", "1", "of", "2"] in [line[:7] for line in rows]
    assert "1 of 2" in gavel("status", "--bus", bus, server=shop).stdout
    assert "parcels 2 would say REJECTED, NO_RULE_MATCHED" in gavel("log", "list", "--bus", bus, server=shop).stdout

    result = gavel("rules", "activate", "parcels", "2", "--bus", bus, server=shop)
    assert "parcels version 2 is in force from event 16\n" == result.stdout
    assert "NO_RULE_MATCHED" == decide(shop, bus, "four", 20)
    result = gavel("rules", "rollback", "parcels", "--bus", bus, server=shop)
    assert "parcels version 1 is in force from event 20, in place of 2\n" == result.stdout
    assert "light" == decide(shop, bus, "five", 20)
    result = gavel("rules", "rollback", "parcels", "--bus", bus, server=shop)
    assert (1, True) == (result.returncode, "in place of the newer version 2, as after a rollback; name a version" in result.stderr)
    result = gavel("rules", "rollback", "parcels", "--expected-active-version", "2", "--bus", bus, server=shop)
    assert (1, True) == (result.returncode, "ACTIVATION_RACED" in result.stderr)
    result = gavel("rules", "rollback", "parcels", "--expected-active-version", "1", "--bus", bus, server=shop)
    assert "parcels version 2 is in force from event 24, in place of 1\n" == result.stdout
    assert 0 == gavel("replay", "--redis", shop.redis_url, "--bus", bus).returncode


def test_end_of_a_shadow(shop: Server, bus: str, tmp_path: Path) -> None:
    """Either of two commands ends a shadow; without a shadow they fail."""
    file = tmp_path / "rules.yaml"
    file.write_text(rule_set())
    assert 0 == gavel("rules", "deploy", file, "--bus", bus, server=shop).returncode
    for ending in (("shadow", "parcels", "--end"), ("deactivate", "parcels", "--shadow")):
        assert 0 == gavel("rules", "activate", "parcels", "1", "--shadow", "--bus", bus, server=shop).returncode
        result = gavel("rules", *ending, "--bus", bus, server=shop)
        assert (0, True) == (result.returncode, result.stdout.startswith("parcels has no shadow from event "))
    result = gavel("rules", "shadow", "parcels", "--end", "--bus", bus, server=shop)
    assert (1, True) == (result.returncode, "RULE_SET_NOT_FOUND" in result.stderr)
    result = gavel("rules", "shadow", "parcels", "--bus", bus, server=shop)
    assert (1, True) == (result.returncode, "parcels has no shadow" in result.stderr)
    assert 2 == gavel("rules", "shadow", "parcels", "1", "--end", "--bus", bus, server=shop).returncode


def test_invalid_rollbacks(shop: Server, bus: str, tmp_path: Path) -> None:
    """A rollback fails without a previous or deployed version, and says if the version is already in force."""
    file = tmp_path / "rules.yaml"
    file.write_text(rule_set())
    assert 0 == gavel("rules", "deploy", file, "--activate", "--bus", bus, server=shop).returncode
    result = gavel("rules", "rollback", "parcels", "--bus", bus, server=shop)
    assert (1, True) == (result.returncode, "replaced no other version; name one with --to VERSION" in result.stderr)
    result = gavel("rules", "rollback", "parcels", "--to", "1", "--bus", bus, server=shop)
    assert (0, "parcels version 1 is in force from event 3 already\n") == (result.returncode, result.stdout)
    result = gavel("rules", "rollback", "parcels", "--to", "7", "--bus", bus, server=shop)
    assert (1, True) == (result.returncode, "RULE_SET_NOT_FOUND" in result.stderr)
    result = gavel("rules", "rollback", "letters", "--bus", bus, server=shop)
    assert (1, True) == (result.returncode, "RULE_SET_NOT_FOUND" in result.stderr)


def test_invalid_simulations(shop: Server, bus: str, tmp_path: Path) -> None:
    """An invalid candidate and a range outside the log are exit status 2."""
    file = tmp_path / "rules.yaml"
    file.write_text(rule_set().replace("params.weight", "params.wait"))
    result = gavel("rules", "simulate", file, "--bus", bus, server=shop)
    assert (2, "", True) == (result.returncode, result.stdout, f"{file}:" in result.stderr)
    file.write_text(rule_set())
    assert 0 == gavel("rules", "deploy", file, "--bus", bus, server=shop).returncode
    result = gavel("rules", "simulate", file, "--to", "99", "--bus", bus, server=shop)
    assert (2, True) == (result.returncode, f"the log of bus {bus} holds events 1 to 2" in result.stderr)


@pytest.mark.long
def test_a_second_rule_set_on_the_action(shop: Server, bus: str, tmp_path: Path) -> None:
    """Two rule sets share an action; a disagreement fails the activation and is named."""
    file = tmp_path / "rules.yaml"
    file.write_text(rule_set())
    assert 0 == gavel("rules", "deploy", file, "--activate", "--bus", bus, server=shop).returncode
    embargo = rule_set().replace("set: parcels", "set: embargo").replace("effect: approve", "effect: reject, reason_code: EMBARGO")
    file.write_text(embargo.replace("max_attempts: 20", "max_attempts: 21"))
    result = gavel("rules", "deploy", file, "--activate", "--bus", bus, server=shop)
    assert 1 == result.returncode
    assert "retry.max_attempts of action parcel.send is 21, but 20 in rule set parcels version 1, which is in force" in " ".join(
        result.stderr.split()
    )

    file.write_text(embargo.replace("version: 1", "version: 2"))
    result = gavel("rules", "simulate", file, "--bus", bus, server=shop)
    assert 0 == result.returncode
    assert 0 == gavel("rules", "deploy", file, "--bus", bus, server=shop).returncode
    assert 0 == gavel("rules", "shadow", "embargo", "2", "--bus", bus, server=shop).returncode
    assert "light" == decide(shop, bus, "one", 20)
    assert "1 of 1 decisions differently" in gavel("rules", "shadow", "embargo", "--bus", bus, server=shop).stdout
    assert 0 == gavel("rules", "activate", "embargo", "2", "--bus", bus, server=shop).returncode
    assert "EMBARGO" == decide(shop, bus, "two", 20)
    with SyncGavelClient(shop.address, bus=bus) as client:
        ready = client.publish_event(fact_envelope("parcel/more", DEPOT, key="parcel.status", value="ready")).envelope
    output = gavel("preflight", "-", "--explain", "--bus", bus, server=shop, text=as_text(send(ready, 20))).stdout
    assert "embargo version 2, parcels version 1" in output
    assert {"embargo light", "embargo lost", "parcels light", "parcels lost"} <= {
        " ".join(line.split()[:2]) for line in output.splitlines()
    }
    modes = [line.split()[:3] for line in gavel("rules", "list", "--bus", bus, server=shop).stdout.splitlines()]
    assert [["embargo", "1", "-"], ["embargo", "2", "active"], ["parcels", "1", "active"]] == modes[-3:]
    assert 0 == gavel("rules", "deactivate", "embargo", "--bus", bus, server=shop).returncode
    assert "light" == decide(shop, bus, "three", 20)
    assert 0 == gavel("replay", "--redis", shop.redis_url, "--bus", bus).returncode
