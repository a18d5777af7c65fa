"""The commands that talk to a server: each against a real one, as people and as machines see it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from gavel.v1.envelope_pb2 import Envelope
from gavel_client import SyncGavelClient, fact_envelope
from google.protobuf.json_format import ParseDict
from ruamel.yaml import YAML

from tests.e2e.cli.programs import as_text, gavel, send
from tests.e2e.runs import RUN_SECONDS_MAX
from tests.e2e.world import DEPOT, GAVEL, Server, rule_set


@pytest.fixture
def ready(shop: Server, bus: str) -> Envelope:
    """The fact that a parcel of the test's own is ready."""
    with SyncGavelClient(shop.address) as client:
        return client.publish_event(fact_envelope(f"parcel/{bus}", DEPOT, key="parcel.status", value="ready")).envelope


def test_propose(shop: Server, ready: Envelope, tmp_path: Path) -> None:
    """A proposal in YAML is decided; the decision is shown with its rule and its evidence. The same one again is no second."""
    file = tmp_path / "proposal.yaml"
    YAML(typ="safe").dump(json.loads(as_text(send(ready, 5))), file)
    done = gavel("propose", file, server=shop)
    assert (0, "") == (done.returncode, done.stderr)
    lines = [line.split() for line in done.stdout.splitlines()]
    assert ["outcome", "APPROVED"] == lines[0]
    assert ["rule", "light", "of", "parcels", "version", "1"] in lines
    assert ["parcel.status", ready.subject, f"#{ready.sequence_number}"] in [line[:3] for line in lines]
    again = gavel("propose", file, "--json", server=shop)
    assert json.loads(again.stdout)["decision"]["decision"]["decision_id"] in done.stdout


def test_propose_from_standard_input_as_json(shop: Server, ready: Envelope) -> None:
    """A refusal is an answer too: exit status 0, and the contract's response as JSON."""
    done = gavel("propose", "-", "--json", server=shop, text=as_text(send(ready, 50)))
    decision = json.loads(done.stdout)["decision"]["decision"]
    assert (0, "OUTCOME_REJECTED", "NO_RULE_MATCHED") == (done.returncode, decision["outcome"], decision["reason_code"])
    assert {"rule_id": "", "terminal": False} == {name: decision[name] for name in ("rule_id", "terminal")}


def test_propose_without_facts(shop: Server, bus: str) -> None:
    """A rejection for lack of evidence shows a row per fact that is lacking."""
    proposal = send(Envelope(subject=f"parcel/{bus}"), 5)
    proposal.proposal.ClearField("based_on_events")
    done = gavel("propose", "-", server=shop, text=as_text(proposal))
    assert ["parcel.status", f"parcel/{bus}", "MISSING", "1", "24", "h", "depot"] in [line.split() for line in done.stdout.splitlines()]


def test_propose_what_is_invalid(shop: Server, ready: Envelope) -> None:
    """A proposal that the contract does not allow is exit status 2, with everything that is wrong with it."""
    proposal = send(ready, 5)
    proposal.proposal.risk = 7
    proposal.proposal.action_type = "Send It"
    done = gavel("propose", "-", server=shop, text=as_text(proposal))
    assert (2, "") == (done.returncode, done.stdout)
    assert "proposal.risk" in done.stderr
    assert "proposal.action_type" in done.stderr
    assert 2 == gavel("propose", "-", server=shop, text="[]").returncode


def test_preflight(shop: Server, ready: Envelope) -> None:
    """A preflight says what would be decided and writes nothing; with --explain it shows every rule and its terms."""
    head = json.loads(gavel("status", "--json", server=shop).stdout)["head_sequence_number"]
    done = gavel("preflight", "-", "--explain", server=shop, text=as_text(send(ready, 50)))
    assert 0 == done.returncode
    lines = [line.split() for line in done.stdout.splitlines()]
    assert ["outcome", "REJECTED", "NO_RULE_MATCHED"] == lines[0]
    assert ["parcels", "light", "no"] in lines
    assert ["params.weight", "<=", "30", "false"] in lines
    assert ["evaluated", "at", "event", f"{head};", "nothing", "was", "written"] in lines
    assert head == json.loads(gavel("status", "--json", server=shop).stdout)["head_sequence_number"]
    response = json.loads(gavel("preflight", "-", "--explain", "--json", server=shop, text=as_text(send(ready, 5))).stdout)
    assert {"lost": False, "light": True} == {rule["rule_id"]: rule["matched"] for rule in response["explanations"]}


