"""The commands that call a server, against a real one, with and without --json."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.projection_service_pb2 import GetStatusResponse
from gavel_client import SyncGavelClient, fact_envelope
from google.protobuf.json_format import ParseDict
from ruamel.yaml import YAML

from tests.e2e.cli.programs import as_text, gavel, send
from tests.e2e.runs import RUN_SECONDS_MAX, forker
from tests.e2e.world import DEPOT, GAVEL, Server, rule_set, run_servers


@pytest.fixture
def ready(shop: Server, bus: str) -> Envelope:
    """The fact that the test's own parcel is ready."""
    with SyncGavelClient(shop.address) as client:
        return client.publish_event(fact_envelope(f"parcel/{bus}", DEPOT, key="parcel.status", value="ready")).envelope


def test_propose(shop: Server, ready: Envelope, tmp_path: Path) -> None:
    """A proposal in YAML is decided, and the output has rule and evidence. Submitting it again returns the same decision."""
    file = tmp_path / "proposal.yaml"
    YAML(typ="safe").dump(json.loads(as_text(send(ready, 5))), file)
    result = gavel("propose", file, server=shop)
    assert (0, "") == (result.returncode, result.stderr)
    lines = [line.split() for line in result.stdout.splitlines()]
    assert ["outcome", "APPROVED"] == lines[0]
    assert ["rule", "light", "of", "parcels", "version", "1"] in lines
    assert ["parcel.status", ready.subject, f"#{ready.sequence_number}"] in [line[:3] for line in lines]
    repetition = gavel("propose", file, "--json=snake", server=shop)
    assert json.loads(repetition.stdout)["decision"]["decision"]["decision_id"] in result.stdout


def test_propose_from_standard_input_as_json(shop: Server, ready: Envelope) -> None:
    """A rejection exits with 0, and --json prints the contract's response."""
    result = gavel("propose", "-", "--json=snake", server=shop, text=as_text(send(ready, 50)))
    decision = json.loads(result.stdout)["decision"]["decision"]
    assert (0, "OUTCOME_REJECTED", "NO_RULE_MATCHED") == (result.returncode, decision["outcome"], decision["reason_code"])
    assert {"rule_id": "", "terminal": False} == {name: decision[name] for name in ("rule_id", "terminal")}


def test_propose_without_facts(shop: Server, bus: str) -> None:
    """A rejection for missing evidence prints a row per required fact."""
    proposal = send(Envelope(subject=f"parcel/{bus}"), 5)
    proposal.proposal.ClearField("based_on_events")
    result = gavel("propose", "-", server=shop, text=as_text(proposal))
    assert ["parcel.status", f"parcel/{bus}", "MISSING", "1", "24", "h", "depot"] in [line.split() for line in result.stdout.splitlines()]


def test_invalid_proposal(shop: Server, ready: Envelope) -> None:
    """An invalid proposal exits with 2 and reports everything that is wrong with it."""
    proposal = send(ready, 5)
    proposal.proposal.risk = 7
    proposal.proposal.action_type = "Send It"
    result = gavel("propose", "-", server=shop, text=as_text(proposal))
    assert (2, "") == (result.returncode, result.stdout)
    assert "proposal.risk" in result.stderr
    assert "proposal.action_type" in result.stderr
    assert 2 == gavel("propose", "-", server=shop, text="[]").returncode


def test_preflight(shop: Server, ready: Envelope) -> None:
    """A preflight prints the decision and writes nothing; --explain adds every rule and its terms."""
    head = json.loads(gavel("status", "--json=snake", server=shop).stdout)["head_sequence_number"]
    result = gavel("preflight", "-", "--explain", server=shop, text=as_text(send(ready, 50)))
    assert 0 == result.returncode
    lines = [line.split() for line in result.stdout.splitlines()]
    assert ["outcome", "REJECTED", "NO_RULE_MATCHED"] == lines[0]
    assert ["parcels", "light", "no"] in lines
    assert ["params.weight", "<=", "30", "false"] in lines
    assert ["evaluated", "at", "event", f"{head};", "nothing", "was", "written"] in lines
    assert head == json.loads(gavel("status", "--json=snake", server=shop).stdout)["head_sequence_number"]
    response = json.loads(gavel("preflight", "-", "--explain", "--json=snake", server=shop, text=as_text(send(ready, 5))).stdout)
    assert {"lost": False, "light": True} == {rule["rule_id"]: rule["matched"] for rule in response["explanations"]}


