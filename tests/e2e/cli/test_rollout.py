"""Rolling out a rule set by the command line: simulate, shadow, activate, roll back, on a real server."""

from __future__ import annotations

import json
from pathlib import Path

from gavel_client import SyncGavelClient, fact_envelope

from tests.e2e.cli.programs import as_text, gavel, send
from tests.e2e.world import DEPOT, Server, rule_set

STRICTER = rule_set(version=2).replace("<= 30", "<= 10")


def decide(server: Server, bus: str, name: str, weight: float) -> str:
    """Have a parcel that is ready decided on; return the outcome's reason or rule."""
    with SyncGavelClient(server.address, bus=bus) as client:
        fact = client.publish_event(fact_envelope(f"parcel/{name}", DEPOT, key="parcel.status", value="ready")).envelope
        decision = client.submit_proposal(send(fact, weight)).decision.decision
        return decision.reason_code or decision.rule_id


def test_from_simulation_to_rollback(shop: Server, bus: str, tmp_path: Path) -> None:
    """A version is tried on the past, watches, decides, and gives way to the one before it; each step says what it did."""
    file = tmp_path / "rules.yaml"
    file.write_text(rule_set())
    assert 0 == gavel("rules", "deploy", file, "--activate", "--bus", bus, server=shop).returncode
    assert "light" == decide(shop, bus, "one", 20)

    file.write_text(STRICTER)
    done = gavel("rules", "simulate", file, "--bus", bus, server=shop)
    assert (0, "") == (done.returncode, done.stderr)
    assert ["parcels version 2 would change 1 of 1 decisions", "  APPROVED->REJECTED: 1"] == done.stdout.splitlines()[-2:]
    lines = [json.loads(line) for line in gavel("rules", "simulate", file, "--json", "--bus", bus, server=shop).stdout.splitlines()]
    assert [("changed", "6"), ("summary", "1")] == [
        ("changed", line["changed"]["sequence_number"]) if "changed" in line else ("summary", line["summary"]["changed"])
        for line in lines
        if "progress" not in line
    ]
    by_replay = gavel("replay", "--server", shop.address, "--rules", file, "--bus", bus)
    assert done.stdout == by_replay.stdout

    assert 0 == gavel("rules", "deploy", file, "--bus", bus, server=shop).returncode
    done = gavel("rules", "shadow", "parcels", "2", "--bus", bus, server=shop)
    assert (0, "parcels version 2 is a shadow from event 8\n") == (done.returncode, done.stdout)
    assert "light" == decide(shop, bus, "two", 20)
    assert "light" == decide(shop, bus, "three", 5)
    done = gavel("rules", "shadow", "parcels", "--bus", bus, server=shop)
    assert "parcels version 2, a shadow since event 8, would have made 1 of 2 decisions otherwise" == done.stdout.splitlines()[-1]
    assert "NO_RULE_MATCHED" in done.stdout
    listed = [line.split() for line in gavel("rules", "list", "--bus", bus, server=shop).stdout.splitlines()]
    assert ["parcels", "2", "shadow", "#8", "1", "of", "2"] in [line[:7] for line in listed]
    assert "1 of 2" in gavel("status", "--bus", bus, server=shop).stdout
    assert "parcels 2 would say REJECTED, NO_RULE_MATCHED" in gavel("log", "list", "--bus", bus, server=shop).stdout

    done = gavel("rules", "activate", "parcels", "2", "--bus", bus, server=shop)
    assert "parcels version 2 is in force from event 16\n" == done.stdout
    assert "NO_RULE_MATCHED" == decide(shop, bus, "four", 20)
    done = gavel("rules", "rollback", "parcels", "--bus", bus, server=shop)
    assert "parcels version 1 is in force from event 20, in place of 2\n" == done.stdout
    assert "light" == decide(shop, bus, "five", 20)
    done = gavel("rules", "rollback", "parcels", "--to", "2", "--bus", bus, server=shop)
    assert "parcels version 2 is in force from event 24, in place of 1\n" == done.stdout
    assert 0 == gavel("replay", "--redis", shop.redis_url, "--bus", bus).returncode


def test_shadows_that_end(shop: Server, bus: str, tmp_path: Path) -> None:
    """A shadow ends by either of two commands; where there is none, that is said."""
    file = tmp_path / "rules.yaml"
    file.write_text(rule_set())
    assert 0 == gavel("rules", "deploy", file, "--bus", bus, server=shop).returncode
    for ending in (("shadow", "parcels", "--end"), ("deactivate", "parcels", "--shadow")):
        assert 0 == gavel("rules", "activate", "parcels", "1", "--shadow", "--bus", bus, server=shop).returncode
        done = gavel("rules", *ending, "--bus", bus, server=shop)
        assert (0, True) == (done.returncode, done.stdout.startswith("parcels has no shadow from event "))
    done = gavel("rules", "shadow", "parcels", "--end", "--bus", bus, server=shop)
    assert (1, True) == (done.returncode, "RULE_SET_NOT_FOUND" in done.stderr)
    done = gavel("rules", "shadow", "parcels", "--bus", bus, server=shop)
    assert (1, True) == (done.returncode, "parcels has no shadow" in done.stderr)
    assert 2 == gavel("rules", "shadow", "parcels", "1", "--end", "--bus", bus, server=shop).returncode