def test_preflight_under_other_rules(shop: Server, ready: Envelope, tmp_path: Path) -> None:
    """A rule set from a file stands in for the active one; its mistakes are shown at their places."""
    file = tmp_path / "rules.yaml"
    file.write_text(rule_set(version=2).replace("<= 30", "<= 60"))
    done = gavel("preflight", "-", "--rules", file, "--json", server=shop, text=as_text(send(ready, 50)))
    assert "OUTCOME_APPROVED" == json.loads(done.stdout)["decision"]["outcome"]
    file.write_text(rule_set(version=2).replace("params.weight", "params.wait"))
    done = gavel("preflight", "-", "--rules", file, server=shop, text=as_text(send(ready, 50)))
    assert 2 == done.returncode
    assert any(line.startswith(f"{file}:") and "params.weight" in line for line in done.stderr.splitlines())


def test_log_list(shop: Server) -> None:
    """Events are listed by category, subject, trace and range, one per line; more than asked for is said."""
    done = gavel("log", "list", "--trace", "trace-light", server=shop)
    assert ["FactRecorded", "ProposalSubmitted", "DecisionApproved"] == [line.split()[2] for line in done.stdout.splitlines()]
    done = gavel("log", "list", "--subject", "parcel/lost", "--category", "decision", "--category", "fact", "--json", server=shop)
    assert ["fact", "decision"] == [next(iter({"fact", "decision"} & event.keys())) for event in json.loads(done.stdout)["envelopes"]]
    done = gavel("log", "list", "--from", "4", "--to", "12", "--limit", "2", server=shop)
    assert ["4", "5"] == [line.split()[0] for line in done.stdout.splitlines()]
    assert "there are more; go on with --from 6" in done.stderr
    done = gavel("log", "list", "--from", "4", "--to", "12", "--limit", "9", server=shop)
    assert (9, "") == (len(done.stdout.splitlines()), done.stderr)
    assert "No events.\n" == gavel("log", "list", "--subject", "parcel/none", server=shop).stdout


def test_log_get(shop: Server) -> None:
    """One event is read whole, by its number or its id; one that is not there is a failure."""
    by_number = json.loads(gavel("log", "get", "6", "--json", server=shop).stdout)["envelope"]
    assert ("6", "DecisionApproved") == (by_number["sequence_number"], by_number["event_name"])
    shown = gavel("log", "get", by_number["event_id"], server=shop).stdout
    assert "DecisionApproved" in shown.splitlines()[0]
    assert ParseDict(by_number, Envelope()) == ParseDict(json.loads(shown.split("\n", 1)[1]), Envelope())
    missing = gavel("log", "get", "999999", server=shop)
    assert (1, "") == (missing.returncode, missing.stdout)
    assert "holds no event 999999" in missing.stderr


def test_log_tail(shop: Server) -> None:
    """The newest events are printed and the command ends; --from begins elsewhere; JSON is one response per line."""
    lines = gavel("log", "tail", server=shop).stdout.splitlines()
    numbers = [int(line.split()[0]) for line in lines]
    assert list(range(numbers[-1] - 9, numbers[-1] + 1)) == numbers
    responses = [json.loads(line) for line in gavel("log", "tail", "--from", "3", "--json", server=shop).stdout.splitlines()]
    assert "3" == responses[0]["envelope"]["sequence_number"]
    done = gavel("log", "tail", "--from", "999999", server=shop)
    assert (0, "") == (done.returncode, done.stdout)


@contextmanager
def tailing(program: Sequence[str], shop: Server, bus: str) -> Iterator[subprocess.Popen[str]]:
    """Run `log tail --follow` on a bus from its first event on; it is ended however the test ends."""
    command = [*program, "log", "tail", "--follow", "--from", "1", "--json", "--server", shop.address, "--bus", bus]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as tail:
        try:
            yield tail
        finally:
            tail.kill()