def test_preflight_with_rules(shop: Server, ready: Envelope, tmp_path: Path) -> None:
    """--rules replaces the active rule set; its mistakes are reported with their places."""
    file = tmp_path / "rules.yaml"
    file.write_text(rule_set(version=2).replace("<= 30", "<= 60"))
    result = gavel("preflight", "-", "--rules", file, "--json=snake", server=shop, text=as_text(send(ready, 50)))
    assert "OUTCOME_APPROVED" == json.loads(result.stdout)["decision"]["outcome"]
    file.write_text(rule_set(version=2).replace("params.weight", "params.wait"))
    result = gavel("preflight", "-", "--rules", file, server=shop, text=as_text(send(ready, 50)))
    assert 2 == result.returncode
    assert any(line.startswith(f"{file}:") and "params.weight" in line for line in result.stderr.splitlines())


def test_log_list(shop: Server) -> None:
    """Events are filtered by category, subject, trace and range, one per line; a note says if there are more than --limit."""
    result = gavel("log", "list", "--trace", "trace-light", server=shop)
    assert ["FactRecorded", "ProposalSubmitted", "DecisionApproved"] == [line.split()[2] for line in result.stdout.splitlines()]
    result = gavel("log", "list", "--subject", "parcel/lost", "--category", "decision", "--category", "fact", "--json=snake", server=shop)
    assert ["fact", "decision"] == [next(iter({"fact", "decision"} & event.keys())) for event in json.loads(result.stdout)["envelopes"]]
    result = gavel("log", "list", "--from", "4", "--to", "12", "--limit", "2", server=shop)
    assert ["4", "5"] == [line.split()[0] for line in result.stdout.splitlines()]
    assert "there are more events; continue with --from 6" in result.stderr
    result = gavel("log", "list", "--from", "4", "--to", "12", "--limit", "9", server=shop)
    assert (9, "") == (len(result.stdout.splitlines()), result.stderr)
    assert "No events.\n" == gavel("log", "list", "--subject", "parcel/none", server=shop).stdout


def test_log_get(shop: Server) -> None:
    """One event is printed, by number or id; an unknown one is exit status 1."""
    by_number = json.loads(gavel("log", "get", "6", "--json=snake", server=shop).stdout)["envelope"]
    assert ("6", "DecisionApproved") == (by_number["sequence_number"], by_number["event_name"])
    output = gavel("log", "get", by_number["event_id"], server=shop).stdout
    assert "DecisionApproved" in output.splitlines()[0]
    assert ParseDict(by_number, Envelope()) == ParseDict(json.loads(output.split("\n", 1)[1]), Envelope())
    missing = gavel("log", "get", "999999", server=shop)
    assert (1, "") == (missing.returncode, missing.stdout)
    assert "has no event 999999" in missing.stderr


def test_log_tail(shop: Server) -> None:
    """The last ten events are printed; --from starts elsewhere; --json prints one response per line."""
    lines = gavel("log", "tail", server=shop).stdout.splitlines()
    numbers = [int(line.split()[0]) for line in lines]
    assert list(range(numbers[-1] - 9, numbers[-1] + 1)) == numbers
    responses = [json.loads(line) for line in gavel("log", "tail", "--from", "3", "--json=snake", server=shop).stdout.splitlines()]
    assert "3" == responses[0]["envelope"]["sequence_number"]
    result = gavel("log", "tail", "--from", "999999", server=shop)
    assert (0, "") == (result.returncode, result.stdout)