def test_rollbacks_that_cannot_be(shop: Server, bus: str, tmp_path: Path) -> None:
    """What replaced nothing, and what is not deployed, is refused with what to do; what is in force already is said to be so."""
    file = tmp_path / "rules.yaml"
    file.write_text(rule_set())
    assert 0 == gavel("rules", "deploy", file, "--activate", "--bus", bus, server=shop).returncode
    done = gavel("rules", "rollback", "parcels", "--bus", bus, server=shop)
    assert (1, True) == (done.returncode, "replaced no other; name the version: --to VERSION" in done.stderr)
    done = gavel("rules", "rollback", "parcels", "--to", "1", "--bus", bus, server=shop)
    assert (0, "parcels version 1 is in force from event 3 already\n") == (done.returncode, done.stdout)
    done = gavel("rules", "rollback", "parcels", "--to", "7", "--bus", bus, server=shop)
    assert (1, True) == (done.returncode, "RULE_SET_NOT_FOUND" in done.stderr)
    done = gavel("rules", "rollback", "letters", "--bus", bus, server=shop)
    assert (1, True) == (done.returncode, "RULE_SET_NOT_FOUND" in done.stderr)


def test_simulations_that_cannot_be(shop: Server, bus: str, tmp_path: Path) -> None:
    """A candidate with mistakes stands with its places, a range that the log does not hold with the one it does: exit status 2."""
    file = tmp_path / "rules.yaml"
    file.write_text(rule_set().replace("params.weight", "params.wait"))
    done = gavel("rules", "simulate", file, "--bus", bus, server=shop)
    assert (2, "", True) == (done.returncode, done.stdout, f"{file}:" in done.stderr)
    file.write_text(rule_set())
    done = gavel("rules", "simulate", file, "--to", "99", "--bus", bus, server=shop)
    assert (2, True) == (done.returncode, f"the log of bus {bus} holds events 1 to 1" in done.stderr)


def test_a_second_rule_set_on_the_action(shop: Server, bus: str, tmp_path: Path) -> None:
    """A company's rule set beside the team's: listed, explained and tried by name, in its own life; what disagrees is refused and named."""
    file = tmp_path / "rules.yaml"
    file.write_text(rule_set())
    assert 0 == gavel("rules", "deploy", file, "--activate", "--bus", bus, server=shop).returncode
    embargo = rule_set().replace("set: parcels", "set: embargo").replace("effect: approve", "effect: reject, reason_code: EMBARGO")
    file.write_text(embargo.replace("max_attempts: 20", "max_attempts: 21"))
    done = gavel("rules", "deploy", file, "--activate", "--bus", bus, server=shop)
    assert 1 == done.returncode
    assert "retry.max_attempts of action parcel.send is 21, but 20 in rule set parcels version 1, which is in force" in " ".join(
        done.stderr.split()
    )

    file.write_text(embargo.replace("version: 1", "version: 2"))
    done = gavel("rules", "simulate", file, "--bus", bus, server=shop)
    assert 0 == done.returncode
    assert 0 == gavel("rules", "deploy", file, "--bus", bus, server=shop).returncode
    assert 0 == gavel("rules", "shadow", "embargo", "2", "--bus", bus, server=shop).returncode
    assert "light" == decide(shop, bus, "one", 20)
    assert "1 of 1 decisions otherwise" in gavel("rules", "shadow", "embargo", "--bus", bus, server=shop).stdout
    assert 0 == gavel("rules", "activate", "embargo", "2", "--bus", bus, server=shop).returncode
    assert "EMBARGO" == decide(shop, bus, "two", 20)
    with SyncGavelClient(shop.address, bus=bus) as client:
        ready = client.publish_event(fact_envelope("parcel/more", DEPOT, key="parcel.status", value="ready")).envelope
    tried = gavel("preflight", "-", "--explain", "--bus", bus, server=shop, text=as_text(send(ready, 20))).stdout
    assert "embargo version 2, parcels version 1" in tried
    assert {"embargo light", "embargo lost", "parcels light", "parcels lost"} <= {" ".join(line.split()[:2]) for line in tried.splitlines()}
    modes = [line.split()[:3] for line in gavel("rules", "list", "--bus", bus, server=shop).stdout.splitlines()]
    assert [["embargo", "1", "-"], ["embargo", "2", "active"], ["parcels", "1", "active"]] == modes[-3:]
    assert 0 == gavel("rules", "deactivate", "embargo", "--bus", bus, server=shop).returncode
    assert "light" == decide(shop, bus, "three", 20)
    assert 0 == gavel("replay", "--redis", shop.redis_url, "--bus", bus).returncode