def test_log_tail_follows(shop: Server, bus: str) -> None:
    """With --follow events are printed as they come, until the command is interrupted."""
    with tailing([GAVEL], shop, bus) as tail, SyncGavelClient(shop.address, bus=bus) as client:
        assert tail.stdout is not None
        for value in ("ready", "lost"):
            published = client.publish_event(fact_envelope("parcel/1", DEPOT, key="parcel.status", value=value)).envelope
            while True:
                event = json.loads(tail.stdout.readline())["envelope"]
                if event["event_id"] == published.event_id:
                    break
        tail.send_signal(signal.SIGINT)
        assert 130 == tail.wait(RUN_SECONDS_MAX)
        assert tail.stderr is not None
        assert "" == tail.stderr.read()


def test_an_interrupt_is_no_exception(shop: Server, bus: str) -> None:
    """An interrupt ends a command whatever the libraries under it would make of an exception between two of their steps."""
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
    with tailing([sys.executable, "-c", deaf], shop, bus) as tail:
        assert tail.stdout is not None
        assert tail.stdout.readline()
        tail.send_signal(signal.SIGINT)
        assert 130 == tail.wait(RUN_SECONDS_MAX)


def test_reader_that_has_enough(shop: Server) -> None:
    """When whoever reads the output goes away, the command ends without complaint."""
    command = f"'{GAVEL}' log list --server {shop.address} | head -n 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=RUN_SECONDS_MAX, check=True)
    assert (1, "") == (len(done.stdout.splitlines()), done.stderr)


def test_trace(shop: Server) -> None:
    """A trace is a timeline in which each event names its cause; a trace that nobody knows is empty."""
    lines = gavel("trace", "trace-heavy", server=shop).stdout.splitlines()
    rows = [line.split() for line in lines if line[:2].strip().isdigit()]
    names = ["FactRecorded:", "ProposalSubmitted:", "DecisionRejected:"]
    assert names == [name for row in rows for name in names if name in row]
    assert f"#{rows[1][0]}" == rows[2][3]
    assert "No event belongs to trace nobody.\n" == gavel("trace", "nobody", server=shop).stdout
    assert 3 == len(json.loads(gavel("trace", "trace-heavy", "--json", server=shop).stdout)["envelopes"])


def test_projection(shop: Server) -> None:
    """A subject's facts and what is under way are shown, with the events that said so."""
    done = gavel("projection", "parcel/light", server=shop)
    rows = [line.split() for line in done.stdout.splitlines()]
    assert ["parcel.status", '"ready"', "#4", "depot"] in [row[:4] for row in rows]
    assert ["#6", "APPROVED"] in [row[:2] for row in rows]
    response = json.loads(gavel("projection", "parcel/light", "--json", server=shop).stdout)
    assert "parcel/light" == response["projection"]["subject"]
    assert 2 == gavel("projection", "parcel", server=shop).returncode


def test_status(shop: Server) -> None:
    """The state of bus and server is shown; the digest only when asked for."""
    rows = [line.split() for line in gavel("status", server=shop).stdout.splitlines()]
    assert ["durable", "yes"] in rows
    assert ["cross-check", "always"] in rows
    assert ["parcels", "1"] in [row[:2] for row in rows]
    assert {"executors", "fdr"} <= {row[0] for row in rows if row}
    assert "" == json.loads(gavel("status", "--json", server=shop).stdout)["projection_digest"]
    assert json.loads(gavel("status", "--digest", "--json", server=shop).stdout)["projection_digest"].startswith("sha256:")