def test_log_tail_filters(shop: Server) -> None:
    """Every filter of a subscription has an option, and an event must pass all of them."""

    def tail(*options: str) -> list[list[str]]:
        result = gavel("log", "tail", "--from", "1", *options, server=shop)
        assert (0, "") == (result.returncode, result.stderr)
        return [line.split() for line in result.stdout.splitlines()]

    every = tail()
    decisions = tail("--category", "decision", "--subject-prefix", "parcel/l")
    light = tail("--outcome", "approved", "--action", "parcel.send", "--trace", "trace-light")
    assert 1 == len(light)
    assert light[0] in decisions
    assert len(decisions) < len(every)
    refused = tail("--outcome", "rejected", "--outcome", "needs-human-review", "--trace", "trace-lost")
    assert 1 == len(refused)
    assert [] == tail("--action", "parcel.burn")
    wrong = gavel("log", "tail", "--outcome", "perhaps", server=shop)
    assert 2 == wrong.returncode
    assert "perhaps" in wrong.stderr


def test_pending(shop: Server) -> None:
    """Pending decisions are listed by phase and action type; none has lost its work; --json prints the contract's response."""
    table = gavel("pending", "--phase", "approved", "--action", "parcel.send", server=shop)
    assert (0, "") == (table.returncode, table.stderr)
    assert ["parcel/light", "APPROVED"] in [line.split()[1:3] for line in table.stdout.splitlines()]
    decisions = json.loads(gavel("pending", "--json=snake", server=shop).stdout)["decisions"]
    assert "parcel/light" in {decision["subject"] for decision in decisions}
    for options in (("--phase", "under-review"), ("--action", "parcel.burn"), ("--lost-work",)):
        assert "No decision is pending.\n" == gavel("pending", *options, server=shop).stdout


@contextmanager
def follow_log(program: Sequence[str], shop: Server, bus: str) -> Iterator[subprocess.Popen[str]]:
    """Follow a new bus from its first event on, for as long as the context lasts."""
    with SyncGavelClient(shop.address, bus=bus) as client:
        client.publish_event(fact_envelope("parcel/0", DEPOT, key="parcel.status", value="ready"))
    command = [*program, "log", "tail", "--follow", "--from", "1", "--json=snake", "--server", shop.address, "--bus", bus]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as tail:
        try:
            yield tail
        finally:
            tail.kill()


def test_log_tail_follows(shop: Server, bus: str) -> None:
    """--follow prints events as they come, until the command is interrupted."""
    with follow_log(forker().command(), shop, bus) as tail, SyncGavelClient(shop.address, bus=bus) as client:
        assert tail.stdout is not None
        for value in ("ready", "lost"):
            recorded_event = client.publish_event(fact_envelope("parcel/1", DEPOT, key="parcel.status", value=value)).envelope
            while True:
                event = json.loads(tail.stdout.readline())["envelope"]
                if event["event_id"] == recorded_event.event_id:
                    break
        tail.send_signal(signal.SIGINT)
        assert 130 == tail.wait(RUN_SECONDS_MAX)
        assert tail.stderr is not None
        assert "" == tail.stderr.read()


def test_interrupt(shop: Server, bus: str) -> None:
    """An interrupt ends a command even if a library would swallow KeyboardInterrupt."""
    deaf = """
import threading
from gavel_server.cli.main import main

wait = threading.Condition.wait

def deaf(self, timeout=None):
    try:
        return wait(self, timeout)
    except KeyboardInterrupt:
        return False

threading.Condition.wait = deaf
main()
"""
    with follow_log([sys.executable, "-c", deaf], shop, bus) as tail:
        assert tail.stdout is not None
        assert tail.stdout.readline()
        tail.send_signal(signal.SIGINT)
        assert 130 == tail.wait(RUN_SECONDS_MAX)


def test_closed_pipe(shop: Server) -> None:
    """When the reader closes the output, the command ends silently."""
    command = f"'{GAVEL}' log list --server {shop.address} | head -n 1"
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=RUN_SECONDS_MAX, check=True)
    assert (1, "") == (len(result.stdout.splitlines()), result.stderr)


