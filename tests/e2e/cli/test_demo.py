"""`gavel demo` on a real server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.e2e.cli.programs import gavel
from tests.e2e.world import Server, run_servers

# The steps of the timeline in order: the first trace, then the other three cases.
STEPS = [
    ("fact", "gavel", "grants demo 1"),
    ("fact", "gavel", "rule set refunds 1 deployed"),
    ("fact", "gavel", "rule set refunds 1 in force"),
    ("fact", "orders-db", 'order.status = "delivered"'),
    ("proposal", "refund-agent", "refund.create"),
    ("decision", "gavel", "REJECTED, NEED_MORE_FACTS"),
    ("tool call", "fraud-tools", "fraud-mcp"),
    ("tool result", "fraud-tools", "fraud-mcp"),
    ("observation", "refund-agent", "customer.fraud_score = 0.04, read through fraud-mcp, trust tier 2"),
    ("fact", "orders-db", "order.total = 640"),
    ("proposal", "refund-agent", "refund.create"),
    ("decision", "gavel", "APPROVED, by rule delivered of refunds 1"),
    ("execution", "demo-executor", "attempt 1 STARTED"),
    ("execution", "demo-executor", "attempt 1 SUCCESS"),
    ("fact", "fact reactor", 'execution.refund.create.status = "SUCCESS"'),
    ("fact", "fact reactor", "order.refunded = 620"),
    ("decision", "gavel", "APPROVED"),
    ("decision", "gavel", "REJECTED, CONFLICTING_DECISION, conflicts with"),
    ("execution", "demo-executor", "attempt 1 SUCCESS"),
    ("decision", "gavel", "REJECTED, STALE_FACTS"),
    ("decision", "gavel", "REJECTED, AMOUNT_EXCEEDS_ORDER"),
    ("decision", "gavel", "REJECTED, AMOUNT_EXCEEDS_ORDER"),
    ("decision", "gavel", "NEEDS_HUMAN_REVIEW, REJECTION_LIMIT"),
    ("notice", "gavel", "NeedsHumanReview"),
    ("decision", "gavel", "REJECTED, UNDER_REVIEW"),
    ("fact", "gavel", "ada said APPROVE on"),
    ("decision", "gavel", "REJECTED, REVIEW_RELEASED"),
    ("decision", "gavel", "APPROVED, by rule delivered"),
    ("fact", "fact reactor", "order.refunded = 80"),
]


@pytest.mark.long
def test_demo_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The demo plays all steps, proves its log, and leaves it for other commands; it can be repeated.

    It ignores another server's settings in the environment.
    """
    monkeypatch.chdir(tmp_path)
    result = gavel("demo", GAVEL_FDR="false", GAVEL_REDIS="redis://127.0.0.1:9")
    assert (0, "") == (result.returncode, result.stderr)
    lines = result.stdout.splitlines()
    assert "proved: 54 events, 11 decisions recomputed equal" == lines[-1]
    assert max(map(len, lines)) <= 100
    assert "\x1b" not in result.stdout
    remaining = iter(lines)
    for kind, who, what in STEPS:
        assert any(f"  {kind:<11} {who:<13} {what}" in line for line in remaining), (kind, who, what)
    hints = [line for line in lines if "retry hint:" in line]
    assert {"order.total", "order.customer_id"} == {hint.split()[2] for hint in hints[:2]}
    replay = gavel("replay", "--data", ".gavel-demo")
    assert (0, lines[-1] + "\n") == (replay.returncode, replay.stdout)
    check_log(result.stdout, tmp_path / ".gavel-demo")

    repetition = gavel("demo")
    assert 0 == repetition.returncode
    assert "proved: 104 events, 22 decisions recomputed equal" == repetition.stdout.splitlines()[-1]


def check_log(output: str, data: Path) -> None:
    """Assert that a server on the demo's directory shows the demo's main trace and projection."""
    (trace,) = {word.rstrip(",") for word in output.split() if word.startswith("refund-") and word.rstrip(",)").endswith("-1")} - {
        word for word in output.split() if word.endswith(")")
    }
    tokens = data / "demo-tokens"
    server = Server(data, options=["--authentication", "required", "--token-file", str(tokens / "tokens.toml")])
    ada = {"GAVEL_CLIENT_TOKEN_FILE": str(tokens / "ada.token")}
    with run_servers(server):
        response = json.loads(gavel("trace", trace, "--json=snake", server=server, **ada).stdout)
        assert ["TOOL_PAIR_STATE_PAIRED"] == [pair["state"] for pair in response["pairs"]]
        projection = json.loads(gavel("projection", response["envelopes"][0]["subject"], "--json=snake", server=server, **ada).stdout)[
            "projection"
        ]
        facts = {fact["key"]: fact["value"] for fact in projection["facts"]}
        assert ("SUCCESS", 640) == (facts["execution.refund.create.status"], facts["order.total"])
        assert [] == projection["pending_decisions"]
        assert 1 == len([line for line in gavel("status", server=server, **ada).stdout.splitlines() if line.startswith("refunds")])
        # Each party is known by its token, and can speak for nobody else.
        principals = {
            event["producer"]["id"]: event["attestation"]["principal"] for event in response["envelopes"] if "attestation" in event
        }
        assert {name: name for name in ("orders-db", "refund-agent", "fraud-tools", "demo-executor")}.items() <= principals.items()
        statement = data / "status.yaml"
        statement.write_text(
            "subject: order/8\nproducer: {type: PRODUCER_TYPE_DATABASE_SNAPSHOT, id: orders-db}\n"
            "fact: {key: order.status, value: delivered}\n"
        )
        refused = gavel("publish", statement, server=server, GAVEL_CLIENT_TOKEN_FILE=str(tokens / "refund-agent.token"))
        assert (1, True) == (refused.returncode, "RIGHT_LACKING" in refused.stderr)


def test_directory_in_use(shop: Server) -> None:
    """On a directory that a server uses the demo fails and names the process of that server."""
    result = gavel("demo", "--data", shop.data)
    assert (1, "") == (result.returncode, result.stdout)
    assert f"(pid {shop.running.pid}) uses {shop.data}" in result.stderr
    assert 0 == gavel("status", server=shop).returncode


def test_unwritable_directory(tmp_path: Path) -> None:
    """A directory that cannot be created is exit status 1."""
    (tmp_path / "file").write_text("")
    result = gavel("demo", "--data", tmp_path / "file" / "data")
    assert (1, "") == (result.returncode, result.stdout)
    assert result.stderr.startswith("gavel: cannot write ")


@pytest.mark.long
def test_contradicting_log(tmp_path: Path) -> None:
    """On a log whose rules contradict the demo's, the demo fails with the reason and stops its server cleanly."""
    server = Server(tmp_path / "data")
    with run_servers(server):
        document = gavel("rules", "get", "refunds", server=server)
        assert 1 == document.returncode
        other = tmp_path / "refunds.yaml"
        other.write_text(
            "gavel: v1\nrule_set: refunds\nversion: 1\nactions:\n  refund.create:\n    params: {type: object}\n"
            "rules:\n  - {id: all, action: refund.create, priority: 1, when: 'true', effect: approve}\n"
        )
        assert 0 == gavel("rules", "deploy", other, server=server).returncode
        assert 0 == server.terminate()
    result = gavel("demo", "--data", tmp_path / "data")
    assert 1 == result.returncode
    assert "the demo cannot continue: " in result.stderr
    assert "VERSION_REUSED" in result.stderr
    assert "try an empty directory with --data DIR" in result.stderr
    assert 0 == gavel("replay", "--data", tmp_path / "data").returncode