def test_server_by_option_and_by_unix_socket(shop: Server, tmp_path: Path) -> None:
    """--server overrides the environment, and may name a unix socket."""
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
    """A rule set is deployed, put in force, replaced, listed and read back as its author wrote it."""
    file = tmp_path / "rules.yaml"
    file.write_text(rule_set())
    assert "No rule set is deployed" in gavel("rules", "list", "--bus", bus, server=shop).stdout
    done = gavel("rules", "deploy", file, "--activate", "--bus", bus, server=shop)
    new = f"gavel: bus {bus} held nothing before; whoever names a bus opens it, so look whether the name is meant\n"
    assert (0, new) == (done.returncode, done.stderr)
    assert ["parcels version 1 is deployed at event 2", "parcels version 1 is in force from event 3"] == [
        line.split(",")[0] for line in done.stdout.splitlines()
    ]
    again = json.loads(gavel("rules", "deploy", file, "--json", "--bus", bus, server=shop).stdout)
    assert ("parcels", "1", "2") == (again["policy_id"], again["version"], again["sequence_number"])
    file.write_text(rule_set(version=2).replace("<= 30", "<= 60"))
    done = gavel("rules", "deploy", file, "--bus", bus, server=shop)
    assert (0, "") == (done.returncode, done.stderr)
    done = gavel("rules", "activate", "parcels", "2", "--expected-active-version", "0", "--bus", bus, server=shop)
    assert (1, True) == (done.returncode, "ACTIVATION_RACED" in done.stderr)
    done = gavel("rules", "activate", "parcels", "2", "--expected-active-version", "1", "--bus", bus, server=shop)
    assert "parcels version 2 is in force from event 5\n" == done.stdout
    listed = json.loads(gavel("rules", "list", "--json", "--bus", bus, server=shop).stdout)["rule_sets"]
    assert [("1", "ACTIVATION_MODE_UNSPECIFIED"), ("2", "ACTIVATION_MODE_ACTIVE")] == [(one["version"], one["mode"]) for one in listed]
    rows = [line.split()[:3] for line in gavel("rules", "list", "--bus", bus, server=shop).stdout.splitlines()]
    assert ["parcels", "1", "-"] in rows
    assert ["parcels", "2", "active"] in rows
    assert rule_set().rstrip("\n") + "\n" == gavel("rules", "get", "parcels", "1", "--bus", bus, server=shop).stdout
    assert "version: 2" in gavel("rules", "get", "parcels", "--bus", bus, server=shop).stdout
    done = gavel("rules", "deactivate", "parcels", "--expected-active-version", "1", "--bus", bus, server=shop)
    assert (1, True) == (done.returncode, "ACTIVATION_RACED" in done.stderr)
    done = gavel("rules", "deactivate", "parcels", "--bus", bus, server=shop)
    assert "parcels is out of force from event 6\n" == done.stdout
    done = gavel("rules", "deactivate", "parcels", "--bus", bus, server=shop)
    assert (1, True) == (done.returncode, "RULE_SET_NOT_FOUND" in done.stderr)


def test_refused_rule_sets(shop: Server, bus: str, tmp_path: Path) -> None:
    """Mistakes stand at their places, exit status 2; what the server refuses otherwise is exit status 1."""
    file = tmp_path / "rules.yaml"
    file.write_text(rule_set().replace("params.weight", "params.wait"))
    done = gavel("rules", "deploy", file, "--bus", bus, server=shop)
    assert (2, "") == (done.returncode, done.stdout)
    assert any(line.startswith(f"{file}:") and "params.weight" in line for line in done.stderr.splitlines())
    file.write_text(rule_set())
    assert 0 == gavel("rules", "deploy", file, "--bus", bus, server=shop).returncode
    file.write_text(rule_set().replace("<= 30", "<= 60"))
    done = gavel("rules", "deploy", file, "--bus", bus, server=shop)
    assert (1, True) == (done.returncode, "VERSION_REUSED" in done.stderr)
    done = gavel("rules", "activate", "parcels", "9", "--bus", bus, server=shop)
    assert (1, True) == (done.returncode, "RULE_SET_NOT_FOUND" in done.stderr)
    done = gavel("rules", "rollback", "parcels", "--bus", bus, server=shop)
    assert (1, True) == (done.returncode, "no version of parcels is in force" in done.stderr)


def test_bus_name_that_is_none(shop: Server) -> None:
    """A name that no bus can have is wrong usage."""
    done = gavel("status", "--bus", "No Bus", server=shop)
    assert (2, True) == (done.returncode, "'No Bus' is no name of a bus" in done.stderr)


def test_plain_output(shop: Server) -> None:
    """What is not a terminal gets no colours and nothing wider than it says."""
    done = gavel("trace", "trace-light", server=shop, FORCE_COLOR="", COLUMNS="90")
    assert "\x1b" not in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 90


def test_ascii_terminal(shop: Server) -> None:
    """A terminal that knows only ASCII gets escapes instead of a failure."""
    # Read when Python starts.
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    command = [GAVEL, "rules", "list", "--server", shop.address]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (0, True) == (done.returncode, r"\u2026" in done.stdout)