def test_trace(shop: Server) -> None:
    """A trace is a timeline in which each event names its cause; an unknown trace is empty."""
    lines = gavel("trace", "trace-heavy", server=shop).stdout.splitlines()
    rows = [line.split() for line in lines if line[:2].strip().isdigit()]
    names = ["FactRecorded:", "ProposalSubmitted:", "DecisionRejected:"]
    assert names == [name for row in rows for name in names if name in row]
    assert f"#{rows[1][0]}" == rows[2][3]
    assert "Trace nobody has no events.\n" == gavel("trace", "nobody", server=shop).stdout
    assert 3 == len(json.loads(gavel("trace", "trace-heavy", "--json=snake", server=shop).stdout)["envelopes"])


def test_projection(shop: Server) -> None:
    """A projection has the subject's facts and pending decisions, with their events."""
    result = gavel("projection", "parcel/light", server=shop)
    rows = [line.split() for line in result.stdout.splitlines()]
    assert ["parcel.status", '"ready"', "#4", "depot"] in [row[:4] for row in rows]
    assert ["#6", "APPROVED"] in [row[:2] for row in rows]
    response = json.loads(gavel("projection", "parcel/light", "--json=snake", server=shop).stdout)
    assert "parcel/light" == response["projection"]["subject"]
    assert 2 == gavel("projection", "parcel", server=shop).returncode


def test_status(shop: Server) -> None:
    """The status of bus and server is printed; the digest only with --digest."""
    rows = [line.split() for line in gavel("status", server=shop).stdout.splitlines()]
    assert ["durable", "yes"] in rows
    assert ["cross-check", "always"] in rows
    assert ["parcels", "1"] in [row[:2] for row in rows]
    assert {"executors", "fdr"} <= {row[0] for row in rows if row}
    assert "" == json.loads(gavel("status", "--json=snake", server=shop).stdout)["projection_digest"]
    assert json.loads(gavel("status", "--digest", "--json=snake", server=shop).stdout)["projection_digest"].startswith("sha256:")


@pytest.mark.parametrize("arguments", [("status",), ("rules", "list"), ("log", "tail"), ("projection", "parcel/1"), ("reviews",)])
def test_unknown_bus(shop: Server, bus: str, arguments: tuple[str, ...]) -> None:
    """A read of a bus that does not exist fails with exit status 1, says what to do, and does not create the bus."""
    for _ in range(2):
        result = gavel(*arguments, "--bus", bus, server=shop)
        assert (1, "") == (result.returncode, result.stdout)
        assert result.stderr.startswith(f"gavel: the server at {shop.address} has no bus {bus} (BUS_NOT_FOUND); check --bus or GAVEL_BUS, ")


def test_server_by_option_and_by_unix_socket(shop: Server, tmp_path: Path) -> None:
    """--server takes precedence over GAVEL_SERVER, and may name a unix socket."""
    assert 0 == gavel("status", "--server", shop.address, GAVEL_SERVER="127.0.0.1:9").returncode
    server = Server(tmp_path / "data", listen=f"unix:{tmp_path}/gavel.sock")
    try:
        server.start()
        assert f"unix:{tmp_path}/gavel.sock" == server.address
        assert 0 == gavel("status", "--server", server.address).returncode
        assert 0 == server.terminate()
    finally:
        server.kill()


def test_life_of_a_rule_set(shop: Server, bus: str, tmp_path: Path) -> None:
    """A rule set is deployed, activated, replaced, listed, and printed as it was written."""
    file = tmp_path / "rules.yaml"
    file.write_text(rule_set())
    result = gavel("rules", "deploy", file, "--activate", "--bus", bus, server=shop)
    new = f"gavel: the deployment created bus {bus}; check that its name is right\n"
    assert (0, new) == (result.returncode, result.stderr)
    assert ["parcels version 1 is deployed at event 2", "parcels version 1 is in force from event 3"] == [
        line.split(",")[0] for line in result.stdout.splitlines()
    ]
    repetition = json.loads(gavel("rules", "deploy", file, "--json=snake", "--bus", bus, server=shop).stdout)
    assert ("parcels", "1", "2") == (repetition["policy_id"], repetition["version"], repetition["sequence_number"])
    file.write_text(rule_set(version=2).replace("<= 30", "<= 60"))
    result = gavel("rules", "deploy", file, "--bus", bus, server=shop)
    assert (0, "") == (result.returncode, result.stderr)
    result = gavel("rules", "activate", "parcels", "2", "--expected-active-version", "0", "--bus", bus, server=shop)
    assert (1, True) == (result.returncode, "ACTIVATION_RACED" in result.stderr)
    result = gavel("rules", "activate", "parcels", "2", "--expected-active-version", "1", "--bus", bus, server=shop)
    assert "parcels version 2 is in force from event 5\n" == result.stdout
    versions = json.loads(gavel("rules", "list", "--json=snake", "--bus", bus, server=shop).stdout)["rule_sets"]
    assert [("1", "ACTIVATION_MODE_UNSPECIFIED"), ("2", "ACTIVATION_MODE_ACTIVE")] == [(one["version"], one["mode"]) for one in versions]
    rows = [line.split()[:3] for line in gavel("rules", "list", "--bus", bus, server=shop).stdout.splitlines()]
    assert ["parcels", "1", "-"] in rows
    assert ["parcels", "2", "active"] in rows
    assert rule_set().rstrip("\n") + "\n" == gavel("rules", "get", "parcels", "1", "--bus", bus, server=shop).stdout
    assert "version: 2" in gavel("rules", "get", "parcels", "--bus", bus, server=shop).stdout
    result = gavel("rules", "deactivate", "parcels", "--expected-active-version", "1", "--bus", bus, server=shop)
    assert (1, True) == (result.returncode, "ACTIVATION_RACED" in result.stderr)
    result = gavel("rules", "deactivate", "parcels", "--bus", bus, server=shop)
    assert "parcels is out of force from event 6\n" == result.stdout
    result = gavel("rules", "deactivate", "parcels", "--bus", bus, server=shop)
    assert (1, True) == (result.returncode, "RULE_SET_NOT_FOUND" in result.stderr)


def test_invalid_rule_sets(shop: Server, bus: str, tmp_path: Path) -> None:
    """An invalid rule set exits with 2 and the places of its mistakes; other refusals of the server exit with 1."""
    file = tmp_path / "rules.yaml"
    file.write_text(rule_set().replace("params.weight", "params.wait"))
    result = gavel("rules", "deploy", file, "--bus", bus, server=shop)
    assert (2, "") == (result.returncode, result.stdout)
    assert any(line.startswith(f"{file}:") and "params.weight" in line for line in result.stderr.splitlines())
    file.write_text(rule_set())
    assert 0 == gavel("rules", "deploy", file, "--bus", bus, server=shop).returncode
    file.write_text(rule_set().replace("<= 30", "<= 60"))
    result = gavel("rules", "deploy", file, "--bus", bus, server=shop)
    assert (1, True) == (result.returncode, "VERSION_REUSED" in result.stderr)
    result = gavel("rules", "activate", "parcels", "9", "--bus", bus, server=shop)
    assert (1, True) == (result.returncode, "RULE_SET_NOT_FOUND" in result.stderr)
    result = gavel("rules", "rollback", "parcels", "--bus", bus, server=shop)
    assert (1, True) == (result.returncode, "no version of parcels is in force" in result.stderr)


def test_invalid_bus_name(shop: Server) -> None:
    """An invalid bus name is wrong usage."""
    result = gavel("status", "--bus", "No Bus", server=shop)
    assert (2, True) == (result.returncode, "'No Bus' is not a bus name" in result.stderr)


def test_plain_output(shop: Server) -> None:
    """Output to a pipe has no colours and respects COLUMNS."""
    result = gavel("trace", "trace-light", server=shop, FORCE_COLOR="", COLUMNS="90")
    assert "\x1b" not in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 90


def test_ascii_terminal(shop: Server) -> None:
    """On an ASCII terminal other characters are escaped."""
    # Python reads it when it starts, so the installed program must run.
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    command = [GAVEL, "rules", "list", "--server", shop.address]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (0, True) == (result.returncode, r"\u2026" in result.stdout)


def test_names_of_json(shop: Server) -> None:
    """--json prints protobuf JSON, with names in lowerCamelCase; --json=snake prints the contract's names and the same values."""
    in_camel, in_snake = (json.loads(gavel("status", option, server=shop).stdout) for option in ("--json", "--json=snake"))
    assert in_snake["head_sequence_number"] == in_camel["headSequenceNumber"]
    assert ParseDict(in_camel, GetStatusResponse()).head_sequence_number == int(in_snake["head_sequence_number"])
    assert {field.json_name for field in GetStatusResponse.DESCRIPTOR.fields if field.name in in_snake} == set(in_camel)
    result = gavel("status", "--json=pascal", server=shop)
    assert (2, "") == (result.returncode, result.stdout)
    assert "--json" in result.stderr


def test_search_of_the_log(tmp_path: Path) -> None:
    """`log search` finds events by any combination of filters, from an index that the server has built, and refuses what is not a time."""
    server = Server(tmp_path / "data", options=["--no-front", "--index-from", "1"])
    with run_servers(server):
        with SyncGavelClient(server.address) as client:
            client.deploy_rule_set(rule_set())
            client.activate_rule_set("parcels", 1)
            sent = [fact_envelope(f"parcel/{name}", DEPOT, key="parcel.status", value=name) for name in ("ready", "lost")]
            decisions = [client.submit_proposal(send(client.publish_event(fact).envelope, 5)).decision for fact in sent]
            _await_index(server, decisions[-1].sequence_number)

        def numbers(*options: str) -> list[int]:
            result = gavel("log", "search", *options, "--json=snake", server=server)
            assert (0, "") == (result.returncode, result.stderr)
            return [int(event["sequence_number"]) for event in json.loads(result.stdout).get("envelopes", [])]

        approved, rejected = (decision.sequence_number for decision in decisions)
        assert [approved - 1, approved, rejected - 1, rejected] == numbers("--action", "parcel.send")
        assert [rejected] == numbers("--action", "parcel.send", "--outcome", "rejected")
        assert [rejected] == numbers("--reason", "PARCEL_LOST", "--since", "1h", "--subject", "parcel/lost")
        assert [approved] == numbers("--outcome", "approved", "--category", "decision", "--trace", decisions[0].trace_id)
        assert [] == numbers("--outcome", "approved", "--until", "1h")
        assert [] == numbers("--outcome", "approved", "--subject", "parcel/lost")
        assert list(range(1, rejected + 1)) == numbers("--since", "2020-01-01", "--to", str(rejected))
        # Events that the index does not have yet are in the answer at once.
        with SyncGavelClient(server.address) as client:
            last = client.publish_event(fact_envelope("parcel/new", DEPOT, key="parcel.status", value="ready")).envelope
        assert [last.sequence_number] == numbers("--subject", "parcel/new")
        wrong = gavel("log", "search", "--since", "yesterday", server=server)
        assert (2, "gavel: --since: 'yesterday' is not a time") == (wrong.returncode, wrong.stderr.split(";")[0])
        wrong = gavel("log", "search", "--since", "2h", "--until", "3h", server=server)
        assert (2, "gavel: --until is not after --since\n") == (wrong.returncode, wrong.stderr)


def _await_index(server: Server, number: int) -> None:
    """Wait until the index of a server's default bus has an event."""
    path = server.data / "index" / "default.sqlite"
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with suppress(sqlite3.Error), closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as index:
            if index.execute("SELECT sequence_number FROM head").fetchone()[0] >= number:
                return
        time.sleep(0.05)
    raise AssertionError(f"the index does not reach event {number}; {server.log()}")
